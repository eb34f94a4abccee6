// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Submission: from "lanes want to post" to "the doorbell rang", and completion. Posters never wait
// for other posters to do their work: at most for stores that those have issued, and for a fence.
//
// Per QP, `gate` counts the blocks handed out and the groups that are between reserving and
// leaving, and has a bit that says that no group holds the baton: the right to ring. A stamp per
// block says in which lap it was last written, `rung` is where the last doorbell ended, `completed`
// counts blocks that may be reused.
//
//   1. A group of lanes that use one QP reserves all its blocks, and enters, by one atomic add.
//      Only then may it have to wait, and only for completions: earlier groups never wait for later
//      ones, so the oldest can always go on. A group that finds the gate empty has the baton:
//      everything before its own blocks has been rung for.
//   2. Lanes write their WQEs, and fence.
//   3. The group with the baton rings for its own blocks at once. Then it leaves if it is still
//      alone; if not, it rings for what others have stamped meanwhile, and hands the baton to them
//      when it finds nothing new.
//   4. The others stamp their blocks and leave. One that sees the baton free as it leaves takes it,
//      and rings for the ready prefix: the stamped blocks from `rung` on, whichever group wrote
//      them. One that waits for completions does so too when it sees the baton free, frees the
//      baton again, and waits on.
//
// No block is left behind. The holder of the baton leaves the gate empty only once it has seen the
// stamps of all that is reserved, and has rung for them: all others have left then, so their stamps
// are on their way. It leaves others behind only by freeing the baton, and each of these is about
// to leave, and will see that, or waits, and looks. A reserved block that is not yet stamped ends
// the prefix; its owner is in the gate, or its stamp is on its way. Such a stamp never arrives in a
// later lap: a doorbell covers only blocks whose stamps were seen, and those of a group that has
// the baton, which does not stamp.
//
// Visibility to the HCA: poster's stores, poster's fence, stamp, ringer's load of the stamp, device
// fence, doorbell record, fence, doorbell. The last fence has device scope where queue, record and
// payload are in this GPU's memory, and the HCA is a card, or a kernel of this GPU, that reads them
// from there; otherwise it has system scope. A poster whose payload is elsewhere fences with system
// scope itself (see source_fence).
//
// What the formal model does not give, and hardware does:
//   * `completed` is raised without release order, and waiters fence only after they have read it.
//     The HCA's writes are in memory before its CQE is; a thread that learns of the CQE by way of
//     another thread's atomic reads them from there.
//   * Lanes of a warp read stamps for the lane that fences and rings. The votes and shuffles
//     between them order memory.
//   * A stamp that is exactly 2^28 laps old looks new. A block keeps such a stamp only if groups
//     with the baton, which do not stamp, wrote it in each lap since: more than 2^36 requests in
//     the smallest queue, of which none was stamped in this place.
#pragma once

#include "baton.h"

namespace oxshmem::detail {

// The blocks of a group, and the constants of their QP. These are read before the gate: both take
// their time, but not twice.
struct Reservation {
    uint64_t first;
    uint64_t wq, stamps;
    uint32_t depth_log2, qpn;
    bool ordered; // a fence was called before: the first request has to carry it
    bool baton;   // no other group is in the gate
    bool ok;      // false: the QP is broken, and the reason is recorded
};

// Whether the request at index `first` has to carry the fence that is at `fence_at`: unless a
// request that is at or after the fence, and not after `first`, carries it.
OXSHMEM_DEVICE bool has_to_order(const Qp &qp, uint64_t fence_at, uint64_t first) {
    const uint64_t ordered_at = port::load<order::relaxed, reach::device>(&qp.ordered_at);
    return fence_at >= ordered_at || ordered_at > first;
}

// What the leader of a group reads to reserve: `completed` and `fence_at`, which lie beside each
// other, and the gate. (A fence that happens before the post has raised `fence_at`.)
struct Entry {
    port::pair64 known;
    uint64_t gate;
};

template <class Queue> OXSHMEM_DEVICE Entry enter(Queue queue, Qp &qp, uint32_t blocks) {
    Entry entry;
    entry.known = port::load_pair<order::relaxed, reach::device>(&qp.completed);
    if (is_private(queue)) {
        entry.gate = port::load<order::relaxed, reach::device>(&qp.gate) & ~kGateFetches;
        return entry;
    }
    entry.gate = port::fetch_add<order::relaxed, reach::device>(
        &qp.gate, (static_cast<uint64_t>(blocks) << abi::kGateReservedShift) + abi::kGateOneGroup);
    return entry;
}

// What the leader tells its group, in one word: the index, which stays far below these bits, and
// two flags.
constexpr uint64_t kToldOrdered = 1ull << 62, kToldBaton = 1ull << 63, kToldFailed = ~0ull;

// Waits until what the leader has reserved is free, and until it may ring if it has the baton.
// Returns what it tells its group.
template <class Queue, class... T>
OXSHMEM_DEVICE uint64_t settle(Queue queue, Qp &qp, Group &group, Reservation &r, uint32_t blocks, const Entry &entry,
                               T &...live) {
    const uint64_t completed = entry.known.first, fence_at = entry.known.second;
    uint64_t first = reserved_in(entry.gate, completed);
    const bool ordered = fence_at != 0 && has_to_order(qp, fence_at, first);
    if (ordered) {
        port::raise_to<order::relaxed, reach::device>(&qp.ordered_at, first + 1);
    }
    const uint64_t depth = 1ull << r.depth_log2;
    const bool broken = completed >= abi::kBroken;
    const bool full = broken || first + blocks > depth + completed;
    const uint64_t wanted = full && !broken ? first + blocks - depth : 0;
    if (full && !broken && is_private(queue)) {
        // What is not rung for never completes.
        ring_pending(qp, port::read(&qp.rung), first);
    }
    if constexpr (kOfContext<Queue>) {
        // A poster that has the QP for itself notes what it has learned, for its next post.
        if (has_for_itself(queue, group)) {
            port::write(&qp.room, broken ? 0 : completed + depth);
        }
    }
    first |= (ordered ? kToldOrdered : 0) | (got_baton(entry.gate) ? kToldBaton : 0);
    const auto wait = [&] { return wait_to_post(qp, wanted, entry.gate, !is_private(queue)); };
    if ((full || is_early(entry.gate)) && !keeping(wait, first, r, group, live...)) {
        first = kToldFailed;
    }
    return first;
}

OXSHMEM_DEVICE Reservation reservation_on(const Qp &qp) {
    Reservation r;
    r.wq = qp.wq, r.stamps = qp.stamps, r.depth_log2 = qp.depth_log2, r.qpn = qp.qpn;
    return r;
}

// Takes what the leader tells into every lane's reservation.
OXSHMEM_DEVICE void tell(const Group &group, Reservation &r, uint64_t first) {
    if (group.size > 1) {
        first = port::shfl(group.mask, first, group.leader);
    }
    r.first = first & ~(kToldOrdered | kToldBaton);
    r.ordered = (first & kToldOrdered) != 0;
    r.baton = (first & kToldBaton) != 0;
    r.ok = first != kToldFailed;
}

// account_of for all lanes of a group that has the QP for itself: for one, or for a whole warp,
// which sees what its lanes have posted in turns before.
OXSHMEM_DEVICE Account account_for(uint32_t mask, const Qp &qp) {
    port::sync_warp(mask);
    return account_of(qp);
}

// Whether all lanes of such a group find room for `blocks` more. None goes on before all have read
// the account, since the leader changes it then.
OXSHMEM_DEVICE bool have_room(uint32_t mask, const Account &account, uint32_t blocks) {
    return port::ballot(mask, account.reserved + (blocks - 1) < account.room) == mask;
}

// Reserves for a group that has the QP for itself and finds room for `blocks` blocks, without a
// trip to memory. Every lane calls. False: nothing was reserved.
OXSHMEM_LAZY OXSHMEM_DEVICE bool reserve_alone(ContextQp queue, Qp &qp, const Group &group, uint32_t blocks, Reservation &r) {
    if (!has_for_itself(queue, group)) {
        return false;
    }
    const Account account = account_for(group.mask, qp);
    if (!have_room(group.mask, account, blocks)) {
        return false;
    }
    if (port::kChecksContexts && group.leads()) {
        hold(queue, qp, group);
    }
    r.first = account.reserved, r.ordered = false, r.baton = true, r.ok = true;
    return true;
}

// Reserves `blocks` blocks for the whole group and waits until they are free. Every lane gets the
// result. A group whose reservation is ok has to submit. `live`: variables of the caller that are
// in local memory while this waits.
template <class Queue, class... T>
OXSHMEM_DEVICE Reservation reserve(Queue queue, Qp &qp, Group &group, uint32_t blocks, T &...live) {
    Reservation r = reservation_on(qp);
    if constexpr (kOfContext<Queue>) {
        if (reserve_alone(queue, qp, group, blocks, r)) {
            return r;
        }
    }
    uint64_t first = 0;
    if (group.leads()) {
        if (hold(queue, qp, group)) {
            const Entry entry = enter(queue, qp, blocks);
            first = settle(queue, qp, group, r, blocks, entry, live...);
            if (first == kToldFailed) {
                let_go(queue, qp, group);
            }
        } else {
            first = kToldFailed;
        }
    }
    tell(group, r, first);
    return r;
}

// Like reserve. While the gate's atomic is on its way, every lane calls `prepare()`: it does
// whatever the work requests need that does not depend on where they go. For posts of single lanes,
// which have nothing else to do meanwhile; whole warps that share a QP lose by it.
template <class Queue, class Prepare, class... T>
OXSHMEM_DEVICE Reservation reserve_preparing(Queue queue, Qp &qp, Group &group, uint32_t blocks, Prepare prepare, T &...live) {
    Reservation r = reservation_on(qp);
    bool reserved = false;
    if constexpr (kOfContext<Queue>) {
        reserved = reserve_alone(queue, qp, group, blocks, r);
    }
    Entry entry{};
    bool held = true;
    if (!reserved && group.leads()) {
        held = hold(queue, qp, group);
        entry = held ? enter(queue, qp, blocks) : entry;
    }
    prepare();
    if (reserved) {
        return r;
    }
    uint64_t first = held ? 0 : kToldFailed;
    if (group.leads() && held) {
        first = settle(queue, qp, group, r, blocks, entry, live...);
        if (first == kToldFailed) {
            let_go(queue, qp, group);
        }
    }
    tell(group, r, first);
    return r;
}

// The slot of the request `offset` blocks after the first of a reservation.
OXSHMEM_DEVICE Slot slot_at(const Reservation &r, uint32_t offset) {
    const uint32_t order = r.ordered && offset == 0 ? port::state().fence_order : 0;
    return {r.wq, r.first + offset, (1u << r.depth_log2) - 1, r.qpn, order};
}

// Stamps the block `offset` blocks after the first of a reservation, which `following` blocks of
// the same lane follow.
OXSHMEM_DEVICE void stamp(const Reservation &r, uint32_t offset, uint32_t following) {
    const StampArray stamps{r.stamps, r.depth_log2};
    const uint64_t index = r.first + offset;
    port::store<order::relaxed, reach::device>(stamps.at(index), following << kStampLapBits | stamps.lap_of(index));
}

// Submits the group's blocks, `blocks` in all, which are written; the lanes' `stamps()` stamp all
// of them. `shared`: lanes wrote to each other's blocks. Every lane of the group calls.
template <class Queue, class Stamps>
OXSHMEM_DEVICE void submit(Queue queue, Qp &qp, const Group &group, const Reservation &r, uint32_t blocks, bool shared,
                           Stamps stamps) {
    if (group.size > 1 && (r.baton || shared)) {
        port::sync_warp(group.mask);
    }
    const uint64_t end = r.first + blocks;
    if (is_private(queue)) {
        submit_private(queue, qp, group, end);
        return;
    }
    const UsedBit used = used_bit(queue, qp);
    // Loaded here and looked at below, so that no lane waits for it. Each lane sees to the bit
    // itself: a lane may go on to its own quiet or fence while the leader still rings.
    const uint64_t known = port::load<order::relaxed, reach::device>(used.word);
    uint64_t rung = ~0ull;
    if (r.baton) {
        if (group.leads()) {
            ring_for<order::release>(qp, bell_of(qp), end);
            rung = leave_alone(qp, (end << abi::kGateReservedShift) + abi::kGateOneGroup) ? ~0ull : end;
            count_doorbell(qp);
        }
    } else {
        port::fence<order::release, reach::device>();
        stamps();
        if (group.size > 1) {
            port::sync_warp(group.mask);
        }
        if (group.leads()) {
            rung = leave_or_take(qp, true);
        }
    }
    if ((known & used.mask) == 0) {
        port::fetch_or<order::relaxed, reach::device>(used.word, used.mask);
    }
    // Where lanes do not work together, this is for the leader alone.
    const Ringers ringers{works_together(group)};
    rung = ringers.from_leader(rung);
    if (rung != ~0ull) {
        keep_ringing(qp, ringers, {r.stamps, r.depth_log2}, rung);
    }
}

// How many blocks each lane posts: one, as most do, which the compiler knows then, or a number.
struct OneBlock {
    OXSHMEM_DEVICE operator uint32_t() const { return 1; }
};

// Writes and submits what the calling lane has reserved together with its group, `blocks` blocks of
// each. Returns the 64-bit index after the lane's last block, or 0 if nothing was reserved.
template <class Queue, class Blocks, class Write>
OXSHMEM_DEVICE uint64_t write_reserved(Queue queue, Qp &qp, const Group &group, const Reservation &reservation, Blocks blocks,
                                       Write write) {
    if (!reservation.ok) {
        return 0;
    }
    const uint32_t offset = blocks * group.rank;
    const uint64_t end = reservation.first + offset + blocks;
    profile_request(reservation.qpn, qp.pe, end);
    write(slot_at(reservation, offset), group.last());
    submit(queue, qp, group, reservation, blocks * group.size, false, [&] {
        for (uint32_t i = 0; i < blocks; ++i) {
            stamp(reservation, offset + i, blocks - 1 - i);
        }
    });
    return end;
}

// Lets every lane post one sequence of work requests that takes `blocks` blocks, together with the
// lanes that converge here. `write(slot, signaled)` writes it, from the variables `live`. Returns
// as write_reserved.
template <class Queue, class Blocks, class Write, class... T>
OXSHMEM_DEVICE uint64_t post(Queue queue, Qp &qp, Blocks blocks, Write write, T &...live) {
    Group group = converge(queue, qp, blocks);
    const Reservation reservation = reserve(queue, qp, group, blocks * group.size, blocks, live...);
    return write_reserved(queue, qp, group, reservation, blocks, write);
}

// Like post, with what reserve_preparing does.
template <class Queue, class Blocks, class Prepare, class Write, class... T>
OXSHMEM_DEVICE uint64_t post_preparing(Queue queue, Qp &qp, Blocks blocks, Prepare prepare, Write write, T &...live) {
    Group group = converge(queue, qp, blocks);
    const Reservation reservation = reserve_preparing(queue, qp, group, blocks * group.size, prepare, blocks, live...);
    return write_reserved(queue, qp, group, reservation, blocks, write);
}

// What a lane that posts one block alone does when that is not the usual case: the queue is full or
// broken, a fence was called, or another lane has just left. A function of its own for its
// registers. Returns what settle does.
OXSHMEM_LAZY OXSHMEM_NOINLINE uint64_t settle_single(uint32_t queue, Qp &qp, Entry entry) {
    Group group = make_group(1u << port::lane_id());
    Reservation r = reservation_on(qp);
    return settle(queue, qp, group, r, 1, entry);
}

// Ends the post of such a lane where other groups are in the gate. `rang`: it had the baton, and
// rang for all before `end`.
OXSHMEM_LAZY OXSHMEM_NOINLINE void leave_others(Qp &qp, uint64_t end, bool rang) {
    const StampArray stamps{qp.stamps, qp.depth_log2};
    uint64_t rung = end;
    if (!rang) {
        port::fence<order::release, reach::device>();
        port::store<order::relaxed, reach::device>(stamps.at(end - 1), stamps.lap_of(end - 1));
        rung = leave_or_take(qp, true);
    }
    if (rung != ~0ull) {
        keep_ringing(qp, Ringers{false}, stamps, rung);
    }
}

// Posts one request of one block on a QP that others may post to, by a lane that combines with no
// others. It does what reserve, write_reserved and submit do, in few instructions: a lane that
// posts alone waits for each of them. While the gate's atomic is on its way it calls `prepare()`.
// Returns the index after the block, or 0 if nothing was posted (recorded).
template <class Prepare, class Write>
OXSHMEM_DEVICE uint64_t post_single(uint32_t queue, Qp &qp, Prepare prepare, Write write) {
    Entry entry = enter(queue, qp, 1);
    const uint64_t wq = qp.wq;
    const uint32_t qpn = qp.qpn, depth_log2 = qp.depth_log2;
    prepare();

    // The lowest bits of the index of the block, and of its distance from the oldest that has not
    // completed, tell all that is usual.
    const uint64_t completed = entry.known.first, fence_at = entry.known.second;
    const uint32_t ahead = low(entry.gate >> abi::kGateReservedShift) - low(completed);
    uint64_t first = completed + ahead;
    uint32_t order = 0;
    if ((ahead >> depth_log2 != 0) | (completed >= abi::kBroken) | (fence_at != 0) | ((entry.gate & abi::kGateRinging) != 0)) {
        const uint64_t told = settle_single(queue, qp, entry);
        if (told == kToldFailed) {
            return 0;
        }
        first = told & ~(kToldOrdered | kToldBaton);
        order = (told & kToldOrdered) != 0 ? port::state().fence_order : 0;
        entry.gate &= ~abi::kGateRinging;
    }
    const uint64_t end = first + 1;
    profile_request(qpn, qp.pe, end);
    write(Slot{wq, first, (1u << depth_log2) - 1, qpn, order});
    // Loaded here and looked at below, so that the lane does not wait for it.
    const UsedBit used = used_bit(queue, qp);
    const uint64_t known = port::load<order::relaxed, reach::device>(used.word);
    const bool baton = got_baton(entry.gate);
    bool left = false;
    if (baton) {
        ring_for<order::release>(qp, bell_of(qp), end);
        left = leave_alone_early(qp, entry.gate + (1ull << abi::kGateReservedShift) + abi::kGateOneGroup);
        count_doorbell(qp);
    }
    if ((known & used.mask) == 0) {
        port::fetch_or<order::relaxed, reach::device>(used.word, used.mask);
    }
    if (!left) {
        leave_others(qp, end, baton);
    }
    return end;
}

// Posts one request of one block, by a lane that alone posts to any QP of its context, if its
// account has room. Few instructions: a lane that posts alone waits for each of them. Returns the
// index after the block, or 0: nothing was done, and the caller has to post as others do.
template <class Write> OXSHMEM_DEVICE uint64_t post_alone(ContextQp queue, Qp &qp, Write write) {
    // Requested together.
    const Account account = account_of(qp);
    const Bell bell = bell_of(qp);
    const uint64_t wq = qp.wq;
    const uint32_t depth_log2 = qp.depth_log2;
    const UsedAlone used = used_alone(qp);
    if (account.reserved >= account.room) {
        return 0;
    }
    const uint64_t end = account.reserved + 1;
    if constexpr (port::kChecksContexts) {
        hold(queue, qp, make_group(1u << port::lane_id()));
    }
    profile_request(bell.qpn, qp.pe, end);
    write(Slot{wq, account.reserved, (1u << depth_log2) - 1, bell.qpn, 0});
    submit_alone(queue, qp, bell, used, end, account.fetches);
    if constexpr (port::kChecksContexts) {
        let_go(queue, qp, make_group(1u << port::lane_id()));
    }
    return end;
}

// Posts one request of `blocks` blocks by a whole warp that has the QP for itself, if its account
// has room. Every lane calls, and writes its part. False: nothing was done.
template <class Write> OXSHMEM_DEVICE bool post_whole(ContextQp queue, Qp &qp, uint32_t blocks, Write write) {
    // Requested together.
    const Account account = account_for(port::kWholeWarp, qp);
    const Bell bell = bell_of(qp);
    const uint64_t wq = qp.wq;
    const uint32_t depth_log2 = qp.depth_log2;
    if (!have_room(port::kWholeWarp, account, blocks)) {
        return false;
    }
    const uint64_t end = account.reserved + blocks;
    const bool leads = port::lane_id() == 0;
    if (port::kChecksContexts && leads) {
        hold(queue, qp, make_group(port::kWholeWarp));
    }
    profile_request(bell.qpn, qp.pe, end);
    write(Slot{wq, account.reserved, (1u << depth_log2) - 1, bell.qpn, 0});
    port::sync_warp(port::kWholeWarp);
    if (leads) {
        submit_alone(queue, qp, bell, used_alone(qp), end, account.fetches);
        if constexpr (port::kChecksContexts) {
            let_go(queue, qp, make_group(port::kWholeWarp));
        }
    }
    // No lane posts again before the leader is through.
    port::sync_warp(port::kWholeWarp);
    return true;
}

} // namespace oxshmem::detail
