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

#include "../group.h"
#include "../landing.h"
#include "../profile.h"
#include "../words.h"

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
    flush = 9,
};

constexpr uint64_t kWorkOrdered = 1 << 12;
constexpr uint64_t kWorkFetch = 1 << 13;
constexpr uint64_t kWorkEight = 1 << 14;
constexpr uint32_t kSlotPayload = 48;

OXSHMEM_DEVICE abi::Proxy &proxy() {
    return *as<abi::Proxy>(port::state().proxy);
}

// Waits until the word at `address`, a count of the proxy's that only grows, is at least `least`.
// One waiter asks host memory; the others look at what it has seen, since every question crosses
// PCIe.
OXSHMEM_LAZY OXSHMEM_DEVICE bool wait_word(uint64_t address, abi::ProxyWord &word, uint64_t mask, uint64_t least, int pe,
                                           Op op) {
    const auto known = [&] { return (port::load<order::acquire, reach::device>(&word.seen) & mask) >= least; };
    if (known()) {
        return true;
    }
    const auto look = [&] {
        if (port::load<order::relaxed, reach::device>(&word.polled) == 0 &&
            port::exchange<order::relaxed, reach::device>(&word.polled, uint64_t{1}) == 0) {
            const uint64_t now = port::load<order::acquire, reach::system>(as<uint64_t>(address));
            port::raise_to<order::release, reach::device>(&word.seen, now);
            if (&word == &proxy().completed) {
                profile_completion(0, -1, now & mask);
            }
            port::store<order::release, reach::device>(&word.polled, uint64_t{0});
            return (now & mask) >= least;
        }
        return known();
    };
    return wait<OnAbort::keep_waiting>(op, pe, as<void>(address), look,
                                       [&] { return low(port::load<order::relaxed, reach::device>(&word.seen)); });
}

// Whether the ring is broken; then that is reported.
OXSHMEM_LAZY OXSHMEM_DEVICE bool ring_is_broken(Op op) {
    abi::Proxy &p = proxy();
    if (port::load<order::acquire, reach::device>(&p.taken.seen) < abi::kBroken) {
        return false;
    }
    report_breakage(p.breakage, op);
    return true;
}

// Breaks the ring: the caller gives up slots that it has reserved, and the proxy takes none after
// those.
OXSHMEM_LAZY OXSHMEM_NOINLINE void break_ring(int pe) {
    abi::Proxy &p = proxy();
    abi::ErrorRecord error;
    describe(error, ErrorCode::timeout, Op::queue_space, pe, p.taken_word, 0);
    break_queue(&p.taken.seen, p.breakage, error);
}

// Waits until slots may be reused. False: they never will be, and the ring is broken.
OXSHMEM_LAZY OXSHMEM_NOINLINE bool wait_slots(uint64_t taken, int pe) {
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
template <class... T> OXSHMEM_DEVICE uint64_t reserve_slots(Group &group, uint32_t count, int pe, T &...live) {
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
    // Only a fence and a flush have no remote side.
    OXSHMEM_DEVICE Descriptor(Work work, uint64_t flags, const Located &remote, int pe, uint32_t queue) : words{} {
        words[0] = static_cast<uint64_t>(remote.key) << 32 | static_cast<uint64_t>(static_cast<uint32_t>(pe)) << 16 | flags |
                   static_cast<uint64_t>(work) << 8;
        words[1] = static_cast<uint64_t>(queue) << 56 | remote.address;
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

// Returns the queue of those to its peer that a descriptor is for.
OXSHMEM_DEVICE uint32_t queue_of(const Descriptor &descriptor) {
    return low(descriptor.words[1] >> 56) & 0x3f;
}

// Lets every lane post its descriptor, together with the lanes that converge here. Returns the
// index after it, or 0.
OXSHMEM_LAZY OXSHMEM_OUTLINE uint64_t ibrc_post(const Descriptor &descriptor, int pe) {
    Group group = make_group(port::converged(0));
    const uint64_t first = reserve_slots(group, group.size, pe);
    if (first == ~0ull) {
        return 0;
    }
    profile_request(queue_of(descriptor), pe, first + group.rank + 1);
    descriptor.store(first + group.rank);
    port::wake_host();
    return first + group.rank + 1;
}

// Records a failure that the proxy has published, unless it was recorded before.
OXSHMEM_LAZY OXSHMEM_NOINLINE void ibrc_failure(Op op) {
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
OXSHMEM_LAZY OXSHMEM_OUTLINE bool ibrc_wait(uint64_t end, int pe, Op op) {
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
OXSHMEM_LAZY OXSHMEM_DEVICE bool take_proxy_landing(LandingSlot &landing, int pe) {
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
OXSHMEM_LAZY OXSHMEM_OUTLINE bool await_proxy_landing(LandingSlot landing, uint64_t end, int pe, Op op) {
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

} // namespace oxshmem::detail
