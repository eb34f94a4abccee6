// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Calls by a grid: all of its blocks make them, and run at the same time.
//
// The blocks arrive in a word of the team's row, which counts turns and those that have arrived in
// the turn. Where one block can do all that there is to do, the last one to arrive does it, ends
// the turn, and the others wait for that. A turn that has ended well is followed by the next, and
// one that has failed by the one after that. Where all blocks take part, the turn ends with the
// last arrival (grid_meet.h): the first block adds what is missing to the next turn, less what each
// of the others adds. A block whose part has failed arrives last, and adds one turn more.
//
// A block that waits in vain for the others gives up the turn for all of them. What arrives then,
// because it had no room on the GPU before or because it goes on after the error, leaves at once.
// The host makes the word fit for further calls when it reports the error.
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
    uint32_t number; // modulo 2^29
    GridEnd end;     // as far as the block has seen
};

// Which PEs take part in a call of a grid that one block makes: all members of the team, or this
// one alone.
enum class GridCall { of_team, of_pe };

OXSHMEM_DEVICE uint32_t turn_of(uint64_t seen) {
    return static_cast<uint32_t>(seen / abi::kGridTurn);
}

// How many of `blocks` blocks have arrived. When the first block has in a turn that ends by itself,
// those that are missing are counted, below 0.
OXSHMEM_DEVICE uint32_t arrived_in(uint64_t seen, uint32_t blocks) {
    const uint32_t counted = static_cast<uint32_t>(seen / abi::kGridArrival);
    return counted >> 31 == 0 ? counted : counted + blocks;
}

// The bit that says that a turn has been given up, or that one has two turns before: those have
// ended then.
OXSHMEM_DEVICE uint64_t given_up_bit(uint32_t turn) {
    return abi::kGridGivenUpEven << (turn & 1);
}

// How turn `turn` has ended. After one has been given up none ends any more.
OXSHMEM_DEVICE GridEnd end_of_turn(uint32_t turn, uint64_t seen) {
    const uint64_t given_up = seen & abi::kGridGivenUp;
    if (given_up != 0) {
        return given_up == given_up_bit(turn) ? GridEnd::failed : GridEnd::good;
    }
    const uint32_t since = (turn_of(seen) - turn) & static_cast<uint32_t>(~uint64_t{0} / abi::kGridTurn);
    return since == 0 ? GridEnd::none : since == 1 ? GridEnd::good : GridEnd::failed;
}

// Begins another turn, by the block that ends this one.
OXSHMEM_DEVICE void end_turn(abi::Team &row, uint32_t turn, GridEnd end) {
    const uint64_t next = static_cast<uint64_t>(turn + static_cast<uint32_t>(end)) * abi::kGridTurn;
    port::store<order::release, reach::device>(&row.grid, next);
}

// Takes an epoch for a call that the blocks of this PE's grid have not all made, and tells the
// other members that the call is a bad one: they wait for it. Several blocks may do so at once, for
// calls one after the other.
OXSHMEM_LAZY OXSHMEM_OUTLINE void tell_of_failure(int handle, Op op) {
    TeamView team;
    if (!view_team<thread_scope>(team, handle, op)) {
        return;
    }
    uint32_t &epoch = team_row(handle).epoch;
    uint32_t before = port::load<order::relaxed, reach::device>(&epoch), found = 0;
    while ((found = port::compare_exchange<order::acq_rel, reach::device>(&epoch, before, epoch_after(before))) != before) {
        before = found;
    }
    team.epoch = epoch_after(before);
    const uint64_t header = header_of(team, announce_bad(port::state().my_pe));
    if (team.one_round) {
        tell_all(team, header, 0, 1);
    } else {
        meet_in_rounds<false>(handle, op, header);
    }
}

// Records once more that a turn has been given up, for a block that has found `seen` in the word:
// the host may have taken the error before.
OXSHMEM_LAZY OXSHMEM_NOINLINE void report_given_up(uint64_t seen, int handle, Op op) {
    const uint32_t blocks = port::grid_blocks(), arrived = arrived_in(seen, blocks);
    raise_timeout(op, MissingBlocks{handle, arrived < blocks ? arrived : blocks - 1, blocks}, nullptr);
}

// Keeps the members in step where this PE's grid has given up an earlier call, by each block that
// begins one and has found `seen` in the word. Each member takes an epoch for each call, so one
// block of the grid does so for each that fails like this: the one that finds as many arrivals as
// make up whole calls. The members are in step then when the host has taken the error, unless as
// many blocks as the grid has have left calls out.
OXSHMEM_LAZY OXSHMEM_NOINLINE void take_failed_epoch(uint64_t seen, int handle, Op op) {
    const int32_t counted = static_cast<int32_t>(seen / abi::kGridArrival);
    if (counted % static_cast<int32_t>(port::grid_blocks()) == 0) {
        tell_of_failure(handle, op);
    }
}

// Whether a turn had been given up when the calling block found `seen` in the word. Records the
// error once more then.
OXSHMEM_LAZY OXSHMEM_DEVICE bool finds_given_up(uint64_t seen, int handle, Op op) {
    if ((seen & abi::kGridGivenUp) == 0) {
        return false;
    }
    report_given_up(seen, handle, op);
    return true;
}

// The same where the block begins a call.
template <GridCall kCall = GridCall::of_team> OXSHMEM_DEVICE bool refuses_given_up(uint64_t seen, int handle, Op op) {
    if (!finds_given_up(seen, handle, op)) {
        return false;
    }
    if (kCall == GridCall::of_team) {
        take_failed_epoch(seen, handle, op);
    }
    return true;
}

// Waits until all blocks have arrived in the turn, or it has ended, or been given up. `seen`: what
// is in the word. Returns true if the calling block misses others, and has given up the turn.
OXSHMEM_LAZY OXSHMEM_DEVICE bool await_or_give_up(abi::Team &row, int handle, Op op, uint32_t turn, uint64_t &seen) {
    const uint32_t blocks = port::grid_blocks();
    const auto is_open = [&] { return end_of_turn(turn, seen) == GridEnd::none && arrived_in(seen, blocks) != blocks; };
    const auto missing = [&] { return MissingBlocks{handle, arrived_in(seen, blocks), blocks}; };
    const bool ended = wait(op, missing, &row.grid, [&] {
        seen = port::load<order::acquire, reach::device>(&row.grid);
        return !is_open();
    });
    while (!ended && is_open()) {
        const uint64_t given_up = seen | given_up_bit(turn);
        const uint64_t found = port::compare_exchange<order::acq_rel, reach::device>(&row.grid, seen, given_up);
        if (found == seen) {
            return true;
        }
        seen = found;
    }
    return false;
}

// Returns whether turn `turn` ends well within a few looks, as most do. In few instructions, by one
// thread for which all others of its block wait.
OXSHMEM_LAZY OXSHMEM_DEVICE bool ends_well_soon(const abi::Team &row, uint32_t turn) {
    const uint32_t next = (turn + 1) & static_cast<uint32_t>(~uint64_t{0} / abi::kGridTurn);
    OXSHMEM_NO_UNROLL
    for (uint32_t look = 0; look < port::kLooks; ++look) {
        const uint64_t seen = port::load<order::acquire, reach::device>(&row.grid);
        if (turn_of(seen) == next && (seen & abi::kGridGivenUp) == 0) {
            return true;
        }
        port::pause();
    }
    return false;
}

// What is left of arrive_in_grid for a block that has found `seen` in the word, and does not lead.
template <GridCall kCall> OXSHMEM_NOINLINE GridTurn await_arrivals_in_grid(abi::Team &row, int handle, Op op, uint64_t seen) {
    const uint32_t turn = turn_of(seen);
    if (refuses_given_up<kCall>(seen, handle, op)) {
        return {GridPart::follow, turn, GridEnd::failed};
    }
    if (await_or_give_up(row, handle, op, turn, seen)) {
        return {GridPart::tell, turn, GridEnd::failed};
    }
    return {GridPart::follow, turn, end_of_turn(turn, seen)};
}

// Arrives, by one thread of a block whose threads have all come here, and waits until all blocks
// have arrived, or one gives up.
template <GridCall kCall> OXSHMEM_DEVICE GridTurn arrive_in_grid(abi::Team &row, int handle, Op op) {
    const uint32_t blocks = port::grid_blocks();
    const uint64_t seen = port::fetch_add<order::acq_rel, reach::device>(&row.grid, abi::kGridArrival);
    const uint32_t turn = turn_of(seen);
    if ((seen & abi::kGridGivenUp) == 0 && arrived_in(seen, blocks) + 1 == blocks) {
        return {GridPart::lead, turn, GridEnd::good};
    }
    if (ends_well_soon(row, turn)) {
        return {GridPart::follow, turn, GridEnd::good};
    }
    return await_arrivals_in_grid<kCall>(row, handle, op, seen);
}

// Progress of a wait that has a deadline only from the time on when the launch is aborted: what it
// waits for has deadlines of its own.
struct UntilAborted {
    uint32_t looks = 0;
    OXSHMEM_DEVICE uint32_t operator()() {
        looks += port::load<order::relaxed, reach::system>(&control().abort) == 0 ? 1 : 0;
        return looks;
    }
};

// Waits for the end of a turn in which all blocks have arrived or will.
OXSHMEM_LAZY OXSHMEM_DEVICE GridEnd await_turn(abi::Team &row, int handle, Op op, uint32_t turn) {
    GridEnd end = GridEnd::none;
    const auto has_ended = [&] {
        end = end_of_turn(turn, port::load<order::acquire, reach::device>(&row.grid));
        return end != GridEnd::none;
    };
    wait<OnAbort::keep_waiting>(op, Blame{port::state().my_pe, handle}, &row.grid, has_ended, UntilAborted{});
    return end;
}

// Returns what the calling block adds to the word to arrive in a turn that ends by itself.
OXSHMEM_DEVICE uint64_t own_arrival() {
    return port::block_rank() == 0 ? abi::kGridTurn - abi::kGridArrival * (port::grid_blocks() - 1) : abi::kGridArrival;
}
// Arrives in such a turn, by one thread of a block. Returns what was in the word.
template <order O> OXSHMEM_DEVICE uint64_t count_block(abi::Team &row) {
    return port::fetch_add<O, reach::device>(&row.grid, own_arrival());
}

// The same by a block whose part has failed: it waits until all others have arrived, and then lets
// the turn end as failed. The first such block of a turn does so, and further ones arrive as those
// do whose parts are good. If the wait is in vain, the block gives up the turn.
OXSHMEM_LAZY OXSHMEM_OUTLINE uint64_t count_failed(abi::Team &row, int handle, Op op) {
    constexpr order kOrder = order::acq_rel;
    uint64_t seen = port::load<order::acquire, reach::device>(&row.grid);
    while (true) {
        if ((seen & (abi::kGridGivenUp | abi::kGridFails)) != 0) {
            return count_block<kOrder>(row);
        }
        const uint64_t found = port::compare_exchange<kOrder, reach::device>(&row.grid, seen, seen | abi::kGridFails);
        if (found == seen) {
            break;
        }
        seen = found;
    }
    const auto are_there = [&] {
        seen = port::load<order::acquire, reach::device>(&row.grid);
        return arrived_in(seen, port::grid_blocks()) + 1 == port::grid_blocks();
    };
    wait<OnAbort::keep_waiting>(op, Blame{port::state().my_pe, handle}, &row.grid, are_there, UntilAborted{});
    while (!are_there()) {
        const uint64_t given_up = seen | given_up_bit(turn_of(seen));
        if (port::compare_exchange<kOrder, reach::device>(&row.grid, seen, given_up) == seen) {
            count_block<kOrder>(row);
            return given_up;
        }
    }
    port::fetch_add<kOrder, reach::device>(&row.grid, own_arrival() + abi::kGridTurn - abi::kGridFails);
    return seen;
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
// of all blocks return that, or 1 if not all blocks have arrived. The caller has found the team.
template <GridCall kCall, class Alone> OXSHMEM_DEVICE int by_last_block(int handle, Op op, Alone alone) {
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

} // namespace oxshmem::detail
