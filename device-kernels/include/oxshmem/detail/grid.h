// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Calls by a grid: all of its blocks make them, and run at the same time.
//
// The blocks meet in a word of the team's row, which counts turns and those that have arrived in
// the turn. Where one block can do all that there is to do, the last one to arrive does it, and the
// others wait for the end of the turn. Otherwise all blocks take part, and meet in another turn
// when they are through. Such turns end by themselves, with the last arrival: the first block adds
// what is missing to the next turn, less what each of the others adds.
//
// A turn that has ended well is followed by the next, and one that has failed by the one after
// that: so the look that tells a block of the end also tells it how the turn has ended.
//
// A block that waits in vain for the others gives up the turn for all of them. What still arrives
// then, because it had no room on the GPU before, leaves at once, and the last one makes the word
// fit for the next call. If some blocks never arrive, the host does so when it reports the error.
#pragma once

#include "meet.h"

namespace oxshmem::detail {

// What a block is to do in the turn that it has arrived in: what all wait for; to wait for its end,
// unless it knows that; or, for the block that has given up the turn, to tell the other members.
enum class GridPart : uint32_t { lead, follow, tell };

// How a turn has ended.
enum class GridEnd : uint32_t { none, good, failed };

struct GridTurn {
    GridPart part;
    uint32_t number; // modulo 2^30
    GridEnd end;     // as far as the block has seen
};

// Why the blocks of a grid arrive: for a call that other members take part in and that one block
// makes; for one that this PE makes alone; for one that all blocks share; or because they are
// through with that, so that none of them is missing.
enum class GridCall { of_team, of_pe, shared, through };

OXSHMEM_DEVICE uint32_t turn_of(uint64_t seen) {
    return static_cast<uint32_t>(seen / abi::kGridTurn);
}

OXSHMEM_DEVICE bool is_failing(uint64_t seen) {
    return (seen & abi::kGridFails) != 0;
}

OXSHMEM_DEVICE bool is_given_up(uint64_t seen) {
    return (seen & abi::kGridGivenUp) != 0;
}

// How many of `blocks` blocks have arrived. When the first block has in a turn that ends by itself,
// those that are missing are counted, below 0.
OXSHMEM_DEVICE uint32_t arrived_in(uint64_t seen, uint32_t blocks) {
    const uint32_t counted = static_cast<uint32_t>(seen / abi::kGridArrival);
    return counted >> 31 == 0 ? counted : counted + blocks;
}

// What a block adds when it arrives.
template <GridCall kCall> OXSHMEM_DEVICE uint64_t arrival_of_block(uint32_t blocks) {
    constexpr bool kEndsByItself = kCall == GridCall::shared || kCall == GridCall::through;
    return kEndsByItself && port::block_rank() == 0 ? abi::kGridTurn - abi::kGridArrival * (blocks - 1) : abi::kGridArrival;
}

// How turn `from` has ended.
OXSHMEM_DEVICE GridEnd end_of_turn(uint32_t from, uint64_t seen) {
    const uint32_t since = (turn_of(seen) - from) & static_cast<uint32_t>(~uint64_t{0} / abi::kGridTurn);
    // What is given up is turn `from` itself, of which all blocks may have arrived meanwhile, and
    // the last of them has yet to begin another one; or the next turn, in which the caller is
    // missed, and then the launch is aborted all the same.
    if (since > 1 || is_given_up(seen)) {
        return GridEnd::failed;
    }
    if (since == 0) {
        return GridEnd::none;
    }
    // No block has arrived since, and a part has failed. It is one of turn `from`, which the last
    // block is about to end, or one of the next turn, in which the block of that part is about to
    // arrive: the next look tells.
    return seen % abi::kGridTurn == abi::kGridFails ? GridEnd::none : GridEnd::good;
}

// Begins another turn, by the block that ends this one.
OXSHMEM_DEVICE void end_turn(abi::Team &row, uint32_t turn, GridEnd end) {
    const uint64_t next = static_cast<uint64_t>(turn + static_cast<uint32_t>(end)) * abi::kGridTurn;
    port::store<order::release, reach::device>(&row.grid, next);
}

// Lets the turn fail, by a block that has yet to arrive in it.
OXSHMEM_LAZY OXSHMEM_OUTLINE void fail_turn(abi::Team &row) {
    uint64_t seen = port::load<order::relaxed, reach::device>(&row.grid);
    while (!is_failing(seen)) {
        const uint64_t failing = seen | abi::kGridFails;
        const uint64_t found = port::compare_exchange<order::acq_rel, reach::device>(&row.grid, seen, failing);
        seen = found == seen ? failing : found;
    }
}

// Arrives, by one thread of a block whose threads have all come here. Unless the block is through
// with a call, waits until all blocks have arrived, or the turn of what they share has ended, or
// one gives up.
template <GridCall kCall> OXSHMEM_OUTLINE GridTurn arrive_in_grid(abi::Team &row, int handle, Op op) {
    const uint32_t blocks = port::grid_blocks();
    uint64_t seen = port::fetch_add<order::acq_rel, reach::device>(&row.grid, arrival_of_block<kCall>(blocks));
    const uint32_t turn = turn_of(seen);
    const bool is_last = arrived_in(seen, blocks) + 1 == blocks;
    if (is_last && (is_given_up(seen) || is_failing(seen))) {
        end_turn(row, turn, GridEnd::failed);
    }
    if (is_given_up(seen)) {
        return {GridPart::follow, turn, GridEnd::failed};
    }
    if (is_last) {
        return {GridPart::lead, turn, is_failing(seen) ? GridEnd::failed : GridEnd::good};
    }
    if (kCall == GridCall::through) {
        return {GridPart::follow, turn, GridEnd::none};
    }
    const auto is_in_turn = [&] { return turn_of(seen) == turn; };
    const auto all_are_here = [&] { return is_in_turn() && arrived_in(seen, blocks) == blocks; };
    const auto is_decided = [&] { return all_are_here() || end_of_turn(turn, seen) != GridEnd::none; };
    const auto missing = [&] { return MissingBlocks{handle, arrived_in(seen, blocks), blocks}; };
    const auto looks = [&] {
        seen = port::load<order::acquire, reach::device>(&row.grid);
        return is_decided();
    };
    // No block is missed that has arrived.
    const auto progress = [&] { return all_are_here() ? 1u : 0u; };
    const bool ended = wait(op, missing, &row.grid, looks, progress);
    while (!ended && !is_decided()) {
        // A turn that has ended is not given up: the next look tells how it has ended.
        const uint64_t given_up = is_in_turn() ? seen | abi::kGridGivenUp : seen;
        const uint64_t found = port::compare_exchange<order::acq_rel, reach::device>(&row.grid, seen, given_up);
        if (found == seen && is_in_turn()) {
            return {GridPart::tell, turn, GridEnd::failed};
        }
        seen = found;
    }
    return {GridPart::follow, turn, end_of_turn(turn, seen)};
}

// Waits for the end of a turn in which all blocks have arrived or will. What they do meanwhile has
// deadlines of its own, so this wait has one only after one of those has passed.
OXSHMEM_LAZY OXSHMEM_DEVICE GridEnd await_turn(abi::Team &row, int handle, Op op, uint32_t turn) {
    uint32_t looks = 0;
    const auto progress = [&] {
        looks += port::load<order::relaxed, reach::system>(&control().abort) == 0 ? 1 : 0;
        return looks;
    };
    GridEnd end = GridEnd::none;
    const auto has_ended = [&] {
        end = end_of_turn(turn, port::load<order::acquire, reach::device>(&row.grid));
        return end != GridEnd::none;
    };
    wait<OnAbort::keep_waiting>(op, Blame{port::state().my_pe, handle}, &row.grid, has_ended, progress);
    return end;
}

// Tells the other members that this one's call is a bad one: they wait for it.
OXSHMEM_LAZY OXSHMEM_OUTLINE void tell_of_failure(int handle, Op op) {
    TeamView team;
    if (view_team<thread_scope>(team, handle, op)) {
        meet<thread_scope, false>(team, op, announce_bad(port::state().my_pe));
    }
}

// Whether there is such a team; if not, one thread of the grid says so.
OXSHMEM_LAZY OXSHMEM_DEVICE bool find_for_grid(int handle, Op op) {
    if (find_team(handle) != nullptr) {
        return true;
    }
    if (grid_scope::rank() == 0) {
        raise(ErrorCode::bad_team, op, {-1, handle}, 0, static_cast<uint32_t>(handle));
    }
    return false;
}

// The last block to arrive calls `alone` for all, which returns 0 if it was successful. All threads
// of all blocks return that, or 1 if not all blocks have arrived.
template <GridCall kCall, class Alone> OXSHMEM_DEVICE int by_last_block(int handle, Op op, Alone alone) {
    static_assert(kCall == GridCall::of_team || kCall == GridCall::of_pe);
    if (!find_for_grid(handle, op)) {
        return 1;
    }
    abi::Team &row = team_row(handle);
    GridTurn turn{GridPart::follow, 0, GridEnd::none};
    block_scope::sync();
    if (block_scope::rank() == 0) {
        turn = arrive_in_grid<kCall>(row, handle, op);
        if (kCall != GridCall::of_pe && turn.part == GridPart::tell) {
            tell_of_failure(handle, op);
        }
    }
    bool failed = turn.end == GridEnd::failed;
    const bool leads = block_scope::any(turn.part == GridPart::lead);
    if (leads) {
        failed = alone() != 0;
        block_scope::sync();
    }
    if (block_scope::rank() == 0 && turn.part == GridPart::lead) {
        end_turn(row, turn.number, failed ? GridEnd::failed : GridEnd::good);
    } else if (block_scope::rank() == 0 && turn.end == GridEnd::none) {
        failed = await_turn(row, handle, op, turn.number) != GridEnd::good;
    }
    return block_scope::any(failed) ? 1 : 0;
}

// All blocks meet, before a call that they share or after it. `good`: the calling block's part was
// successful. All threads of all blocks return 0, or 1 if not all blocks have arrived, or, after
// the call, if it was not successful in one. The caller has found the team.
template <GridCall kCall> OXSHMEM_DEVICE int meet_in_grid(int handle, Op op, bool good = true) {
    static_assert(kCall == GridCall::shared || kCall == GridCall::through);
    abi::Team &row = team_row(handle);
    bool failed = false;
    block_scope::sync();
    if (block_scope::rank() == 0) {
        if (kCall == GridCall::through && !good) {
            fail_turn(row);
        }
        const GridTurn turn = arrive_in_grid<kCall>(row, handle, op);
        if (kCall == GridCall::shared && turn.part == GridPart::tell) {
            tell_of_failure(handle, op);
        }
        const GridEnd end = turn.end == GridEnd::none ? await_turn(row, handle, op, turn.number) : turn.end;
        failed = end != GridEnd::good;
    }
    return block_scope::any(failed) ? 1 : 0;
}

// All blocks call `all`, which returns 0 if it was successful, after all have arrived. All threads
// of all blocks return 0 if it was successful in all, once it has ended in all.
template <class All> OXSHMEM_DEVICE int by_all_blocks(int handle, Op op, All all) {
    if (meet_in_grid<GridCall::shared>(handle, op) != 0) {
        return 1;
    }
    const bool good = all() == 0;
    return meet_in_grid<GridCall::through>(handle, op, good);
}

} // namespace oxshmem::detail
