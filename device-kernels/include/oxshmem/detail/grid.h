// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Calls by a grid: all of its blocks make them, and run at the same time.
//
// The blocks meet in a word of the team's row, which counts turns and those that have arrived in
// the turn. Where one block can do all that there is to do, the last one to arrive does it, and the
// others wait for the end of the turn. Otherwise the last one ends the turn at once, all blocks
// take part, and meet in another turn when they are through.
//
// A block that waits in vain for the others gives up the turn for all of them. What still arrives
// then, because it had no room on the GPU before, leaves at once, and the last one makes the word
// fit for the next call. If some blocks never arrive, the host does so when it reports the error.
#pragma once

#include "meet.h"

namespace oxshmem::detail {

// What a block is to do in the turn that it has arrived in: what all wait for; to wait for its end,
// because another block does that; or to leave, because the call has failed. The block that has
// given up the turn also tells the other members.
enum class GridPart : uint32_t { lead, follow, leave, tell };

struct GridTurn {
    GridPart part;
    uint32_t number; // modulo 2^31
    bool is_over;    // for a block that follows: the turn is known to have ended
};

// Why the blocks of a grid arrive: for a call that other members take part in and that one block
// makes; for one that this PE makes alone; for one that all blocks share; or because they are
// through with that, so that none of them is missing.
enum class GridCall { of_team, of_pe, shared, through };

// Returns how many turns have ended since turn `from`.
OXSHMEM_DEVICE uint32_t turns_since(uint32_t from, uint64_t seen) {
    return (static_cast<uint32_t>(seen / abi::kGridTurn) - from) & 0x7fffffff;
}

OXSHMEM_DEVICE uint32_t arrived_in(uint64_t seen) {
    return static_cast<uint32_t>(seen);
}

// Begins another turn, `turns` after `from`: 1 if all blocks were there, 2 if the turn was given
// up.
OXSHMEM_DEVICE void end_turn(abi::Team &row, uint32_t from, uint32_t turns) {
    const uint64_t next = static_cast<uint64_t>(from + turns) * abi::kGridTurn;
    port::store<order::release, reach::device>(&row.grid, next);
}

// Arrives, by one thread of a block whose threads have all come here. Unless the block is through
// with a call, waits until all blocks have arrived, or the turn of what they share has ended, or
// one gives up.
template <GridCall kCall> OXSHMEM_OUTLINE GridTurn arrive_in_grid(abi::Team &row, int handle, Op op) {
    const uint32_t blocks = port::grid_blocks();
    uint64_t seen = port::fetch_add<order::acq_rel, reach::device>(&row.grid, uint64_t{1});
    const uint32_t turn = static_cast<uint32_t>(seen / abi::kGridTurn);
    const bool is_last = arrived_in(seen) + 1 == blocks;
    if ((seen & abi::kGridGivenUp) != 0) {
        if (is_last) {
            end_turn(row, turn, 2);
        }
        return {GridPart::leave, turn, false};
    }
    if (is_last || kCall == GridCall::through) {
        return {is_last ? GridPart::lead : GridPart::follow, turn, false};
    }
    const auto is_over = [&] { return turns_since(turn, seen) != 0; };
    const auto is_given_up = [&] {
        const uint32_t since = turns_since(turn, seen);
        return since == 2 || (since == 0 && (seen & abi::kGridGivenUp) != 0);
    };
    const auto is_decided = [&] { return is_over() || arrived_in(seen) == blocks || is_given_up(); };
    const auto missing = [&] { return MissingBlocks{handle, arrived_in(seen), blocks}; };
    const auto looks = [&] {
        seen = port::load<order::acquire, reach::device>(&row.grid);
        // The last block to arrive ends the turn of what all share at once.
        return kCall == GridCall::shared ? is_over() || is_given_up() : is_decided();
    };
    // No block is missed that has arrived.
    const auto progress = [&] { return arrived_in(seen) == blocks ? 1u : 0u; };
    const bool ended = wait(op, missing, &row.grid, looks, progress);
    while (!ended && !is_decided()) {
        const uint64_t given_up = seen | abi::kGridGivenUp;
        const uint64_t found = port::compare_exchange<order::acq_rel, reach::device>(&row.grid, seen, given_up);
        if (found == seen) {
            return {GridPart::tell, turn, false};
        }
        seen = found;
    }
    return {is_given_up() ? GridPart::leave : GridPart::follow, turn, is_over()};
}

// Waits for the end of a turn in which all blocks have arrived or will. What they do meanwhile has
// deadlines of its own, so this wait has one only after one of those has passed.
OXSHMEM_LAZY OXSHMEM_DEVICE bool await_turn(abi::Team &row, int handle, Op op, uint32_t turn) {
    uint32_t looks = 0;
    const auto progress = [&] {
        looks += port::load<order::relaxed, reach::system>(&control().abort) == 0 ? 1 : 0;
        return looks;
    };
    const auto has_ended = [&] { return turns_since(turn, port::load<order::acquire, reach::device>(&row.grid)) != 0; };
    return wait<OnAbort::keep_waiting>(op, Blame{port::state().my_pe, handle}, &row.grid, has_ended, progress);
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
    GridTurn turn{GridPart::follow, 0, false};
    block_scope::sync();
    if (block_scope::rank() == 0) {
        turn = arrive_in_grid<kCall>(row, handle, op);
        if (kCall != GridCall::of_pe && turn.part == GridPart::tell) {
            tell_of_failure(handle, op);
        }
    }
    bool failed = turn.part == GridPart::leave || turn.part == GridPart::tell;
    const bool leads = block_scope::any(turn.part == GridPart::lead);
    if (leads) {
        failed = alone() != 0;
        block_scope::sync();
    }
    if (block_scope::rank() == 0 && turn.part == GridPart::lead) {
        port::store<order::relaxed, reach::device>(&row.grid_failed, failed ? 1u : 0u);
        end_turn(row, turn.number, 1);
    } else if (block_scope::rank() == 0 && turn.part == GridPart::follow) {
        failed = !(turn.is_over || await_turn(row, handle, op, turn.number));
        failed = failed || port::load<order::relaxed, reach::device>(&row.grid_failed) != 0;
    }
    return block_scope::any(failed) ? 1 : 0;
}

// All blocks meet, before a call that they share or after it. All threads of all blocks return 0,
// or 1 if not all blocks have arrived, or, after the call, if one has said that it has failed.
template <GridCall kCall> OXSHMEM_DEVICE int meet_in_grid(int handle, Op op) {
    static_assert(kCall == GridCall::shared || kCall == GridCall::through);
    if (!find_for_grid(handle, op)) {
        return 1;
    }
    abi::Team &row = team_row(handle);
    bool failed = false;
    block_scope::sync();
    if (block_scope::rank() == 0) {
        const GridTurn turn = arrive_in_grid<kCall>(row, handle, op);
        if (turn.part == GridPart::lead) {
            if (kCall == GridCall::shared) {
                // Before the turn ends: a block that begins with its share then may fail at once.
                port::store<order::relaxed, reach::device>(&row.grid_failed, 0u);
            }
            end_turn(row, turn.number, 1);
        } else if (turn.part == GridPart::follow) {
            failed = !(turn.is_over || await_turn(row, handle, op, turn.number));
        } else {
            failed = true;
            if (kCall == GridCall::shared && turn.part == GridPart::tell) {
                tell_of_failure(handle, op);
            }
        }
        if (kCall == GridCall::through) {
            failed = failed || port::load<order::relaxed, reach::device>(&row.grid_failed) != 0;
        }
    }
    return block_scope::any(failed) ? 1 : 0;
}

// All blocks call `all`, which returns 0 if it was successful, after all have arrived. All threads
// of all blocks return 0 if it was successful in all, once it has ended in all.
template <class All> OXSHMEM_DEVICE int by_all_blocks(int handle, Op op, All all) {
    if (meet_in_grid<GridCall::shared>(handle, op) != 0) {
        return 1;
    }
    if (all() != 0 && block_scope::rank() == 0) {
        port::store<order::relaxed, reach::device>(&team_row(handle).grid_failed, 1u);
    }
    return meet_in_grid<GridCall::through>(handle, op);
}

} // namespace oxshmem::detail
