// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// The gate of a QP, stamps, and the baton: how posts that overlap share doorbells (see submit.h).
#pragma once

#include "private.h"

namespace oxshmem::detail {

// Whether a group that reserved (or entered again) has the baton by that, given what was in the
// gate before.
OXSHMEM_DEVICE bool got_baton(uint64_t gate) {
    return (gate & (kGateGroups | abi::kGateBatonFree)) == 0;
}

// Whether it has, but may not ring yet (see leave_alone_early).
OXSHMEM_DEVICE bool is_early(uint64_t gate) {
    return got_baton(gate) && (gate & abi::kGateRinging) != 0;
}

// The stamp of a written block: the lap, and above it how many blocks of its lane follow. A
// doorbell covers all blocks of a lane or none, so it never ends in the middle of a WQE.
using abi::kStampLapBits;

OXSHMEM_DEVICE uint32_t lap_in(uint32_t stamp) {
    return stamp & ((1u << kStampLapBits) - 1);
}

// Where the stamps of a QP are.
struct StampArray {
    uint64_t base;
    uint32_t depth_log2;

    OXSHMEM_DEVICE uint32_t lap_of(uint64_t index) const {
        return (low(index >> depth_log2) + 1) & ((1u << kStampLapBits) - 1);
    }
    OXSHMEM_DEVICE bool is_of_lap(uint64_t index, uint32_t stamp) const { return lap_in(stamp) == lap_of(index); }
    OXSHMEM_DEVICE uint32_t *at(uint64_t index) const { return as<uint32_t>(base) + (index & ((1ull << depth_log2) - 1)); }
};

// Whether the lanes of a group scan and ring together: a whole warp does. In a part of a warp the
// leader alone does, because other parts may be anywhere in the same code.
OXSHMEM_DEVICE bool works_together(const Group &group) {
    return port::kCoalesced && group.mask == port::kWholeWarp;
}

// Lanes that scan and ring: a whole warp together, or one lane. It is all that they need of their
// group, in few registers.
struct Ringers {
    bool together;

    OXSHMEM_DEVICE uint32_t lane() const { return together ? port::lane_id() : 0; }
    OXSHMEM_DEVICE bool leads() const { return lane() == 0; }
    // A value of the leader for all of them.
    template <class T> OXSHMEM_DEVICE T from_leader(T value) const {
        return together ? port::shfl(port::kWholeWarp, value, 0) : value;
    }
};

// Returns the end of the ready prefix that ends at `end` or before: without the blocks of a lane
// that has not stamped all of its own. `last`: the stamp of the block before `end`.
OXSHMEM_DEVICE uint64_t whole_prefix(const StampArray &stamps, uint64_t from, uint64_t end, uint32_t last) {
    while (last >> kStampLapBits != 0) {
        --end;
        if (end == from) {
            return from;
        }
        last = port::load<order::relaxed, reach::device>(stamps.at(end - 1));
    }
    return end;
}

// Returns which of four stamps, of blocks from `first` on, are not of their lap, a bit for each. A
// block before `from` has been rung for, by a group that need not have stamped it, so its stamp is
// never missing.
OXSHMEM_DEVICE uint32_t missing_stamps(const StampArray &stamps, const port::vec16 &found, uint64_t first, uint64_t from) {
    const uint32_t lap = stamps.lap_of(first); // of all four
    const uint32_t before = from > first ? low(from - first) : 0;
    const uint32_t missing = (lap_in(found.x) != lap ? 1u : 0u) | (lap_in(found.y) != lap ? 2u : 0u) |
                             (lap_in(found.z) != lap ? 4u : 0u) | (lap_in(found.w) != lap ? 8u : 0u);
    return missing & ~0u << before;
}

// Returns what ready_prefix does, by a whole warp with all lanes. Each lane looks at four stamps by
// one load, and at `kRows` times as many before it sees the first.
OXSHMEM_DEVICE uint64_t ready_prefix_by_warp(const StampArray &stamps, uint64_t from) {
    static_assert(abi::kMinDepthLog2 >= 2, "four stamps lie beside each other");
    constexpr uint32_t kRow = 32 * 4;
    constexpr uint32_t kRows = 2; // with more, kernels have more than 64 registers
    const uint64_t limit = from + (1ull << stamps.depth_log2);
    for (uint64_t pass = from & ~uint64_t{3}; pass < limit; pass += kRows * kRow) {
        const uint64_t mine = pass + port::lane_id() * 4;
        port::vec16 rows[kRows];
        OXSHMEM_UNROLL
        for (uint32_t row = 0; row < kRows; ++row) {
            rows[row] = port::load_four<order::relaxed, reach::device>(stamps.at(mine + row * kRow));
        }
        OXSHMEM_UNROLL
        for (uint32_t row = 0; row < kRows; ++row) {
            const port::vec16 &found = rows[row];
            const uint32_t missing = missing_stamps(stamps, found, mine + row * kRow, from);
            const uint32_t stopped = ~port::ballot(port::kWholeWarp, missing == 0);
            if (stopped != 0) {
                const uint32_t stop = port::lowest_bit(stopped);
                const uint32_t ready = stop * 4 + port::shfl(port::kWholeWarp, port::lowest_bit(missing | 16), stop);
                const uint64_t end = pass + row * kRow + ready;
                if (end <= from) {
                    return from;
                }
                const uint32_t at = ready - 1;
                const uint32_t word = at % 4 == 0 ? found.x : at % 4 == 1 ? found.y : at % 4 == 2 ? found.z : found.w;
                const uint32_t last = ready != 0 ? port::shfl(port::kWholeWarp, word, at / 4)
                                                 : port::load<order::relaxed, reach::device>(stamps.at(end - 1));
                return whole_prefix(stamps, from, end, last);
            }
        }
    }
    return limit;
}

// Returns the end of the ready prefix that begins at `from`: of the stamped blocks there, without
// those of a lane that has not stamped all of its own.
OXSHMEM_DEVICE uint64_t ready_prefix(const StampArray &stamps, Ringers ringers, uint64_t from) {
    if (ringers.together) {
        return ready_prefix_by_warp(stamps, from);
    }
    const uint64_t limit = from + (1ull << stamps.depth_log2);
    uint64_t end = from;
    for (uint64_t next = from; next < limit; ++next) {
        const uint32_t stamp = port::load<order::relaxed, reach::device>(stamps.at(next));
        if (!stamps.is_of_lap(next, stamp)) {
            break;
        }
        end = stamp >> kStampLapBits == 0 ? next + 1 : end;
    }
    return end;
}

// Leaves the gate, by one lane of a group that has stamped its blocks. Returns false if the baton
// is free. Relaxed, since the baton's holder does not leave the gate empty before it has seen all
// stamps.
OXSHMEM_DEVICE bool leave(Qp &qp) {
    return (port::fetch_add<order::relaxed, reach::device>(&qp.gate, 0 - abi::kGateOneGroup) & abi::kGateBatonFree) == 0;
}

// Leaves the gate if it is `alone`: as it was when the calling group, which has rung for its
// blocks, had entered an empty one.
OXSHMEM_DEVICE bool leave_alone(Qp &qp, uint64_t alone) {
    // Release: a card must not see this doorbell after the next group's (the same is said of CPUs
    // in rdma-core, providers/mlx5/qp.c, where it flushes its doorbell).
    return port::compare_exchange<order::release, reach::device>(&qp.gate, alone, alone - abi::kGateOneGroup) == alone;
}

// The same by a lane that posts by itself, and waits for each step. The fence takes as long as the
// atomic, so both are on their way together: kGateRinging keeps the next group from ringing until
// the fence has ended. Warps that take turns would have to wait for that too often.
OXSHMEM_DEVICE bool leave_alone_early(Qp &qp, uint64_t alone) {
    const uint64_t ringing = alone - abi::kGateOneGroup + abi::kGateRinging;
    const bool left = port::compare_exchange<order::relaxed, reach::device>(&qp.gate, alone, ringing) == alone;
    port::fence<order::release, reach::device>();
    if (left) {
        port::add_to<order::relaxed, reach::device>(&qp.gate, 0 - abi::kGateRinging);
    }
    return left;
}

// Waits until no doorbell of a group that has left can arrive after one of the caller's, which has
// the baton. It needs no deadline: the lane that it waits for has a fence to end, and then clears
// the bit.
OXSHMEM_DEVICE void await_doorbell(const Qp &qp) {
    while ((port::load<order::relaxed, reach::device>(&qp.gate) & abi::kGateRinging) != 0) {
        port::pause();
    }
}

// Takes the baton if it is free, by a lane of a group in the gate. False: it is not.
OXSHMEM_DEVICE bool take_free_baton(Qp &qp) {
    return (port::fetch_and<order::relaxed, reach::device>(&qp.gate, ~abi::kGateBatonFree) & abi::kGateBatonFree) != 0;
}

// Where the last doorbell ended, as the lane learns that has taken the baton.
OXSHMEM_DEVICE uint64_t rung_before(Qp &qp) {
    port::fence<order::acq_rel, reach::device>();
    return port::load<order::relaxed, reach::device>(&qp.rung);
}

// Rings for the blocks before `end`, of which the lane, which holds the baton, has seen the stamps.
OXSHMEM_DEVICE void ring_seen(Qp &qp, uint64_t end) {
    ring_for<order::acq_rel>(qp, bell_of(qp), end);
    count_doorbell(qp);
}

// Enters the gate again, for the baton. Returns where the last doorbell ended, or ~0 if another
// group has it.
OXSHMEM_LAZY OXSHMEM_DEVICE uint64_t take_baton(Qp &qp) {
    const uint64_t gate = port::fetch_add<order::relaxed, reach::device>(&qp.gate, abi::kGateOneGroup);
    if (!got_baton(gate) && !take_free_baton(qp)) {
        return ~0ull;
    }
    if (is_early(gate)) {
        await_doorbell(qp);
    }
    return rung_before(qp);
}

// Either leaves for good and returns ~0, or has the baton, stays in the gate and returns where the
// last doorbell ended. `inside`: the group is in the gate.
OXSHMEM_LAZY OXSHMEM_DEVICE uint64_t leave_or_take(Qp &qp, bool inside) {
    while (!inside || !leave(qp)) {
        const uint64_t rung = take_baton(qp);
        if (rung != ~0ull) {
            return rung;
        }
        inside = true;
    }
    return ~0ull;
}

// Gives the baton to the other groups in the gate, and leaves. False: there are none.
OXSHMEM_DEVICE bool hand_over(Qp &qp) {
    // The bit is clear while the baton is held, so that adding sets it.
    const uint64_t gate = port::fetch_add<order::acq_rel, reach::device>(&qp.gate, abi::kGateBatonFree - abi::kGateOneGroup);
    return groups_in(gate) != 1;
}

// What the holder of the baton does, once everything before `rung` has been rung for, until it is
// out of the gate. Called by all lanes of a group that works together, otherwise by the leader
// alone.
OXSHMEM_LAZY OXSHMEM_OUTLINE void keep_ringing(Qp &qp, Ringers ringers, StampArray stamps, uint64_t rung) {
    constexpr uint32_t kMostRings = 8; // then it is another group's turn
    for (uint32_t rings = 0;;) {
        uint64_t gate = 0;
        if (ringers.leads()) {
            gate = port::load<order::relaxed, reach::device>(&qp.gate);
        }
        const uint64_t end = ready_prefix(stamps, ringers, rung);
        const bool news = end != rung;
        rung = end;
        if (ringers.leads()) {
            if (news) {
                ring_seen(qp, end);
            }
            if (groups_in(gate) == 1) {
                // All others have left, so all that is reserved is stamped, though a stamp may not
                // be visible yet.
                const uint64_t empty = gate - abi::kGateOneGroup;
                if (reserved_in(gate, rung) != rung) {
                    port::pause();
                } else if (port::compare_exchange<order::release, reach::device>(&qp.gate, gate, empty) == gate) {
                    rung = ~0ull;
                }
            } else if (!news || ++rings == kMostRings) {
                rung = hand_over(qp) ? ~0ull : leave_or_take(qp, false);
                rings = 0;
            }
        }
        rung = ringers.from_leader(rung);
        if (rung == ~0ull) {
            return;
        }
        // No deadline: what this may wait for, stores of groups that have left, is on its way. And
        // no pause while others are in the gate: lanes of the group that overtake it would no
        // longer combine with it.
    }
}

// Rings for the stamped blocks that no group has rung for, if the baton is free. By one lane of a
// group that is in the gate and waits for room: it may be those blocks that have to complete, and
// the groups that stamped them have left.
OXSHMEM_LAZY OXSHMEM_DEVICE void ring_meanwhile(Qp &qp) {
    if ((port::load<order::relaxed, reach::device>(&qp.gate) & abi::kGateBatonFree) == 0) {
        return;
    }
    const StampArray stamps{qp.stamps, qp.depth_log2};
    const uint64_t next = port::load<order::relaxed, reach::device>(&qp.rung);
    if (!stamps.is_of_lap(next, port::load<order::relaxed, reach::device>(stamps.at(next))) || !take_free_baton(qp)) {
        return;
    }
    const uint64_t rung = rung_before(qp);
    const uint64_t end = ready_prefix(stamps, Ringers{false}, rung);
    if (end != rung) {
        ring_seen(qp, end);
    }
    port::add_to<order::release, reach::device>(&qp.gate, abi::kGateBatonFree);
}

// Waits until all before `blocks`, or their slots in the staging ring, may be reused, by one lane
// of a group that has reserved. False: they never will be, and the QP is broken. `in_gate`: the QP
// is not that of a private context.
OXSHMEM_LAZY OXSHMEM_NOINLINE bool wait_space(Qp &qp, uint64_t blocks, Op op, bool in_gate) {
    const auto meanwhile = [&] {
        if (in_gate) {
            ring_meanwhile(qp);
        }
    };
    const Outcome outcome = wait_blocks<Ends::anywhere>(qp, known_completed(qp), blocks, op, meanwhile);
    if (outcome == Outcome::failed) {
        fail(qp, blocks, op);
    } else if (outcome == Outcome::late) {
        give_up(qp, op);
    }
    return outcome == Outcome::complete;
}

// Waits until a group that has reserved, and found `gate` then, has room and may ring if it has the
// baton. Otherwise as wait_space.
OXSHMEM_LAZY OXSHMEM_NOINLINE bool wait_to_post(Qp &qp, uint64_t blocks, uint64_t gate, bool in_gate) {
    if (is_early(gate)) {
        await_doorbell(qp);
    }
    return wait_space(qp, blocks, Op::queue_space, in_gate);
}

} // namespace oxshmem::detail
