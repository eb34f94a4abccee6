// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Operations over IBRC, each by one lane, or by lanes that combine where they converge.
#pragma once

#include "ring.h"

namespace oxshmem::detail {

// Posts a descriptor whose result lands, and waits for the first eight bytes of it.
OXSHMEM_LAZY OXSHMEM_OUTLINE uint64_t ibrc_fetch(Descriptor descriptor, int pe, Op op) {
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
OXSHMEM_LAZY OXSHMEM_OUTLINE void ibrc_p(void *dst, uint64_t bits, uint32_t bytes, int pe) {
    const uint32_t queue = block_queue();
    const Located remote = locate_remote(dst, pe, card_of(queue, pe));
    Group group = make_group(port::converged(static_cast<uint64_t>(pe) << 8 | bytes));
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
    profile_request(queue, pe, index + port::count_ones(leaders));
    if ((leaders >> port::lane_id() & 1) != 0) {
        descriptor.words[1] |= static_cast<uint64_t>(lanes * bytes) << 48;
        descriptor.store(index + port::count_ones(leaders & ((1u << port::lane_id()) - 1)));
    }
    port::wake_host();
}

OXSHMEM_LAZY OXSHMEM_OUTLINE uint64_t ibrc_put(void *dst, const void *src, uint64_t bytes, int pe) {
    uint32_t queue = block_queue(), card = card_of(queue, pe);
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
OXSHMEM_LAZY OXSHMEM_OUTLINE uint64_t ibrc_get(void *dst, const void *src, uint64_t bytes, int pe, Op op) {
    uint32_t queue = block_queue(), card = card_of(queue, pe);
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

OXSHMEM_LAZY OXSHMEM_OUTLINE uint64_t ibrc_g(const void *src, uint32_t bytes, int pe) {
    const uint32_t queue = block_queue();
    Descriptor descriptor(Work::read, 0, locate_remote(src, pe, card_of(queue, pe)), pe, queue);
    descriptor.transfer({0, 0, 0}, bytes);
    return ibrc_fetch(descriptor, pe, Op::g);
}

OXSHMEM_DEVICE Descriptor atomic_descriptor(void *target, const AtomicRequest &request, int pe) {
    const Work work = request.op == Opcode::atomic_fa   ? Work::fetch_add
                      : request.op == Opcode::atomic_cs ? Work::compare_swap
                      : request.op == Opcode::masked_fa ? Work::masked_fetch_add
                                                        : Work::masked_compare_swap;
    const uint32_t queue = atomic_queue();
    const Located remote = locate_remote(target, pe, card_of(queue, pe));
    Descriptor descriptor(work, request.width == 8 ? kWorkEight : 0, remote, pe, queue);
    descriptor.words[2] = request.first;
    descriptor.words[3] = request.second;
    descriptor.words[4] = request.first_mask;
    descriptor.words[5] = request.second_mask;
    return descriptor;
}

OXSHMEM_LAZY OXSHMEM_OUTLINE void ibrc_atomic(void *target, const AtomicRequest &request, int pe) {
    ibrc_post(atomic_descriptor(target, request, pe), pe);
}

OXSHMEM_LAZY OXSHMEM_OUTLINE uint64_t ibrc_fetch_atomic(void *target, const AtomicRequest &request, int pe) {
    return ibrc_fetch(atomic_descriptor(target, request, pe), pe, Op::atomic);
}

// Ordered, so that it stays after what this block has put to `pe` on its queue, and two signals to
// one word arrive in their order.
OXSHMEM_LAZY OXSHMEM_OUTLINE void ibrc_signal(uint64_t *signal, uint64_t value, SignalOp op, int pe) {
    const Work work = op == SignalOp::set ? Work::write_inline : Work::fetch_add;
    const uint32_t queue = queue_for(DefaultContext{}, use_of(op));
    Descriptor descriptor(work, kWorkOrdered | kWorkEight, locate_remote(signal, pe, card_of(queue, pe)), pe, queue);
    descriptor.words[2] = value;
    if (op == SignalOp::set) {
        descriptor.words[1] |= uint64_t{sizeof(uint64_t)} << 48;
    }
    // A PE that sees the signal may read this PE's memory.
    port::fence<order::acq_rel, reach::system>();
    ibrc_post(descriptor, pe);
}

// Posts a descriptor that moves nothing. Lanes that converge share one. Returns the index after it,
// or 0.
OXSHMEM_LAZY OXSHMEM_DEVICE uint64_t ibrc_command(Work work) {
    Group group = make_group(port::converged(0));
    const uint64_t index = reserve_slots(group, 1, -1);
    if (index == ~0ull) {
        return 0;
    }
    if (group.rank == 0) {
        Descriptor(work, 0, {0, 0, 0}, 0, block_queue()).store(index);
        port::wake_host();
    }
    return index + 1;
}

// Makes the next request to each peer on this block's queue an ordered one.
OXSHMEM_LAZY OXSHMEM_OUTLINE void ibrc_fence() {
    ibrc_command(Work::fence);
}

// Waits for everything that was posted before the call.
OXSHMEM_LAZY OXSHMEM_OUTLINE void ibrc_quiet() {
    abi::Proxy &p = proxy();
    // The number of slots that are reserved is not read before the caller has learnt of others'
    // posts.
    port::fence<order::acq_rel, reach::system>();
    uint64_t end = port::load<order::relaxed, reach::device>(&p.head);
    if (port::state().flush_on_quiet != 0 && end != 0) {
        // A flush is after all of those if its slot is.
        const uint64_t flushed = port::load<order::relaxed, reach::device>(&p.flushed);
        if (flushed < end) {
            end = ibrc_command(Work::flush);
            if (end == 0) {
                return;
            }
            port::raise_to<order::relaxed, reach::device>(&p.flushed, end);
        } else {
            end = flushed;
        }
    }
    ibrc_wait(end, -1, Op::quiet);
}

} // namespace oxshmem::detail
