// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Submission: from "lanes want to post" to "the doorbell rang", and completion. Posters never wait for other posters.
//
// Per QP: `reserved` counts blocks handed out, a stamp per block says in which lap it was last written, `rung` is where the
// last doorbell ended, `tickets` counts announcements since a ringer left, `completed` counts blocks whose completion was seen.
//
//   1. A group of lanes that use one QP reserves all its blocks by one atomic add. Only then may it have to wait, and only for
//      completions: earlier groups never wait for later ones, so the oldest can always go on.
//   2. Lanes write their WQEs, fence, and stamp their blocks.
//   3. The group's leader takes a ticket. If it is not the first it is done. If it is, it rings for every block of the ready
//   prefix,
//      the stamped blocks from `rung` on, whoever wrote them.
//   4. The ringer leaves by exchanging the ticket count that it saw before its last scan for zero. If the count moved meanwhile
//   the
//      exchange fails and it scans again, so a block is never left behind: its stamp precedes its ticket.
//
// A reserved block that is not yet stamped ends the prefix; its owner's ticket, which is taken later, rings for what lies
// behind. Visibility to the HCA: poster's stores, poster's fence, stamp, ringer's load of the stamp, system fence, doorbell.
#pragma once

#include "wqe.h"

namespace oxshmem::detail {

using abi::Qp;

// Lanes of a warp that post to the same QP together.
struct Group {
    uint32_t mask; // lanes
    uint32_t rank; // of the calling lane among them
    uint32_t size;
    uint32_t leader; // lowest lane

    OXSHMEM_DEVICE bool leads() const { return rank == 0; }
    OXSHMEM_DEVICE bool last() const { return rank + 1 == size; }
};

OXSHMEM_DEVICE Group make_group(uint32_t mask) {
    const uint32_t below = (1u << port::lane_id()) - 1;
    return {mask, port::count_ones(mask & below), port::count_ones(mask), port::lowest_bit(mask)};
}

// The QP that this block's operations to `pe` use: always the same one, so they stay in order without waiting.
OXSHMEM_DEVICE Qp &qp_for(int pe) {
    const abi::State &s = port::state();
    return as<Qp>(s.qps)[static_cast<uint64_t>(pe) * s.qps_per_pe + port::block_rank() % s.qps_per_pe];
}

// The lanes that are here together, use `qp` and need the same number of blocks.
OXSHMEM_DEVICE Group converge(const Qp &qp, uint32_t blocks) {
    return make_group(port::converged(static_cast<uint64_t>(blocks) << 32 | qp.index));
}

enum class Completion { none, progress, error };

// Looks once at the collapsed CQE and publishes what it says.
OXSHMEM_DEVICE Completion poll(Qp &qp, Op op) {
    const uint64_t before = port::load<order::acquire, reach::device>(&qp.completed);
    // Bytes 56-63 of the CQE: QPN, wqe_counter (big-endian), signature, op_own.
    const uint64_t tail = port::load<order::acquire, reach::system>(as<uint64_t>(qp.cqe + 56));
    const uint32_t opcode = static_cast<uint32_t>(tail >> 60);
    constexpr uint32_t kInvalid = 0xf, kRequestError = 0xd;
    if (opcode == kInvalid) {
        return Completion::none;
    }
    const uint32_t counter = be(static_cast<uint32_t>(tail >> 32)) >> 16;
    // The counter names the first block of the newest completed WQE, modulo 2^16. At most 2^15 blocks are in flight, so it lies
    // either in the 2^15 blocks from `before` on, or before them and says nothing new.
    const uint32_t ahead = (counter - low(before)) & 0xffff;
    if (opcode == kRequestError) {
        // mlx5_err_cqe: vendor_err_synd is byte 54, syndrome byte 55.
        const uint64_t syndromes = port::load<order::relaxed, reach::system>(as<uint64_t>(qp.cqe + 48));
        const uint64_t index = before + (ahead < 0x8000 ? ahead : 0);
        const uint64_t slot = qp.wq + (index & ((1ull << qp.depth_log2) - 1)) * abi::kBlockBytes;
        const uint64_t address = be(*as<uint64_t>(slot + 16));
        raise(ErrorCode::completion, op, qp.pe, address, be(*as<uint32_t>(slot)) & 0xff, qp.qpn, index,
              static_cast<uint32_t>(syndromes >> 56), static_cast<uint32_t>(syndromes >> 48) & 0xff);
        return Completion::error;
    }
    if (ahead >= 0x8000) {
        return Completion::none;
    }
    // A WQE of several blocks frees all of them: its size is in its control segment, which nobody overwrites while `completed`
    // has not passed it.
    const uint64_t first = before + ahead;
    const uint64_t slot = qp.wq + (first & ((1ull << qp.depth_log2) - 1)) * abi::kBlockBytes;
    const uint32_t segments = be(port::load<order::relaxed, reach::device>(as<uint32_t>(slot + 4))) & 0x3f;
    if (port::load<order::acquire, reach::device>(&qp.completed) != before) {
        return Completion::progress;
    }
    port::fetch_max<order::acq_rel, reach::device>(&qp.completed, first + (segments + 3) / 4);
    return Completion::progress;
}

// Waits until `blocks` blocks in all have completed. False: error or deadline.
OXSHMEM_DEVICE bool wait_completed(Qp &qp, uint64_t blocks, Op op) {
    bool ok = true;
    const auto done = [&] {
        if (port::load<order::acquire, reach::device>(&qp.completed) >= blocks) {
            return true;
        }
        if (poll(qp, op) == Completion::error) {
            ok = false;
            return true;
        }
        return port::load<order::acquire, reach::device>(&qp.completed) >= blocks;
    };
    return wait<OnAbort::keep_waiting>(op, qp.pe, as<void>(qp.wq), done) && ok;
}

// The blocks of a group.
struct Reservation {
    uint64_t first;
    bool ordered; // a fence was called before: the first request has to carry it
    bool ok;      // false: they never became free (the reason is recorded); the QP is of no more use
};

// Reserves `blocks` blocks for the whole group and waits until they are free. Every lane gets the answer.
OXSHMEM_DEVICE Reservation reserve(Qp &qp, const Group &group, uint32_t blocks) {
    uint64_t base = 0;
    if (group.leads()) {
        base = port::fetch_add<order::relaxed, reach::device>(&qp.reserved, static_cast<uint64_t>(blocks));
        if ((base & abi::kFencePending) != 0) {
            // Groups that reserve before this is done carry the fence too, which does no harm.
            port::fetch_and<order::relaxed, reach::device>(&qp.reserved, ~abi::kFencePending);
        }
        const uint64_t end = (base & ~abi::kFencePending) + blocks;
        const uint64_t depth = 1ull << qp.depth_log2;
        if (end > depth && !wait_completed(qp, end - depth, Op::queue_space)) {
            base = ~0ull;
        }
    }
    if (group.size > 1) {
        base = port::shfl(group.mask, base, group.leader);
    }
    return {base & ~abi::kFencePending, (base & abi::kFencePending) != 0, base != ~0ull};
}

// The slot of the request `offset` blocks behind the first of a reservation.
OXSHMEM_DEVICE Slot slot_at(const Qp &qp, const Reservation &reservation, uint32_t offset) {
    return {qp.wq, reservation.first + offset, (1u << qp.depth_log2) - 1, reservation.ordered && offset == 0};
}

OXSHMEM_DEVICE uint32_t stamp_of(const Qp &qp, uint64_t index) {
    return low(index >> qp.depth_log2) + 1;
}

OXSHMEM_DEVICE bool stamped(const Qp &qp, uint64_t index) {
    const uint64_t slot = index & ((1ull << qp.depth_log2) - 1);
    return port::load<order::relaxed, reach::device>(as<uint32_t>(qp.stamps) + slot) == stamp_of(qp, index);
}

OXSHMEM_DEVICE void stamp(const Qp &qp, uint64_t index) {
    const uint64_t slot = index & ((1ull << qp.depth_log2) - 1);
    port::store<order::relaxed, reach::device>(as<uint32_t>(qp.stamps) + slot, stamp_of(qp, index));
}

// The end of the ready prefix that begins at `from`, scanned by all lanes of the group, four stamps a lane and pass.
OXSHMEM_DEVICE uint64_t ready_prefix(const Qp &qp, const Group &group, uint64_t from) {
    const uint64_t limit = from + (1ull << qp.depth_log2);
    if constexpr (!port::kCoalesced) {
        while (from < limit && stamped(qp, from)) {
            ++from;
        }
        return from;
    } else {
        constexpr uint32_t kEach = 4;
        while (from < limit) {
            uint32_t ready = 0; // of the four blocks of this lane, in order
            const uint64_t mine = from + group.rank * kEach;
            uint32_t stamps[kEach];
            OXSHMEM_UNROLL
            for (uint32_t i = 0; i < kEach; ++i) {
                const uint64_t slot = (mine + i) & ((1ull << qp.depth_log2) - 1);
                stamps[i] = port::load<order::relaxed, reach::device>(as<uint32_t>(qp.stamps) + slot);
            }
            while (ready < kEach && stamps[ready] == stamp_of(qp, mine + ready)) {
                ++ready;
            }
            const uint32_t full = port::ballot(group.mask, ready == kEach);
            const uint32_t stopped = group.mask & ~full;
            if (stopped == 0) {
                from += group.size * kEach;
                continue;
            }
            const uint32_t stop = port::lowest_bit(stopped);
            const uint32_t passed = port::count_ones(group.mask & ((1u << stop) - 1));
            return from + passed * kEach + port::shfl(group.mask, ready, stop);
        }
        return from;
    }
}

// Rings for the ready prefix until no ticket is left. Called by the lanes of the group that drew the first ticket (by its
// leader alone where lanes do not scan together).
OXSHMEM_DEVICE void ring(Qp &qp, const Group &group) {
    const bool leads = group.leads();
    const uint32_t share = 1u << (qp.depth_log2 - 2);
    for (;;) {
        uint32_t seen = 0;
        uint64_t from = 0;
        if (leads) {
            seen = port::load<order::acquire, reach::device>(&qp.tickets);
            from = port::load<order::relaxed, reach::device>(&qp.rung);
        }
        if (port::kCoalesced && group.size > 1) {
            from = port::shfl(group.mask, from, group.leader);
        }
        uint64_t end = ready_prefix(qp, group, from);
        // While others still announce blocks and the prefix is short, gather: one doorbell for more of them.
        for (;;) {
            uint32_t now = seen;
            if (leads) {
                now = port::load<order::acquire, reach::device>(&qp.tickets);
            }
            if (port::kCoalesced && group.size > 1) {
                now = port::shfl(group.mask, now, group.leader);
                seen = port::shfl(group.mask, seen, group.leader);
            }
            if (now == seen || end - from >= share) {
                break;
            }
            seen = now;
            end = ready_prefix(qp, group, end);
        }
        uint32_t left = 0;
        if (leads) {
            if (end != from) {
                port::store<order::relaxed, reach::device>(&qp.rung, end);
                port::store<order::relaxed, reach::device>(as<uint32_t>(qp.dbr), be(low(end) & 0xffff));
                port::fence<order::acq_rel, reach::system>();
                const uint64_t first_word = be(low(end) << 8 & 0xffff00);
                const uint64_t second_word = be(qp.qpn << 8);
                port::mmio_store(as<uint64_t>(qp.doorbell), second_word << 32 | first_word);
                qp.doorbells += 1;
            }
            left = port::compare_exchange<order::acq_rel, reach::device>(&qp.tickets, seen, 0u) == seen ? 1 : 0;
        }
        if (port::kCoalesced && group.size > 1) {
            left = port::shfl(group.mask, left, group.leader);
        }
        if (left != 0) {
            return;
        }
    }
}

// Announces the group's blocks: [first, first + blocks), all written. Every lane of the group calls.
OXSHMEM_DEVICE void submit(Qp &qp, const Group &group, uint64_t first, uint32_t blocks) {
    port::fence<order::acq_rel, reach::device>();
    if (group.size > 1) {
        port::sync_warp(group.mask);
    }
    if constexpr (!port::kCoalesced) {
        if (!group.leads()) {
            return;
        }
        for (uint32_t i = 0; i < blocks; ++i) {
            stamp(qp, first + i);
        }
    } else {
        for (uint32_t i = group.rank; i < blocks; i += group.size) {
            stamp(qp, first + i);
        }
        if (group.size > 1) {
            port::sync_warp(group.mask);
        }
    }
    uint32_t ticket = 0;
    if (group.leads()) {
        uint64_t *used = as<uint64_t>(port::state().used) + qp.index / 64;
        const uint64_t bit = 1ull << qp.index % 64;
        if ((port::load<order::relaxed, reach::device>(used) & bit) == 0) {
            port::fetch_or<order::acq_rel, reach::device>(used, bit);
        }
        ticket = port::fetch_add<order::acq_rel, reach::device>(&qp.tickets, 1u);
    }
    if (port::kCoalesced && group.size > 1) {
        ticket = port::shfl(group.mask, ticket, group.leader);
    }
    if (ticket == 0) {
        ring(qp, group);
    }
}

// Lets every lane post one sequence of work requests that takes `blocks` blocks, together with the lanes that converge here.
// `write(slot, signaled)` writes it. Returns the 64-bit index behind the lane's own last block, or 0 if nothing could be
// posted.
template <class Write> OXSHMEM_DEVICE uint64_t post(Qp &qp, uint32_t blocks, Write write) {
    const Group group = converge(qp, blocks);
    const Reservation reservation = reserve(qp, group, blocks * group.size);
    if (!reservation.ok) {
        return 0;
    }
    write(slot_at(qp, reservation, blocks * group.rank), group.last());
    submit(qp, group, reservation.first, blocks * group.size);
    return reservation.first + blocks * (group.rank + 1);
}

// A landing slot: registered memory for one result of up to kLandingBytes. Taken before blocks are reserved, since its previous
// user may itself still have to reserve.
struct Landing {
    uint64_t slot;
    uint32_t lap;

    OXSHMEM_DEVICE uint64_t address(const Qp &qp) const { return qp.landing + slot * abi::kLandingBytes; }
    OXSHMEM_DEVICE Located located(const Qp &qp) const { return {port::state().slab_lkey, address(qp), abi::kLandingBytes}; }
    OXSHMEM_DEVICE void release(const Qp &qp) const {
        port::store<order::release, reach::device>(as<uint32_t>(qp.laps) + slot, lap + 1);
    }
};

OXSHMEM_DEVICE bool take_landing(Qp &qp, Landing &landing) {
    const uint64_t ticket = port::fetch_add<order::relaxed, reach::device>(&qp.landing_head, uint64_t{1});
    landing.slot = ticket & ((1ull << qp.landing_log2) - 1);
    landing.lap = low(ticket >> qp.landing_log2);
    uint32_t *lap = as<uint32_t>(qp.laps) + landing.slot;
    return wait<OnAbort::keep_waiting>(Op::landing, qp.pe, lap,
                                       [&] { return port::load<order::acquire, reach::device>(lap) == landing.lap; });
}

// Where results go that nobody wants.
OXSHMEM_DEVICE Located discard(const Qp &qp) {
    return {port::state().slab_lkey, qp.landing + (abi::kLandingBytes << qp.landing_log2), abi::kLandingBytes};
}

} // namespace oxshmem::detail
