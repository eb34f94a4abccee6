// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Operations that are handed to the CPU proxy: descriptors in a ring in host memory. The slots'
// layout is that of proxy/src/descriptor.rs, which also says what reads them; proxy/src/ring.rs
// says why a torn slot is never taken.
//
// A group of converged lanes reserves its slots by one atomic add, waits until they are free, and
// each lane stores its own. A poster waits for the proxy alone, which takes slots in order; so the
// oldest poster that has not written its slot never waits.
#pragma once

#include "landing.h"
#include "wqe.h"

namespace oxshmem::detail {

// Operations of a descriptor, in bits 11:8 of its header.
enum class Work : uint64_t {
    write = 1,
    write_inline = 2,
    read = 3,
    fetch_add = 4,
    compare_swap = 5,
    masked_fetch_add = 6,
    masked_compare_swap = 7,
    fence = 8,
};

constexpr uint64_t kWorkOrdered = 1 << 12;
constexpr uint64_t kWorkFetch = 1 << 13;
constexpr uint64_t kWorkEight = 1 << 14;
constexpr uint32_t kSlotPayload = 48;

// Lanes of a warp that write descriptors together.
struct Posters {
    uint32_t mask; // lanes
    uint32_t rank; // of the calling lane among them
    uint32_t size;
    uint32_t leader; // lowest lane
};

OXSHMEM_DEVICE Posters posters(uint64_t key) {
    const uint32_t mask = port::converged(key);
    return {mask, port::count_ones(mask & ((1u << port::lane_id()) - 1)), port::count_ones(mask), port::lowest_bit(mask)};
}

OXSHMEM_DEVICE abi::Proxy &proxy() {
    return *as<abi::Proxy>(port::state().proxy);
}

// Waits until the word at `address`, a count of the proxy's that only grows, is at least `least`.
// One waiter asks host memory; the others look at what it has seen, since every question crosses
// PCIe.
OXSHMEM_DEVICE bool wait_word(uint64_t address, abi::ProxyWord &word, uint64_t mask, uint64_t least, int pe, Op op) {
    const auto known = [&] { return (port::load<order::acquire, reach::device>(&word.seen) & mask) >= least; };
    if (known()) {
        return true;
    }
    const auto look = [&] {
        if (port::load<order::relaxed, reach::device>(&word.polled) == 0 &&
            port::exchange<order::relaxed, reach::device>(&word.polled, uint64_t{1}) == 0) {
            const uint64_t now = port::load<order::acquire, reach::system>(as<uint64_t>(address));
            port::raise_to<order::release, reach::device>(&word.seen, now);
            port::store<order::release, reach::device>(&word.polled, uint64_t{0});
            return (now & mask) >= least;
        }
        return known();
    };
    return wait<OnAbort::keep_waiting>(op, pe, as<void>(address), look,
                                       [&] { return low(port::load<order::relaxed, reach::device>(&word.seen)); });
}

// Whether the ring is broken; then that is reported.
OXSHMEM_DEVICE bool ring_is_broken(Op op) {
    abi::Proxy &p = proxy();
    if (port::load<order::acquire, reach::device>(&p.taken.seen) < abi::kBroken) {
        return false;
    }
    report_breakage(p.breakage, op);
    return true;
}

// Breaks the ring: the caller gives up slots that it has reserved, and the proxy takes none after
// those.
OXSHMEM_NOINLINE void break_ring(int pe) {
    abi::Proxy &p = proxy();
    abi::ErrorRecord error;
    describe(error, ErrorCode::timeout, Op::queue_space, pe, p.taken_word, 0);
    break_queue(&p.taken.seen, p.breakage, error);
}

// Waits until slots may be reused. False: they never will be, and the ring is broken.
OXSHMEM_NOINLINE bool wait_slots(uint64_t taken, int pe) {
    abi::Proxy &p = proxy();
    if (!wait_word(p.taken_word, p.taken, ~0ull, taken, pe, Op::queue_space)) {
        break_ring(pe);
        return false;
    }
    return !ring_is_broken(Op::queue_space);
}

// Reserves `count` slots for the group; returns the first, or ~0 if they do not become free, which
// breaks the ring, or if it is broken (the reason is recorded). `live`: variables of the caller
// that are in local memory while this waits.
template <class... T> OXSHMEM_DEVICE uint64_t reserve_slots(Posters &group, uint32_t count, int pe, T &...live) {
    abi::Proxy &p = proxy();
    uint64_t first = 0;
    if (group.rank == 0) {
        first = port::fetch_add<order::relaxed, reach::device>(&p.head, static_cast<uint64_t>(count));
        const uint64_t end = first + count;
        const uint64_t depth = 1ull << p.depth_log2;
        // A ring breaks only once it was full, so that every later post comes by here.
        const uint64_t taken = end - depth;
        if (end > depth) {
            const uint64_t seen = port::load<order::acquire, reach::device>(&p.taken.seen);
            if ((seen < taken || seen >= abi::kBroken) &&
                !keeping([&] { return wait_slots(taken, pe); }, first, group, live...)) {
                first = ~0ull;
            }
        }
    }
    return group.size > 1 ? port::shfl(group.mask, first, group.leader) : first;
}

// A descriptor before its tags.
struct Descriptor {
    uint64_t words[8];

    Descriptor() = default;
    // Only a fence has no remote side.
    OXSHMEM_DEVICE Descriptor(Work work, uint64_t flags, const Located &remote, int pe, uint32_t queue) : words{} {
        words[0] = static_cast<uint64_t>(remote.key) << 32 | static_cast<uint64_t>(static_cast<uint32_t>(pe)) << 22 |
                   static_cast<uint64_t>(queue) << 16 | flags | static_cast<uint64_t>(work) << 8;
        words[1] = remote.address;
    }

    OXSHMEM_DEVICE void transfer(const Located &local, uint64_t bytes) {
        words[2] = local.address;
        words[3] = bytes << 32 | local.key;
    }

    OXSHMEM_DEVICE void payload(const void *src, uint32_t bytes) {
        words[1] |= static_cast<uint64_t>(bytes) << 48;
        const char *from = static_cast<const char *>(src);
        if ((reinterpret_cast<uint64_t>(from) | bytes) % 8 == 0) {
            for (uint32_t i = 0; i < bytes / 8; ++i) {
                words[2 + i] = port::read(reinterpret_cast<const uint64_t *>(from) + i);
            }
        } else {
            for (uint32_t i = 0; i < bytes; ++i) {
                words[2 + i / 8] |= static_cast<uint64_t>(static_cast<unsigned char>(port::read(from + i))) << i % 8 * 8;
            }
        }
    }

    // Every word carries the tag of the slot's lap in its lowest bit; the header keeps the bits
    // that gives way.
    OXSHMEM_DEVICE void store(uint64_t index) const {
        const abi::Proxy &p = proxy();
        const uint64_t tag = ((index >> p.depth_log2) + 1) & 1;
        uint64_t header = words[0] | tag;
        OXSHMEM_UNROLL
        for (uint32_t i = 1; i < 8; ++i) {
            header |= (words[i] & 1) << i;
        }
        uint64_t *slot = as<uint64_t>(p.slots + (index & ((1ull << p.depth_log2) - 1)) * abi::kSlotBytes);
        const auto tagged = [&](uint32_t i) { return (words[i] & ~1ull) | tag; };
        port::store_pair(slot + 2, tagged(2), tagged(3));
        port::store_pair(slot + 4, tagged(4), tagged(5));
        port::store_pair(slot + 6, tagged(6), tagged(7));
        port::store_pair(slot, header, tagged(1));
    }
};

// Lets every lane post its descriptor, together with the lanes that converge here. Returns the
// index after it, or 0.
OXSHMEM_OUTLINE uint64_t ibrc_post(const Descriptor &descriptor, int pe) {
    Posters group = posters(0);
    const uint64_t first = reserve_slots(group, group.size, pe);
    if (first == ~0ull) {
        return 0;
    }
    descriptor.store(first + group.rank);
    port::wake_host();
    return first + group.rank + 1;
}

// Records a failure that the proxy has published, unless it was recorded before.
OXSHMEM_NOINLINE void ibrc_failure(Op op) {
    abi::Proxy &p = proxy();
    const uint64_t now = port::load<order::acquire, reach::system>(as<uint64_t>(p.completed_word + 8));
    if (port::fetch_max<order::relaxed, reach::device>(&p.failures, now) >= now) {
        return;
    }
    const uint32_t pe = static_cast<uint32_t>(now & 0xffff);
    const uint64_t fault = p.faults + pe * sizeof(abi::ProxyFault);
    const auto word = [&](uint32_t i) { return port::load<order::relaxed, reach::system>(as<uint64_t>(fault + i * 8)); };
    abi::ErrorRecord error;
    describe(error, ErrorCode::completion, op, static_cast<int>(pe), word(2), high(word(0)));
    error.qpn = low(word(0));
    error.wqe_index = word(1);
    error.syndrome = low(word(3)), error.vendor_syndrome = high(word(3));
    record(error);
}

// Waits until the first `end` descriptors are done. Failures among them are recorded.
OXSHMEM_OUTLINE bool ibrc_wait(uint64_t end, int pe, Op op) {
    abi::Proxy &p = proxy();
    if (ring_is_broken(op) || !wait_word(p.completed_word, p.completed, ~abi::kProxyFailed, end, pe, op)) {
        return false;
    }
    if ((port::load<order::relaxed, reach::device>(&p.completed.seen) & abi::kProxyFailed) != 0) {
        ibrc_failure(op);
    }
    return true;
}

// A landing slot of the ring, in host memory.
OXSHMEM_DEVICE bool take_proxy_landing(LandingSlot &landing, int pe) {
    abi::Proxy &p = proxy();
    return take_landing_slot(landing, &p.landing_head, p.laps, p.landing_log2, pe,
                             [&] { return low(port::load<order::relaxed, reach::device>(&p.completed.seen)); });
}

OXSHMEM_DEVICE uint64_t landing_address(const LandingSlot &landing) {
    return proxy().landing + landing.slot * uint64_t{abi::kLandingBytes};
}

// What a descriptor calls a landing slot.
OXSHMEM_DEVICE uint64_t landing_name(const LandingSlot &landing) {
    return static_cast<uint64_t>(landing.lap) << 32 | landing.slot;
}

// Waits for the result that a descriptor (posted with index `end`, or 0 if it was not posted)
// leaves in a landing slot. False: there is none. The slot is free again then, unless the proxy may
// still write to it.
OXSHMEM_OUTLINE bool await_proxy_landing(LandingSlot landing, uint64_t end, int pe, Op op) {
    if (end == 0) {
        landing.release();
        return false;
    }
    abi::Proxy &p = proxy();
    uint64_t *word = as<uint64_t>(p.acknowledgements) + landing.slot;
    uint64_t seen = 0;
    const bool told = wait<OnAbort::keep_waiting>(
        op, pe, word,
        [&] {
            seen = port::load<order::acquire, reach::system>(word);
            return seen >> 1 == static_cast<uint64_t>(landing.lap) + 1;
        },
        [&] { return port::load<order::relaxed, reach::system>(as<uint32_t>(p.completed_word)); });
    if (told && (seen & 1) != 0) {
        ibrc_failure(op);
        landing.release();
    }
    return told && (seen & 1) == 0;
}

// Posts a descriptor whose result lands, and waits for the first eight bytes of it.
OXSHMEM_OUTLINE uint64_t ibrc_fetch(Descriptor descriptor, int pe, Op op) {
    LandingSlot landing;
    if (!take_proxy_landing(landing, pe)) {
        return 0;
    }
    descriptor.words[0] |= kWorkFetch;
    descriptor.words[6] = landing_name(landing);
    if (!await_proxy_landing(landing, ibrc_post(descriptor, pe), pe, op)) {
        return 0;
    }
    const uint64_t bits = port::load<order::relaxed, reach::system>(as<uint64_t>(landing_address(landing)));
    landing.release();
    return bits;
}

// Where this lane's put goes among those of the lanes it converged with: a run of adjacent targets
// shares descriptors.
OXSHMEM_OUTLINE void ibrc_p(void *dst, uint64_t bits, uint32_t bytes, int pe) {
    const uint32_t queue = block_queue();
    const Located remote = locate_remote(dst, pe, card_of(queue));
    Posters group = posters(static_cast<uint64_t>(pe) << 8 | bytes);
    Descriptor descriptor(Work::write_inline, 0, remote, pe, queue);
    descriptor.words[2] = bits;
    uint32_t leaders = group.mask;
    uint32_t lanes = 1; // of this lane's descriptor, if it leads one
    if (group.size > 1) {
        const uint32_t self = 1u << port::lane_id();
        const uint64_t place = remote.address + (chunk_of(remote.address) << 48);
        const uint32_t starts = port::run_starts(group.mask, place, bytes);
        if (starts != group.mask) {
            const uint32_t most = kSlotPayload / bytes;
            const uint32_t first = 31 - port::leading_zeros(starts & (self | (self - 1)));
            const uint32_t position = port::count_ones(group.mask & (self - 1) & ~((1u << first) - 1));
            leaders = port::ballot(group.mask, position % most == 0);
            const uint32_t behind = group.mask & ~(self | (self - 1)); // lanes above this one
            const uint32_t next = leaders & behind;
            lanes += port::count_ones(next == 0 ? behind : behind & ((next & (0 - next)) - 1));
            uint32_t rest = behind;
            const uint32_t longest = most < group.size ? most : group.size;
            for (uint32_t i = 1; i < longest; ++i) {
                const uint32_t source = rest != 0 ? port::lowest_bit(rest) : port::lane_id();
                const uint64_t theirs = port::shfl(group.mask, bits, source);
                rest &= rest - 1;
                if (i < lanes) {
                    descriptor.words[2 + i * bytes / 8] |= theirs << i * bytes % 8 * 8;
                }
            }
        }
    }
    const uint64_t index = reserve_slots(group, port::count_ones(leaders), pe, descriptor, leaders, lanes);
    if (index == ~0ull) {
        return;
    }
    if ((leaders >> port::lane_id() & 1) != 0) {
        descriptor.words[1] |= static_cast<uint64_t>(lanes * bytes) << 48;
        descriptor.store(index + port::count_ones(leaders & ((1u << port::lane_id()) - 1)));
    }
    port::wake_host();
}

OXSHMEM_OUTLINE uint64_t ibrc_put(void *dst, const void *src, uint64_t bytes, int pe) {
    uint32_t queue = block_queue(), card = card_of(queue);
    uint64_t end = 0;
    char *to = static_cast<char *>(dst);
    const char *from = static_cast<const char *>(src);
    // The card reads what is registered.
    port::fence<order::acq_rel, reach::system>();
    while (bytes != 0) {
        const Located remote = locate_remote(to, pe, card);
        uint64_t part = least(bytes, remote.bytes);
        const Located local = part <= kSlotPayload ? Located{0, 0, 0} : locate_local(from, card);
        bool inlined = local.bytes == 0;
        part = least(part, inlined ? kSlotPayload : least(local.bytes, abi::kMaxMessageBytes));
        Descriptor descriptor(inlined ? Work::write_inline : Work::write, 0, remote, pe, queue);
        if (inlined) {
            descriptor.payload(from, static_cast<uint32_t>(part));
        } else {
            descriptor.transfer(local, part);
        }
        const uint64_t posted =
            keeping([&] { return ibrc_post(descriptor, pe); }, to, from, bytes, end, part, inlined, pe, queue, card);
        if (posted == 0) {
            return 0;
        }
        end = inlined ? end : posted;
        to += part;
        from += part;
        bytes -= part;
    }
    return end;
}

// Reads into registered memory are left to the card; others go through a landing slot and are
// complete on return.
OXSHMEM_OUTLINE uint64_t ibrc_get(void *dst, const void *src, uint64_t bytes, int pe, Op op) {
    uint32_t queue = block_queue(), card = card_of(queue);
    uint64_t end = 0;
    char *to = static_cast<char *>(dst);
    const char *from = static_cast<const char *>(src);
    port::fence<order::acq_rel, reach::system>();
    while (bytes != 0) {
        const Located remote = locate_remote(from, pe, card);
        const Located local = locate_local(to, card);
        uint64_t part = least(least(bytes, remote.bytes), abi::kMaxMessageBytes);
        if (local.bytes != 0) {
            part = least(part, local.bytes);
            Descriptor descriptor(Work::read, 0, remote, pe, queue);
            descriptor.transfer(local, part);
            end = keeping([&] { return ibrc_post(descriptor, pe); }, to, from, bytes, part, pe, op, queue, card);
            if (end == 0) {
                return 0;
            }
        } else {
            part = least(part, abi::kLandingBytes);
            // A bad address must not cost a landing slot.
            port::probe(to, part);
            LandingSlot landing;
            if (!take_proxy_landing(landing, pe)) {
                return 0;
            }
            Descriptor descriptor(Work::read, kWorkFetch, remote, pe, queue);
            descriptor.transfer({0, 0, 0}, part);
            descriptor.words[6] = landing_name(landing);
            const auto fetch = [&] { return await_proxy_landing(landing, ibrc_post(descriptor, pe), pe, op); };
            if (!keeping(fetch, landing, to, from, bytes, part, pe, op, queue, card)) {
                return 0;
            }
            port::copy_bytes(to, as<void>(landing_address(landing)), part);
            landing.release();
        }
        to += part;
        from += part;
        bytes -= part;
    }
    return end;
}

OXSHMEM_OUTLINE uint64_t ibrc_g(const void *src, uint32_t bytes, int pe) {
    const uint32_t queue = block_queue();
    Descriptor descriptor(Work::read, 0, locate_remote(src, pe, card_of(queue)), pe, queue);
    descriptor.transfer({0, 0, 0}, bytes);
    return ibrc_fetch(descriptor, pe, Op::g);
}

OXSHMEM_DEVICE Descriptor atomic_descriptor(void *target, const AtomicRequest &request, int pe) {
    const Work work = request.op == Opcode::atomic_fa   ? Work::fetch_add
                      : request.op == Opcode::atomic_cs ? Work::compare_swap
                      : request.op == Opcode::masked_fa ? Work::masked_fetch_add
                                                        : Work::masked_compare_swap;
    const uint32_t queue = atomic_queue();
    const Located remote = locate_remote(target, pe, card_of(queue));
    Descriptor descriptor(work, request.width == 8 ? kWorkEight : 0, remote, pe, queue);
    descriptor.words[2] = request.first;
    descriptor.words[3] = request.second;
    descriptor.words[4] = request.first_mask;
    descriptor.words[5] = request.second_mask;
    return descriptor;
}

OXSHMEM_OUTLINE void ibrc_atomic(void *target, const AtomicRequest &request, int pe) {
    ibrc_post(atomic_descriptor(target, request, pe), pe);
}

OXSHMEM_OUTLINE uint64_t ibrc_fetch_atomic(void *target, const AtomicRequest &request, int pe) {
    return ibrc_fetch(atomic_descriptor(target, request, pe), pe, Op::atomic);
}

// Ordered, so that it stays after what this block has put to `pe` on its queue, and two signals to
// one word arrive in their order.
OXSHMEM_OUTLINE void ibrc_signal(uint64_t *signal, uint64_t value, SignalOp op, int pe) {
    const Work work = op == SignalOp::set ? Work::write_inline : Work::fetch_add;
    const uint32_t queue = signal_queue(op);
    Descriptor descriptor(work, kWorkOrdered | kWorkEight, locate_remote(signal, pe, card_of(queue)), pe, queue);
    descriptor.words[2] = value;
    if (op == SignalOp::set) {
        descriptor.words[1] |= uint64_t{sizeof(uint64_t)} << 48;
    }
    // A PE that sees the signal may read this PE's memory.
    port::fence<order::acq_rel, reach::system>();
    ibrc_post(descriptor, pe);
}

// Makes the next request to each peer on this block's queue an ordered one. Lanes that converge
// share one descriptor.
OXSHMEM_OUTLINE void ibrc_fence() {
    Posters group = posters(0);
    const uint64_t index = reserve_slots(group, 1, -1);
    if (index != ~0ull && group.rank == 0) {
        Descriptor(Work::fence, 0, {0, 0, 0}, 0, block_queue()).store(index);
        port::wake_host();
    }
}

// Waits for everything that was posted before the call.
OXSHMEM_OUTLINE void ibrc_quiet() {
    // The number of slots that are reserved is not read before the caller has learnt of others'
    // posts.
    port::fence<order::acq_rel, reach::system>();
    ibrc_wait(port::load<order::relaxed, reach::device>(&proxy().head), -1, Op::quiet);
}

} // namespace oxshmem::detail
