// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Completion: what the collapsed CQE says, waiting for it, and errors.
#pragma once

#include "queue.h"

namespace oxshmem::detail {

// How a wait for completions ended. Late: the deadline passed or the job is over, so the HCA may
// still execute the request.
enum class Outcome : uint32_t { complete, failed, late };

// The counter in the last four bytes of a CQE: the first block of its WQE, as far as that fits.
OXSHMEM_DEVICE uint32_t cqe_counter(uint32_t tail) {
    return be(tail) >> 16;
}

// The distance from `near` to the index whose lowest bits are `counter`: the shortest one.
OXSHMEM_DEVICE int32_t distance_to(uint32_t near, uint32_t counter) {
    constexpr uint32_t kUnused = 32 - abi::kCqeCounterBits;
    return static_cast<int32_t>((counter - near) << kUnused) >> kUnused;
}

// Where the blocks end that are waited for: with a WQE, or anywhere.
enum class Ends : uint32_t { with_wqe, anywhere };

// What `completed` says. The CQE that the caller looks at next is not older.
OXSHMEM_DEVICE uint64_t known_completed(const Qp &qp) {
    return port::load<order::acquire, reach::device>(&qp.completed);
}

// Opcodes of a CQE: none is there yet, a request failed, and one is complete (MLX5_CQE_REQ).
constexpr uint32_t kNoCqe = 0xf, kRequestError = 0xd, kRequestDone = 0;

// Returns the blocks that the newest CQE completes: `base`, which have completed, unless it reaches
// `wanted`, or as many as can have been rung for. `tail`: the end of that CQE, which is not older
// than `base` is.
template <Ends E> OXSHMEM_DEVICE uint64_t completed_by(const Qp &qp, uint32_t tail, uint64_t base, uint64_t wanted) {
    // Distances from `base`: to what is waited for, but no further than can have been rung for by
    // then, and to the newest completed WQE. That WQE is at most the depth, a quarter of the
    // counter's range, beyond `base`, and not before the WQE that `base` ends with. If `base` is so
    // far out of date that this does not hold, the distance is too small by a multiple of the
    // range, which does no harm.
    const uint32_t counter = cqe_counter(tail);
    const uint32_t depth = 1u << qp.depth_log2;
    const int32_t target = static_cast<int32_t>(wanted - base < depth ? low(wanted - base) : depth);
    const int32_t first = target + distance_to(low(base) + static_cast<uint32_t>(target), counter);
    // All before the newest WQE is complete. Its own blocks count as well only where their number
    // is known. It is 1 where a WQE is known to end with the next block. Else it is in the control
    // segment, which belongs to this WQE as long as it says so. Once `completed` has passed it,
    // another may be there, also for threads that do not see that yet; so `completed` never is in
    // the middle of a WQE.
    int32_t end = first;
    if (E == Ends::with_wqe && first + 1 == target && wanted - base <= depth) {
        end = target;
    } else if (first < target) {
        if (target - first > static_cast<int32_t>(kMostBlocks)) {
            return base;
        }
        const uint64_t at = base + static_cast<uint64_t>(static_cast<int64_t>(first));
        const uint64_t control = port::load<order::acquire, reach::device>(as<uint64_t>(block_at(qp, at)));
        const uint32_t index = be(low(control)) >> 8 & ((1u << abi::kCqeCounterBits) - 1), qpn_ds = be(high(control));
        end = first + static_cast<int32_t>(((qpn_ds & 0x3f) + 3) / 4);
        if (end < target || index != counter || qpn_ds >> 8 != qp.qpn ||
            port::load<order::relaxed, reach::device>(&qp.completed) > at) {
            return base;
        }
    }
    return base + static_cast<uint64_t>(static_cast<int64_t>(end));
}

// Returns the blocks that have completed, as far as `completed` and the collapsed CQE say; raises
// `completed` if that is `wanted` or more, or as many as can have been rung for. kBroken: the QP is
// broken, or an error CQE is there. `known`: what known_completed said before, and says afterwards.
// Orders nothing else.
template <Ends E> OXSHMEM_DEVICE uint64_t poll(Qp &qp, uint64_t &known, uint64_t wanted) {
    if (known >= wanted) {
        return known;
    }
    // Both loads are on their way together. So the CQE is taken for what `completed` was at the
    // last look: one that is older than `completed` could be misread.
    const uint64_t base = known;
    // Bytes 60-63 of the CQE: wqe_counter (big-endian), signature, op_own.
    const uint32_t tail = port::load<order::relaxed, reach::system>(as<uint32_t>(qp.cqe + 60));
    known = known_completed(qp);
    const uint32_t opcode = tail >> 28;
    if (known >= wanted || opcode == kNoCqe) {
        return known;
    }
    if (opcode == kRequestError) {
        return abi::kBroken;
    }
    const uint64_t completed = completed_by<E>(qp, tail, base, wanted);
    if (completed == base) {
        return known;
    }
    port::raise_to<order::relaxed, reach::device>(&qp.completed, completed);
    profile_completion(qp.qpn, qp.pe, completed);
    return completed;
}

// What most waits do besides.
struct Nothing {
    OXSHMEM_DEVICE void operator()() const {}
};

// Waits until `wanted` blocks in all have completed, of which known_completed has said `known`. The
// deadline counts from the last completion. Calls `meanwhile()` whenever it looks at the clock.
template <Ends E, class Meanwhile = Nothing>
OXSHMEM_DEVICE Outcome wait_blocks(Qp &qp, uint64_t known, uint64_t wanted, Op op, Meanwhile meanwhile = {}) {
    uint64_t completed = 0;
    const bool ended = wait<OnAbort::keep_waiting>(
        op, qp.pe, as<void>(qp.wq), [&] { return (completed = poll<E>(qp, known, wanted)) >= wanted; },
        [&] {
            meanwhile();
            return port::load<order::relaxed, reach::system>(as<uint32_t>(qp.cqe + 60));
        });
    return !ended ? Outcome::late : completed >= abi::kBroken ? Outcome::failed : Outcome::complete;
}

// Breaks the QP for the error CQE that is there, or reports what broke it before. `wanted`: the
// blocks that the caller waits for.
OXSHMEM_LAZY OXSHMEM_NOINLINE void fail(Qp &qp, uint64_t wanted, Op op) {
    port::store<order::relaxed, reach::device>(&qp.room, uint64_t{0});
    const uint64_t known = port::load<order::acquire, reach::device>(&qp.completed);
    if (known >= abi::kBroken) {
        report_breakage(qp.breakage, op);
        return;
    }
    abi::ErrorRecord error;
    describe(error, ErrorCode::completion, op, qp.pe, 0, 0);
    error.qpn = qp.qpn;
    // One access, since CQEs of requests that are flushed afterwards may replace this one.
    // mlx5_err_cqe: vendor_err_synd is byte 54, syndrome byte 55.
    const port::pair64 cqe = port::load_pair<order::relaxed, reach::system>(as<uint64_t>(qp.cqe + 48));
    error.syndrome = high(cqe.first) >> 24, error.vendor_syndrome = high(cqe.first) >> 16 & 0xff;
    const uint64_t near = least(wanted, known + (uint64_t{1} << qp.depth_log2));
    const int64_t distance = distance_to(low(near), cqe_counter(high(cqe.second)));
    error.wqe_index = near + static_cast<uint64_t>(distance);
    const uint64_t slot = block_at(qp, error.wqe_index);
    error.address = be(port::read(as<uint64_t>(slot + 16)));
    error.length = be(port::read(as<uint32_t>(slot))) & 0xff;
    break_queue(&qp.completed, qp.breakage, error);
}

// Breaks the QP because a post that has reserved is given up, after this or another deadline of the
// launch has passed: nothing that is reserved after it can be rung for.
OXSHMEM_LAZY OXSHMEM_NOINLINE void give_up(Qp &qp, Op op) {
    port::store<order::relaxed, reach::device>(&qp.room, uint64_t{0});
    abi::ErrorRecord error;
    describe(error, ErrorCode::timeout, op, qp.pe, qp.wq, 0);
    error.qpn = qp.qpn;
    break_queue(&qp.completed, qp.breakage, error);
}

// What a few looks at a CQE take of a QP: read before `completed`, which lets no later load pass.
struct Watch {
    uint64_t cqe;
    uint32_t depth_log2;
};

OXSHMEM_DEVICE Watch watch_of(const Qp &qp) {
    return {qp.cqe, qp.depth_log2};
}

// Whether all blocks before `end`, where a WQE ends, complete within a few looks at the CQE, which
// then completes that WQE or a later one. `known`: what known_completed has said. In few
// instructions, and without another look at what others have noted: most waits end so.
OXSHMEM_LAZY OXSHMEM_DEVICE bool completes_soon(Qp &qp, const Watch &watch, uint64_t known, uint64_t end) {
    if (known >= end) {
        return known < abi::kBroken;
    }
    // Groups that wait for room have reserved more than the queue has.
    if (end - known > uint64_t{1} << watch.depth_log2) {
        return false;
    }
    const uint32_t *const end_of_cqe = as<uint32_t>(watch.cqe + 60);
    OXSHMEM_NO_UNROLL
    for (uint32_t look = 0; look < port::kLooks; ++look) {
        const uint32_t tail = port::load<order::relaxed, reach::system>(end_of_cqe);
        // The CQE is not older than what was known, so the distance is right unless so many blocks
        // have completed since that the counter came round.
        if (tail >> 28 == kRequestDone && distance_to(low(end - 1), cqe_counter(tail)) >= 0) {
            port::raise_to<order::relaxed, reach::device>(&qp.completed, end);
            profile_completion(qp.qpn, qp.pe, end);
            return true;
        }
        if (tail >> 28 == kRequestError) {
            return false;
        }
        port::pause();
    }
    return false;
}

// Waits until `blocks` blocks in all have completed, where a WQE ends, of which known_completed has
// said `known`, and what their WQEs fetched is visible. Anything but complete is recorded.
OXSHMEM_LAZY OXSHMEM_OUTLINE Outcome wait_completed(Qp &qp, uint64_t known, uint64_t blocks, Op op) {
    const bool soon = completes_soon(qp, watch_of(qp), known, blocks);
    const Outcome outcome = soon ? Outcome::complete : wait_blocks<Ends::with_wqe>(qp, known, blocks, op);
    // The CQE that is there now is the one that was seen, by this or another thread, or a newer
    // one.
    port::acquire<reach::system>(as<uint64_t>(qp.cqe + 56));
    if (outcome == Outcome::failed) {
        fail(qp, blocks, op);
    }
    return outcome;
}

// In the gate of a private context, whose groups need no room there: something other than puts may
// have been posted since the last quiet, so that quiet has to let its caller see what was fetched.
// Where that is not so, what the L1 cache has of the QP remains there for the next post.
constexpr uint64_t kGateFetches = 1;

// What a poster that has the QP of a private context for itself knows of it: the blocks reserved,
// and Qp::room.
struct Account {
    uint64_t reserved, room;
    uint64_t fetches; // kGateFetches, or 0

    // Whether no other look is needed, because all that is reserved has room.
    OXSHMEM_DEVICE bool holds() const { return room != 0 && reserved <= room; }
};

OXSHMEM_DEVICE Account account_of(const Qp &qp) {
    const port::vec16 words = port::load_vec(&qp.gate);
    const uint64_t gate = static_cast<uint64_t>(words.y) << 32 | words.x, room = static_cast<uint64_t>(words.w) << 32 | words.z;
    return {reserved_in(gate, room), room, gate & kGateFetches};
}

// Notes that all blocks before `end`, which are all that were posted, have completed, and up to
// which the queue has room now, by a lane that has the QP for itself.
OXSHMEM_DEVICE void note_completed(Qp &qp, uint64_t end, uint64_t room) {
    port::raise_to<order::relaxed, reach::device>(&qp.completed, end);
    profile_completion(qp.qpn, qp.pe, end);
    port::write(&qp.gate, end << abi::kGateReservedShift);
    port::write(&qp.room, room);
}

// The end of a CQE that completes all blocks before `end`, where the last request is of one block,
// and the bits of it that say so: the counter, and the opcode, which is kRequestDone.
OXSHMEM_DEVICE uint32_t tail_of_last(uint64_t end) {
    return be((low(end) - 1) << 16);
}
constexpr uint32_t kTailOpcode = 0xf0000000u;
OXSHMEM_DEVICE uint32_t tail_bits() {
    return be(((1u << abi::kCqeCounterBits) - 1) << 16) | kTailOpcode;
}

// As wait_completed, for all that was posted, by a lane that has the QP for itself and whose
// account holds: it looks at the CQE alone.
OXSHMEM_LAZY OXSHMEM_OUTLINE Outcome wait_alone(Qp &qp, Account account, Op op) {
    const uint64_t depth = uint64_t{1} << qp.depth_log2, base = account.room - depth, wanted = account.reserved;
    const uint32_t *const end_of_cqe = as<uint32_t>(qp.cqe + 60);
    uint64_t completed = base;
    const auto look = [&] {
        if (completed >= wanted) {
            return true;
        }
        const uint32_t tail = port::load<order::relaxed, reach::system>(end_of_cqe);
        if (tail >> 28 == kRequestError) {
            completed = abi::kBroken;
        } else if (tail >> 28 != kNoCqe) {
            completed = completed_by<Ends::with_wqe>(qp, tail, base, wanted);
        }
        return completed >= wanted;
    };
    const bool ended = wait<OnAbort::keep_waiting>(op, qp.pe, as<void>(qp.wq), look,
                                                   [&] { return port::load<order::relaxed, reach::system>(end_of_cqe); });
    if (account.fetches != 0) {
        port::acquire<reach::system>(as<uint64_t>(qp.cqe + 56));
    }
    if (!ended) {
        return Outcome::late;
    }
    if (completed >= abi::kBroken) {
        fail(qp, wanted, op);
        return Outcome::failed;
    }
    note_completed(qp, completed, completed + depth);
    return Outcome::complete;
}

} // namespace oxshmem::detail
