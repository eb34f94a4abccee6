// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Staged puts: where the card is far from the payload, the posting lanes copy it by stores to the
// QP's staging ring, which lies in memory near the card, and the work request reads it there.
//
// The ring needs no counter of its own. A piece takes one block of the queue, and the slot whose
// number is the block's index modulo the number of slots. So slots are handed out in the order of
// reservations, whichever groups post to the QP, and the slot of block i is free once block
// i - slots has completed, which the QP counts already. A ring has no more slots than the queue has
// blocks; requests that are not staged pass over their slots.
//
// The path is seldom taken, and must not cost the kernels of other puts registers: what a put needs
// between its steps is in local memory, and each step is a function of its own.
//
// Nothing waits in a circle: a group waits for blocks before its own alone, and those were reserved
// by groups that wait for still earlier ones, as where the queue is full (submit.h). The lanes copy
// between reserving and submitting. Meanwhile blocks with higher indices cannot be rung for, and
// those with lower ones are rung for as ever.
//
// A fence of system scope after the copy comes before the stamp and the doorbell: the ring is in
// memory of another GPU or of the host, which a fence of device scope need not reach, and the group
// that rings may be another one.
#pragma once

#include "../copy.h"
#include "../staged.h"
#include "submit.h"

namespace oxshmem::detail {

// Where the payload of the block at `index` is staged.
OXSHMEM_DEVICE uint64_t slot_of(const Qp &qp, uint64_t index) {
    return qp.ring + (index & ((1ull << qp.ring_log2) - 1)) * qp.slot_bytes;
}

// Waits until the slot of the block at `index`, which the calling lane has reserved, is free.
// False: it never will be, and the QP is broken.
template <class Queue> OXSHMEM_DEVICE bool await_slot(Queue queue, Qp &qp, uint64_t index) {
    const uint64_t slots = 1ull << qp.ring_log2, known = known_completed(qp);
    const uint64_t wanted = index < slots ? 0 : index + 1 - slots;
    if (known >= wanted && known < abi::kBroken) {
        return true;
    }
    if (is_private(queue) && known < abi::kBroken) {
        // What is not rung for never completes.
        ring_pending(qp, port::read(&qp.rung), index);
    }
    return wait_space(qp, wanted, Op::staging, !is_private(queue));
}

// Slots begin at multiples of this many bytes. A piece is as aligned in its slot as in the source,
// so that lanes copy whole units.
constexpr uint32_t kStagedUnit = sizeof(port::vec16);

// A put through a staging ring, as one of its lanes sees it. It is in local memory, and the
// functions below take its address: what they find here occupies no registers while others are
// called.
template <class Queue> struct StagedPut {
    Queue queue;
    int pe;
    uint32_t warps; // that take parts in turn, each of which fits a slot
    char *dst;      // of the whole put, as the next two
    const char *src;
    uint64_t bytes;
    uint64_t part;    // the number of the part that the lane's warp puts
    uint64_t at, end; // what is left of it, from the beginning of the put
    uint32_t piece;   // bytes of the piece at `at`
    uint64_t told;    // what tell() takes into a reservation, for the lane that reserves and submits
    uint64_t slot;    // where the piece is staged; 0: it cannot be posted, and the reason is recorded

    OXSHMEM_DEVICE Qp &qp() const { return qp_of(pe, queue); }
};

// Measures the piece at `at`, which lies in one chunk of the heap.
template <class Queue> OXSHMEM_DEVICE void measure_piece(StagedPut<Queue> &put) {
    put.piece = static_cast<uint32_t>(least(put.end - put.at, left_in_chunk(offset_of(put.dst + put.at))));
}

// Begins a part. Parts end where the source is aligned to a unit, so that a slot has room for what
// comes before the first one.
template <class Queue> OXSHMEM_DEVICE void begin_part(StagedPut<Queue> &put, uint64_t part) {
    const uint64_t slot = put.qp().slot_bytes, skew = reinterpret_cast<uint64_t>(put.src) % kStagedUnit;
    put.part = part;
    put.at = part == 0 ? 0 : least(part * slot - skew, put.bytes);
    put.end = least((part + 1) * slot - skew, put.bytes);
    measure_piece(put);
}

// Begins the first part of the lane's warp.
template <class Queue> OXSHMEM_NOINLINE void begin_pieces(StagedPut<Queue> &put, uint32_t warp) {
    begin_part(put, warp);
}

// Goes on to the next piece of the lane's warp. There is none where `at` is at the put's end.
template <class Queue> OXSHMEM_NOINLINE void next_piece(StagedPut<Queue> &put) {
    put.at += put.piece;
    if (put.at != put.end) {
        measure_piece(put);
    } else {
        begin_part(put, put.part + put.warps);
    }
}

// Reserves a block and its slot for the piece, by one lane for those that copy with it. The lane
// has to call submit_staged, unless the slot is 0.
template <class Queue> OXSHMEM_NOINLINE void reserve_staged(StagedPut<Queue> &put) {
    const char *const from = put.src + put.at;
    // A bad address ends the kernel here on the `cpu` device, before a block is reserved.
    port::probe(from, put.piece);
    put.slot = 0;
    const Queue queue = put.queue;
    Qp &qp = put.qp();
    Group alone = make_group(1u << port::lane_id());
    if (!hold(queue, qp, alone)) {
        return;
    }
    Reservation r = reservation_on(qp);
    const Entry entry = enter(queue, qp, 1);
    put.told = settle(queue, qp, alone, r, 1, entry);
    const uint64_t index = put.told & ~(kToldOrdered | kToldBaton);
    if (put.told != kToldFailed && await_slot(queue, qp, index)) {
        put.slot = slot_of(qp, index) + reinterpret_cast<uint64_t>(from) % kStagedUnit;
    } else {
        let_go(queue, qp, alone);
    }
}

// Copies a piece to its slot. Other copies also take addresses that are aligned differently, by
// functions that they call, and together need more registers than are left here. A lane has
// `kInFlight` loads in flight; where that is more than one, all lanes of a warp call, so that the
// distances of these need no registers.
template <class Copiers, uint32_t kInFlight> OXSHMEM_OUTLINE void copy_staged(uint64_t slot, const char *src, uint32_t bytes) {
    using Unit = port::vec16;
    if constexpr (port::kCoalesced) {
        char *const to = as<char>(slot);
        const uint32_t rank = Copiers::rank(), lanes = kInFlight > 1 ? Copiers::kLanes : Copiers::size();
        const uint32_t step = lanes * kStagedUnit;
        uint32_t at = static_cast<uint32_t>(least((0 - slot) % kStagedUnit, bytes));
        OXSHMEM_NO_UNROLL
        for (uint32_t i = rank; i < at; i += lanes) {
            port::write(to + i, port::read(src + i));
        }
        at += rank * kStagedUnit;
        OXSHMEM_NO_UNROLL
        for (; at + (kInFlight - 1) * step + kStagedUnit <= bytes; at += kInFlight * step) {
            Unit units[kInFlight];
            OXSHMEM_UNROLL
            for (uint32_t k = 0; k < kInFlight; ++k) {
                units[k] = port::read(reinterpret_cast<const Unit *>(src + at + k * step));
            }
            OXSHMEM_UNROLL
            for (uint32_t k = 0; k < kInFlight; ++k) {
                port::write(reinterpret_cast<Unit *>(to + at + k * step), units[k]);
            }
        }
        OXSHMEM_NO_UNROLL
        for (; at + kStagedUnit <= bytes; at += step) {
            port::write(reinterpret_cast<Unit *>(to + at), port::read(reinterpret_cast<const Unit *>(src + at)));
        }
        // What is left is less than a unit, and one lane's.
        OXSHMEM_NO_UNROLL
        for (; at < bytes; ++at) {
            port::write(to + at, port::read(src + at));
        }
    } else {
        copy<Copiers>(as<void>(slot), src, bytes);
    }
}

// Writes and submits the work request of the piece, which lies in its slot.
template <class Queue> OXSHMEM_NOINLINE void submit_staged(StagedPut<Queue> &put) {
    const Queue queue = put.queue;
    Qp &qp = put.qp();
    const Group alone = make_group(1u << port::lane_id());
    Reservation r = reservation_on(qp);
    tell(alone, r, put.told);
    profile_request(r.qpn, qp.pe, r.first + 1);
    const Located remote = locate_remote(put.dst + put.at, qp.pe, card_of(queue, qp.pe));
    const uint32_t bytes = put.piece;
    slot_at(r, 0).transfer(Opcode::rdma_write, remote, {qp.ring_key, put.slot, bytes}, bytes, true);
    port::fence<order::acq_rel, reach::system>();
    port::add_to<order::relaxed, reach::device>(&qp.staged, uint64_t{1});
    port::add_to<order::relaxed, reach::device>(&qp.staged_bytes, uint64_t{bytes});
    submit(queue, qp, alone, r, 1, false, [&] { stamp(r, 0, 0); });
}

// The lanes that copy a piece together: a thread, or a warp.
template <bool kWarp> struct copiers_of { using type = thread_scope; };
template <> struct copiers_of<true> { using type = warp_scope; };

// Puts through the staging ring. All lanes of the scope call; each warp takes parts in turn, and
// posts their pieces. When a lane returns, its warp's pieces are in the ring, so once all lanes
// have returned the source may be reused. A scope of several warps that has a context's QP for
// itself leaves it to its first warp, since its warps would have to take turns.
template <class Scope, class C>
OXSHMEM_OUTLINE void staged_put(C context, void *dst, const void *src, uint64_t bytes, int pe, Use use) {
    using Copiers = typename copiers_of<(Scope::kLanes > 1)>::type;
    const uint32_t warp = Scope::rank() / Scope::kLanes;
    StagedPut<decltype(queue_for(context, use))> put;
    put.queue = queue_for(context, use), put.pe = pe;
    put.warps = (Scope::size() + Scope::kLanes - 1) / Scope::kLanes;
    if constexpr (kOfContext<C>) {
        if (is_private(context)) {
            if (warp != 0) {
                return;
            }
            put.queue = by_leader<Scope>(context), put.warps = 1;
        }
    }
    put.dst = static_cast<char *>(dst), put.src = static_cast<const char *>(src), put.bytes = bytes;
    begin_pieces(put, warp);
    while (put.at != put.bytes) {
        // A lane that is elsewhere could wait for what is rung for only once this put goes on.
        Copiers::sync();
        if (Copiers::rank() == 0) {
            reserve_staged(put);
        }
        if constexpr (Copiers::kLanes > 1) {
            put.slot = port::shfl(port::kWholeWarp, put.slot, 0);
        }
        if (put.slot == 0) {
            return;
        }
        if (Copiers::size() == Copiers::kLanes) {
            copy_staged<Copiers, 8>(put.slot, put.src + put.at, put.piece);
        } else {
            copy_staged<Copiers, 1>(put.slot, put.src + put.at, put.piece);
        }
        // The leader sees what the others stored, and its fence covers it.
        Copiers::sync();
        if (Copiers::rank() == 0) {
            submit_staged(put);
        }
        next_piece(put);
    }
}

} // namespace oxshmem::detail
