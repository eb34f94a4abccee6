// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Submission: from "lanes want to post" to "the doorbell rang", and completion. Posters never wait
// for other posters.
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
//      them.
//
// No block is left behind. While the baton is held, its holder leaves alone only if the gate has
// not changed since before its last scan, and with others only by freeing the baton; a group that
// left before that had stamped, which the holder checks for once more afterwards; a group that
// leaves later sees the baton free. So while it is free, there is nothing to ring for until another
// group leaves. A reserved block that is not yet stamped ends the prefix; its owner is in the gate.
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
//   * Lanes of a warp read stamps for the lane that fences and rings. sync_warp and the shuffle
//     between them order memory.
//   * A stamp that is exactly 2^28 laps old looks new. A block keeps such a stamp only if groups
//     with the baton, which do not stamp, wrote it in each lap since: more than 2^36 requests in
//     the smallest queue, of which none was stamped in this place.
#pragma once

#include "landing.h"
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

// QP `queue` of those to `pe`.
OXSHMEM_DEVICE Qp &qp_of(int pe, uint32_t queue) {
    const abi::State &s = port::state();
    return as<Qp>(s.qps)[static_cast<uint64_t>(pe) * s.qps_per_pe + queue];
}

// Qp::index, computed because a load would have to be waited for.
OXSHMEM_DEVICE uint32_t index_of(const Qp &qp) {
    return static_cast<uint32_t>(reinterpret_cast<uint64_t>(&qp) - port::state().qps) / static_cast<uint32_t>(sizeof(Qp));
}

// The lanes that are here together, use `qp` and need the same number of blocks.
OXSHMEM_DEVICE Group converge(const Qp &qp, uint32_t blocks) {
    return make_group(port::converged(static_cast<uint64_t>(blocks) << 32 | index_of(qp)));
}

// Blocks ever reserved, given a number that differs from it by less than half of what the gate's
// field holds: the gate and that number may have been read in either order.
OXSHMEM_DEVICE uint64_t reserved_in(uint64_t gate, uint64_t near) {
    const auto ahead = static_cast<int64_t>(gate - (near << abi::kGateReservedShift)) >> abi::kGateReservedShift;
    return near + static_cast<uint64_t>(ahead);
}

OXSHMEM_DEVICE uint64_t groups_in(uint64_t gate) {
    return (gate & (abi::kGateOneGroup * ((1ull << abi::kGateGroupBits) - 1))) / abi::kGateOneGroup;
}

// Where WQE number `index` begins.
OXSHMEM_DEVICE uint64_t block_at(const Qp &qp, uint64_t index) {
    return qp.wq + (index & ((1ull << qp.depth_log2) - 1)) * abi::kBlockBytes;
}

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

// Returns the blocks that have completed, as far as `completed` and the collapsed CQE say; raises
// `completed` if that is `wanted` or more, or as many as can have been rung for. kBroken: the QP is
// broken, or an error CQE is there. Orders nothing.
OXSHMEM_DEVICE uint64_t poll(Qp &qp, uint64_t wanted) {
    // `completed` first: nothing is rung for that lies more than the depth beyond what it says then
    // or later.
    const uint64_t known = port::load<order::relaxed, reach::device>(&qp.completed);
    // Bytes 60-63 of the CQE: wqe_counter (big-endian), signature, op_own.
    const uint32_t tail = port::load<order::relaxed, reach::system>(as<uint32_t>(qp.cqe + 60));
    const uint32_t opcode = tail >> 28;
    constexpr uint32_t kInvalid = 0xf, kRequestError = 0xd;
    if (known >= wanted || opcode == kInvalid) {
        return known;
    }
    if (opcode == kRequestError) {
        return abi::kBroken;
    }
    // Distances from `known`: to what is waited for, but no further than can have been rung for,
    // and to the newest completed WQE. That WQE is at most the depth, a quarter of the counter's
    // range, beyond `known`, and not before the WQE that `known` ends with. If `known` is so far
    // out of date that this does not hold, the distance is too small by a multiple of the range,
    // which does no harm.
    const uint32_t counter = cqe_counter(tail);
    const uint32_t depth = 1u << qp.depth_log2;
    const int32_t target = static_cast<int32_t>(wanted - known < depth ? low(wanted - known) : depth);
    const int32_t first = target + distance_to(low(known) + static_cast<uint32_t>(target), counter);
    // All before the newest WQE is complete. Its own blocks count as well only where their number
    // is known: it is in the control segment, which belongs to this WQE as long as it says so. Once
    // `completed` has passed it, another may be there, also for threads that do not see that yet.
    int32_t end = first;
    if (first < target) {
        if (target - first > static_cast<int32_t>(kMostBlocks)) {
            return known;
        }
        const uint64_t at = known + static_cast<uint64_t>(static_cast<int64_t>(first));
        const uint64_t control = port::load<order::acquire, reach::device>(as<uint64_t>(block_at(qp, at)));
        const uint32_t index = be(low(control)) >> 8 & ((1u << abi::kCqeCounterBits) - 1), qpn_ds = be(high(control));
        end = first + static_cast<int32_t>(((qpn_ds & 0x3f) + 3) / 4);
        if (end < target || index != counter || qpn_ds >> 8 != qp.qpn ||
            port::load<order::relaxed, reach::device>(&qp.completed) > at) {
            return known;
        }
    }
    const uint64_t completed = known + static_cast<uint64_t>(static_cast<int64_t>(end));
    port::raise_to<order::relaxed, reach::device>(&qp.completed, completed);
    return completed;
}

// Waits until `wanted` blocks in all have completed. The deadline counts from the last completion.
OXSHMEM_DEVICE Outcome wait_blocks(Qp &qp, uint64_t wanted, Op op) {
    uint64_t completed = 0;
    const bool ended = wait<OnAbort::keep_waiting>(
        op, qp.pe, as<void>(qp.wq), [&] { return (completed = poll(qp, wanted)) >= wanted; },
        [&] { return port::load<order::relaxed, reach::system>(as<uint32_t>(qp.cqe + 60)); });
    return !ended ? Outcome::late : completed >= abi::kBroken ? Outcome::failed : Outcome::complete;
}

// Breaks the QP for the error CQE that is there, or reports what broke it before. `wanted`: the
// blocks that the caller waits for.
OXSHMEM_NOINLINE void fail(Qp &qp, uint64_t wanted, Op op) {
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
OXSHMEM_NOINLINE void give_up(Qp &qp) {
    abi::ErrorRecord error;
    describe(error, ErrorCode::timeout, Op::queue_space, qp.pe, qp.wq, 0);
    error.qpn = qp.qpn;
    break_queue(&qp.completed, qp.breakage, error);
}

// Waits until `blocks` blocks in all have completed, and what their WQEs fetched is visible.
// Anything but complete is recorded.
OXSHMEM_OUTLINE Outcome wait_completed(Qp &qp, uint64_t blocks, Op op) {
    const Outcome outcome = wait_blocks(qp, blocks, op);
    // The CQE that is there now is the one that was seen, by this or another thread, or a newer
    // one.
    port::acquire<reach::system>(as<uint64_t>(qp.cqe + 56));
    if (outcome == Outcome::failed) {
        fail(qp, blocks, op);
    }
    return outcome;
}

// Waits until blocks may be reused. False: they never will be, and the QP is broken.
OXSHMEM_NOINLINE bool wait_space(Qp &qp, uint64_t blocks) {
    const Outcome outcome = wait_blocks(qp, blocks, Op::queue_space);
    if (outcome == Outcome::failed) {
        fail(qp, blocks, Op::queue_space);
    } else if (outcome == Outcome::late) {
        give_up(qp);
    }
    return outcome == Outcome::complete;
}

// Whether a group that reserved (or entered again) has the baton by that, given what was in the
// gate before.
OXSHMEM_DEVICE bool got_baton(uint64_t gate) {
    return groups_in(gate) == 0 && (gate & abi::kGateBatonFree) == 0;
}

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

OXSHMEM_DEVICE Entry enter(Qp &qp, uint32_t blocks) {
    Entry entry;
    entry.known = port::load_pair<order::relaxed, reach::system>(&qp.completed);
    entry.gate = port::fetch_add<order::relaxed, reach::device>(
        &qp.gate, (static_cast<uint64_t>(blocks) << abi::kGateReservedShift) + abi::kGateOneGroup);
    return entry;
}

// What the leader tells its group, in one word: the index, which stays far below these bits, and
// two flags.
constexpr uint64_t kToldOrdered = 1ull << 62, kToldBaton = 1ull << 63, kToldFailed = ~0ull;

// Waits until what the leader has reserved is free. Returns what it tells its group.
template <class... T>
OXSHMEM_DEVICE uint64_t settle(Qp &qp, Group &group, Reservation &r, uint32_t blocks, const Entry &entry, T &...live) {
    const uint64_t completed = entry.known.first, fence_at = entry.known.second;
    uint64_t first = reserved_in(entry.gate, completed);
    const bool ordered = fence_at != 0 && has_to_order(qp, fence_at, first);
    if (ordered) {
        port::raise_to<order::relaxed, reach::device>(&qp.ordered_at, first + 1);
    }
    const uint64_t depth = 1ull << r.depth_log2;
    const bool broken = completed >= abi::kBroken;
    const uint64_t wanted = broken ? 0 : first + blocks - depth;
    const bool full = broken || first + blocks > depth + completed;
    first |= (ordered ? kToldOrdered : 0) | (got_baton(entry.gate) ? kToldBaton : 0);
    if (full && !keeping([&] { return wait_space(qp, wanted); }, first, r, group, live...)) {
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

// Reserves `blocks` blocks for the whole group and waits until they are free. Every lane gets the
// result. A group whose reservation is ok has to submit. `live`: variables of the caller that are
// in local memory while this waits.
template <class... T> OXSHMEM_DEVICE Reservation reserve(Qp &qp, Group &group, uint32_t blocks, T &...live) {
    Reservation r = reservation_on(qp);
    uint64_t first = 0;
    if (group.leads()) {
        const Entry entry = enter(qp, blocks);
        first = settle(qp, group, r, blocks, entry, live...);
    }
    tell(group, r, first);
    return r;
}

// Like reserve. While the gate's atomic is on its way, every lane calls `prepare()`: it does
// whatever the work requests need that does not depend on where they go. For posts of single lanes,
// which have nothing else to do meanwhile; whole warps that share a QP lose by it.
template <class Prepare, class... T>
OXSHMEM_DEVICE Reservation reserve_preparing(Qp &qp, Group &group, uint32_t blocks, Prepare prepare, T &...live) {
    Reservation r = reservation_on(qp);
    Entry entry{};
    if (group.leads()) {
        entry = enter(qp, blocks);
    }
    prepare();
    uint64_t first = 0;
    if (group.leads()) {
        first = settle(qp, group, r, blocks, entry, live...);
    }
    tell(group, r, first);
    return r;
}

// The slot of the request `offset` blocks after the first of a reservation.
OXSHMEM_DEVICE Slot slot_at(const Reservation &r, uint32_t offset) {
    const uint32_t order = r.ordered && offset == 0 ? port::state().fence_order : 0;
    return {r.wq, r.first + offset, (1u << r.depth_log2) - 1, r.qpn, order};
}

// The stamp of a written block: the lap, and above it how many blocks of its lane follow. A
// doorbell covers all blocks of a lane or none, so it never ends in the middle of a WQE.
using abi::kStampLapBits;

// Where the stamps of a QP are.
struct StampArray {
    uint64_t base;
    uint32_t depth_log2;

    OXSHMEM_DEVICE uint32_t lap_of(uint64_t index) const {
        return (low(index >> depth_log2) + 1) & ((1u << kStampLapBits) - 1);
    }
    OXSHMEM_DEVICE bool is_of_lap(uint64_t index, uint32_t stamp) const {
        return (stamp & ((1u << kStampLapBits) - 1)) == lap_of(index);
    }
    OXSHMEM_DEVICE uint32_t *at(uint64_t index) const { return as<uint32_t>(base) + (index & ((1ull << depth_log2) - 1)); }
};

// Stamps the block `offset` blocks after the first of a reservation, which `following` blocks of
// the same lane follow.
OXSHMEM_DEVICE void stamp(const Reservation &r, uint32_t offset, uint32_t following) {
    const StampArray stamps{r.stamps, r.depth_log2};
    const uint64_t index = r.first + offset;
    port::store<order::relaxed, reach::device>(stamps.at(index), following << kStampLapBits | stamps.lap_of(index));
}

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
    // Lets each see what the others did before.
    OXSHMEM_DEVICE void meet() const {
        if (together) {
            port::sync_warp(port::kWholeWarp);
        }
    }
};

// The end of the stamped prefix that begins at `from`. Whole warps scan with all lanes, four stamps
// a lane and pass.
OXSHMEM_DEVICE uint64_t stamped_prefix(const StampArray &stamps, Ringers ringers, uint64_t from) {
    const uint64_t limit = from + (1ull << stamps.depth_log2);
    if (!ringers.together) {
        while (from < limit && stamps.is_of_lap(from, port::load<order::relaxed, reach::device>(stamps.at(from)))) {
            ++from;
        }
        return from;
    }
    constexpr uint32_t kEach = 4;
    while (from < limit) {
        const uint64_t mine = from + ringers.lane() * kEach;
        uint32_t found[kEach];
        OXSHMEM_UNROLL
        for (uint32_t i = 0; i < kEach; ++i) {
            found[i] = port::load<order::relaxed, reach::device>(stamps.at(mine + i));
        }
        uint32_t ready = 0; // of the four blocks of this lane, in order
        while (ready < kEach && stamps.is_of_lap(mine + ready, found[ready])) {
            ++ready;
        }
        const uint32_t stopped = ~port::ballot(port::kWholeWarp, ready == kEach);
        if (stopped == 0) {
            from += 32 * kEach;
            continue;
        }
        const uint32_t stop = port::lowest_bit(stopped);
        return from + stop * kEach + port::shfl(port::kWholeWarp, ready, stop);
    }
    return from;
}

// The same without the blocks of a lane that has not stamped all of its own.
OXSHMEM_DEVICE uint64_t ready_prefix(const StampArray &stamps, Ringers ringers, uint64_t from) {
    uint64_t end = stamped_prefix(stamps, ringers, from);
    while (end != from && port::load<order::relaxed, reach::device>(stamps.at(end - 1)) >> kStampLapBits != 0) {
        --end;
    }
    return end;
}

// Orders all that the caller has written, and seen of what others wrote to the queue, before the
// doorbell that it rings next.
template <order O> OXSHMEM_DEVICE void doorbell_fence() {
    if (port::state().queues_in_device_memory != 0) {
        port::fence<O, reach::device>();
    } else {
        port::fence<O, reach::system>();
    }
}

// Rings for all blocks before `end`. By one lane, which holds the baton. O: release where its group
// wrote them, acq_rel where it has seen stamps of others.
template <order O> OXSHMEM_DEVICE void ring_for(Qp &qp, uint64_t end) {
    const uint64_t dbr = qp.dbr, doorbell = qp.doorbell;
    const uint32_t qpn = qp.qpn;
    // A late doorbell has the HCA read a newer record, so what the record covers is where the HCA
    // sees it.
    doorbell_fence<O>();
    port::store<order::relaxed, reach::device>(as<uint32_t>(dbr), be(low(end) & 0xffff));
    port::store<order::relaxed, reach::device>(&qp.rung, end);
    doorbell_fence<order::release>();
    const uint64_t first_word = be(low(end) << 8 & 0xffff00);
    const uint64_t second_word = be(qpn << 8);
    port::mmio_store(as<uint64_t>(doorbell), second_word << 32 | first_word);
}

OXSHMEM_DEVICE void count_doorbell(Qp &qp) {
    port::add_to<order::relaxed, reach::device>(&qp.doorbells, uint64_t{1});
}

// Leaves the gate, by one lane; the group's stamps are visible to a group that sees it leave.
// Returns false if the baton is free.
OXSHMEM_DEVICE bool leave(Qp &qp) {
    return (port::fetch_add<order::release, reach::device>(&qp.gate, 0 - abi::kGateOneGroup) & abi::kGateBatonFree) == 0;
}

// Enters the gate again, for the baton. Returns where the last doorbell ended, or ~0 if another
// group has it.
OXSHMEM_DEVICE uint64_t take_baton(Qp &qp) {
    const uint64_t gate = port::fetch_add<order::relaxed, reach::device>(&qp.gate, abi::kGateOneGroup);
    if (!got_baton(gate) &&
        (port::fetch_and<order::relaxed, reach::device>(&qp.gate, ~abi::kGateBatonFree) & abi::kGateBatonFree) == 0) {
        return ~0ull;
    }
    port::fence<order::acq_rel, reach::device>();
    return port::load<order::relaxed, reach::device>(&qp.rung);
}

// Either leaves for good and returns ~0, or has the baton, stays in the gate and returns where the
// last doorbell ended. `inside`: the group is in the gate.
OXSHMEM_DEVICE uint64_t leave_or_take(Qp &qp, bool inside) {
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
OXSHMEM_OUTLINE void keep_ringing(Qp &qp, Ringers ringers, StampArray stamps, uint64_t rung) {
    constexpr uint32_t kMostRings = 8; // then it is another group's turn
    enum Next : uint32_t { kAgain, kOut, kCheck };
    for (uint32_t rings = 0;;) {
        uint64_t gate = 0;
        if (ringers.leads()) {
            gate = port::load<order::acquire, reach::device>(&qp.gate);
        }
        ringers.meet();
        const uint64_t end = ready_prefix(stamps, ringers, rung);
        const bool news = end != rung;
        rung = end;
        Next next = kAgain;
        if (ringers.leads()) {
            if (news) {
                ring_for<order::acq_rel>(qp, end);
                count_doorbell(qp);
            }
            if (groups_in(gate) == 1) {
                const uint64_t empty = gate - abi::kGateOneGroup;
                next = port::compare_exchange<order::release, reach::device>(&qp.gate, gate, empty) == gate ? kOut : kAgain;
            } else if (!news || ++rings == kMostRings) {
                if (hand_over(qp)) {
                    next = kCheck;
                } else {
                    rung = leave_or_take(qp, false);
                }
            }
        }
        next = ringers.from_leader(next);
        if (next == kCheck) {
            ringers.meet();
            // The others may all be waiting for what was stamped after the scan. Without the baton
            // stamps change while lanes look at them, so one lane decides.
            if (ringers.from_leader<uint32_t>(ready_prefix(stamps, ringers, rung) == rung) != 0) {
                return;
            }
            if (ringers.leads()) {
                rung = leave_or_take(qp, false);
            }
        }
        rung = ringers.from_leader(rung);
        if (next == kOut || rung == ~0ull) {
            return;
        }
        // No pause: this waits for no other poster, and lanes of the group that overtake it would
        // no longer combine with it.
    }
}

// Submits the group's blocks, `blocks` in all, which are written; the lanes' `stamps()` stamp all
// of them. `shared`: lanes wrote to each other's blocks. Every lane of the group calls.
template <class Stamps>
OXSHMEM_DEVICE void submit(Qp &qp, const Group &group, const Reservation &r, uint32_t blocks, bool shared, Stamps stamps) {
    if (group.size > 1 && (r.baton || shared)) {
        port::sync_warp(group.mask);
    }
    uint64_t *const used = as<uint64_t>(port::state().used) + index_of(qp) / 64;
    const uint64_t used_bit = uint64_t{1} << index_of(qp) % 64;
    // Loaded here and looked at below, so that no lane waits for it. Each lane sees to the bit
    // itself: a lane may go on to its own quiet or fence while the leader still rings.
    const uint64_t known = port::load<order::relaxed, reach::device>(used);
    const uint64_t end = r.first + blocks;
    uint64_t rung = ~0ull;
    if (r.baton) {
        if (group.leads()) {
            ring_for<order::release>(qp, end);
            // Alone still?
            const uint64_t alone = end << abi::kGateReservedShift | abi::kGateOneGroup;
            const uint64_t empty = alone - abi::kGateOneGroup;
            count_doorbell(qp);
            rung = port::compare_exchange<order::release, reach::device>(&qp.gate, alone, empty) == alone ? ~0ull : end;
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
    if ((known & used_bit) == 0) {
        port::fetch_or<order::relaxed, reach::device>(used, used_bit);
    }
    // Where lanes do not work together, this is for the leader alone.
    const Ringers ringers{works_together(group)};
    rung = ringers.from_leader(rung);
    if (rung != ~0ull) {
        keep_ringing(qp, ringers, {r.stamps, r.depth_log2}, rung);
    }
}

// Writes and submits what the calling lane has reserved together with its group, `blocks` blocks of
// each. Returns the 64-bit index after the lane's last block, or 0 if nothing was reserved.
template <class Write>
OXSHMEM_DEVICE uint64_t write_reserved(Qp &qp, const Group &group, const Reservation &reservation, uint32_t blocks,
                                       Write write) {
    if (!reservation.ok) {
        return 0;
    }
    const uint32_t offset = blocks * group.rank;
    const uint64_t end = reservation.first + offset + blocks;
    write(slot_at(reservation, offset), group.last());
    submit(qp, group, reservation, blocks * group.size, false, [&] {
        for (uint32_t i = 0; i < blocks; ++i) {
            stamp(reservation, offset + i, blocks - 1 - i);
        }
    });
    return end;
}

// Lets every lane post one sequence of work requests that takes `blocks` blocks, together with the
// lanes that converge here. `write(slot, signaled)` writes it, from the variables `live`. Returns
// as write_reserved.
template <class Write, class... T> OXSHMEM_DEVICE uint64_t post(Qp &qp, uint32_t blocks, Write write, T &...live) {
    Group group = converge(qp, blocks);
    const Reservation reservation = reserve(qp, group, blocks * group.size, blocks, live...);
    return write_reserved(qp, group, reservation, blocks, write);
}

// Like post, with what reserve_preparing does.
template <class Prepare, class Write, class... T>
OXSHMEM_DEVICE uint64_t post_preparing(Qp &qp, uint32_t blocks, Prepare prepare, Write write, T &...live) {
    Group group = converge(qp, blocks);
    const Reservation reservation = reserve_preparing(qp, group, blocks * group.size, prepare, blocks, live...);
    return write_reserved(qp, group, reservation, blocks, write);
}

// A landing slot of a QP.
OXSHMEM_DEVICE bool take_landing(Qp &qp, LandingSlot &landing) {
    return take_landing_slot(landing, &qp.landing_head, qp.laps, qp.landing_log2, qp.pe,
                             [&] { return port::load<order::relaxed, reach::system>(as<uint32_t>(qp.cqe + 60)); });
}

OXSHMEM_DEVICE uint64_t landing_address(const Qp &qp, const LandingSlot &landing) {
    return qp.landing + landing.slot * uint64_t{abi::kLandingBytes};
}

OXSHMEM_DEVICE Located locate_landing(const Qp &qp, const LandingSlot &landing, uint32_t card) {
    return {port::state().slab_lkeys[card], landing_address(qp, landing), abi::kLandingBytes};
}

// Waits for the result that a posted request (`end`, or 0 if none was posted) leaves in a landing
// slot. False: there is none. The slot is free again then, unless the HCA may still write to it.
// `live`: variables of the caller that are in local memory meanwhile.
template <class... T> OXSHMEM_DEVICE bool await_landing(Qp &qp, LandingSlot &landing, uint64_t &end, Op op, T &...live) {
    const Outcome outcome =
        end == 0 ? Outcome::failed : keeping([&] { return wait_completed(qp, end, op); }, landing, end, live...);
    if (outcome == Outcome::failed) {
        landing.release();
    }
    return outcome == Outcome::complete;
}

// Where results go that no lane reads.
OXSHMEM_DEVICE Located discard(const Qp &qp, uint32_t card) {
    return {port::state().slab_lkeys[card], qp.landing + (abi::kLandingBytes << qp.landing_log2), abi::kLandingBytes};
}

} // namespace oxshmem::detail
