// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Calls that all blocks of a grid share: how they meet before and after it.
//
// A collective by packets meets the other members as these arrive, so the blocks of a grid meet
// each other alone, in turns that end by themselves (grid.h).
//
// A collective straight between buffers is a meeting of all blocks of all members' grids. A block
// arrives in its grid's turn, and tells all members that it has entered. The blocks that work on
// the data go on when they have heard that of all blocks of all members. When they have done their
// part, they tell how it has ended, and all blocks wait for what all of them tell. Each word is
// there for all blocks, so they decide alike.
//
// A block that leaves before the others have entered waits for the end of its grid's turn first, or
// gives it up. In the first case all blocks that work on the data will tell how their part has
// ended, and it waits for those of its grid. In the second one the block that gives up tells of a
// bad call in the names of all that are missing, which tell nothing any more.
#pragma once

#include "collective.h"
#include "grid.h"

namespace oxshmem::detail {

// Waits until all blocks have arrived in a turn that ends by itself, by one that has found `seen`
// in the word and has arrived. Returns false if one is missing; if `begins`, and so the call has
// not met the other members yet, these are told of that.
OXSHMEM_LAZY OXSHMEM_NOINLINE bool await_entered_turn(abi::Team &row, int handle, Op op, uint64_t seen, bool begins) {
    const uint32_t turn = turn_of(seen);
    if (begins ? refuses_given_up(seen, handle, op) : finds_given_up(seen, handle, op)) {
        return false;
    }
    if (await_or_give_up(row, handle, op, turn, seen)) {
        if (begins) {
            tell_of_failure(handle, op);
        }
        return false;
    }
    return end_of_turn(turn, seen) == GridEnd::good;
}

// Waits likewise until such a turn has ended. Returns whether it has ended well.
OXSHMEM_LAZY OXSHMEM_NOINLINE bool await_left_turn(abi::Team &row, int handle, Op op, uint64_t seen) {
    return !finds_given_up(seen, handle, op) && await_turn(row, handle, op, turn_of(seen)) == GridEnd::good;
}

// Meets the blocks of this PE's grid before a call that they share, or (unless `begins`) before
// they end one: waits until all of them have arrived, and sees what they have stored before.
// Returns the same to all lanes of all blocks: false if a block is missing.
OXSHMEM_LAZY OXSHMEM_DEVICE bool enter_own_grid(int handle, Op op, bool begins = true) {
    abi::Team &row = team_row(handle);
    bool good = true;
    block_scope::sync();
    if (block_scope::rank() == 0) {
        const uint64_t seen = count_block<order::acq_rel>(row);
        good = ends_well_soon(row, turn_of(seen)) || await_entered_turn(row, handle, op, seen, begins);
    }
    return !block_scope::any(!good);
}

// Meets them after it: `good` says whether the calling lane's part has ended well. Returns the same
// to all lanes of all blocks: whether all parts have.
OXSHMEM_LAZY OXSHMEM_DEVICE bool leave_own_grid(int handle, Op op, bool good) {
    abi::Team &row = team_row(handle);
    good = !block_scope::any(!good);
    if (block_scope::rank() == 0) {
        const uint64_t seen = good ? count_block<order::acq_rel>(row) : count_failed(row, handle, op);
        good = (good && ends_well_soon(row, turn_of(seen))) || await_left_turn(row, handle, op, seen);
    }
    return !block_scope::any(!good);
}

// Words that the blocks of each member have of a kind, an even number: in large teams fewer, but as
// many as blocks can work on the data.
OXSHMEM_DEVICE uint32_t words_of_member(const TeamView &team) {
    const uint32_t most = abi::kGridWordsOfAll / static_cast<uint32_t>(team.n) & ~1u;
    return most < abi::kGridWords ? most : abi::kGridWords;
}

// The most blocks of a grid that tell that they have entered, less where there are fewer words. In
// a larger grid all blocks have arrived before those that work on the data tell it. The schedule
// explorer has fewer.
#ifndef OXSHMEM_GRID_WORDS
#define OXSHMEM_GRID_WORDS oxshmem::abi::kGridWords
#endif
constexpr uint32_t kMostTelling = OXSHMEM_GRID_WORDS;

OXSHMEM_DEVICE bool every_block_tells(const TeamView &team) {
    return port::grid_blocks() <= kMostTelling && port::grid_blocks() <= words_of_member(team);
}
OXSHMEM_DEVICE uint32_t telling_blocks(const TeamView &team) {
    return every_block_tells(team) ? port::grid_blocks() : sharing_blocks();
}

// Whether the calling block works on the data. In a large grid the arguments of the others are not
// compared.
template <class Scope> OXSHMEM_DEVICE bool is_sharing() {
    return !kInGrid<Scope> || port::block_rank() < sharing_blocks();
}

// What a block tells: that it has entered, by a header; and how its part has ended.
enum class GridWord : uint32_t { entered, ended };
constexpr uint32_t kEndedWell = 1, kEndedBadly = 2;

// Where the blocks of a member tell this PE.
OXSHMEM_DEVICE uint64_t *grid_words(const TeamView &team, GridWord kind, int member) {
    const uint32_t row = team.parity() * 2 + static_cast<uint32_t>(kind);
    const uint32_t place = row * static_cast<uint32_t>(team.n) + static_cast<uint32_t>(member);
    return as<uint64_t>(port::read(&team_row(team.handle).grid_words)) + place * words_of_member(team);
}

// Tells that a block of this PE has entered. The first one tells it where calls of one block meet,
// too, and so learns of those.
OXSHMEM_DEVICE void tell_entry(const TeamView &team, uint32_t block, uint64_t header) {
    tell_members(team, grid_words(team, GridWord::entered, team.me) + block, header, 0, 1);
    if (block == 0) {
        tell_all(team, header, 0, 1);
    }
}

// Tells how the calling block's part has ended; by `lanes` lanes.
OXSHMEM_DEVICE void tell_end(const TeamView &team, uint32_t how, int rank, int lanes) {
    uint64_t *own = grid_words(team, GridWord::ended, team.me) + port::block_rank();
    tell_members(team, own, static_cast<uint64_t>(team.epoch) << 32 | how, rank, lanes);
}

// A block that has not entered in time: of this PE's grid, or of another member's.
struct LateBlock {
    Blame blame;
    bool is_own;
    uint32_t arrived, blocks;
};
OXSHMEM_LAZY OXSHMEM_DEVICE void raise_timeout(Op op, const LateBlock &late, const void *address) {
    if (late.is_own) {
        raise_timeout(op, MissingBlocks{late.blame.team, late.arrived, late.blocks}, address);
    } else {
        raise_timeout(op, late.blame, address);
    }
}

// Returns how many of the first `blocks` blocks of this PE have entered, of which one had not.
OXSHMEM_LAZY OXSHMEM_OUTLINE uint32_t count_entered(TeamView team, uint64_t header, uint32_t blocks) {
    uint32_t count = 0;
    for (uint32_t block = 0; block < blocks; ++block) {
        const uint64_t *word = grid_words(team, GridWord::entered, team.me) + block;
        count += entered(port::load<order::relaxed, reach::system>(word), header) ? 1 : 0;
    }
    return count < blocks ? count : blocks - 1;
}

// Two of the words that the lanes of a block wait for, or one.
struct WordPair {
    const uint64_t *words;
    int member;    // that writes the first one
    int to_second; // how many members after it the one is that writes the second
    bool two;
};

// Looks a few times whether the words that the calling lane waits for are there and are what is
// wanted, as they mostly are. The lane has every pair that is the block's size further, from `item`
// on. In few instructions. Returns whether all are, and in `item` the first pair that is not.
template <class Words> OXSHMEM_DEVICE bool come_soon(const Words &words, uint32_t &item) {
    OXSHMEM_NO_UNROLL
    for (; item < words.items(); item += block_scope::size()) {
        const WordPair pair = words.pair(item);
        if (!see_two(pair.words, pair.two, words.wanted(), port::kLooks)) {
            return false;
        }
    }
    return true;
}

// The words by which `blocks` blocks of all members tell that they have entered: where calls of one
// block meet, those of two members; then those of two blocks of one.
struct GridEntries {
    const TeamView &team;
    uint64_t header;
    uint32_t blocks;

    OXSHMEM_DEVICE uint32_t firsts() const { return (static_cast<uint32_t>(team.n) + 1) / 2; }
    OXSHMEM_DEVICE uint32_t items() const { return firsts() + static_cast<uint32_t>(team.n) * ((blocks + 1) / 2); }
    OXSHMEM_DEVICE uint64_t wanted() const { return header; }
    OXSHMEM_DEVICE WordPair pair(uint32_t item) const {
        if (item < firsts()) {
            const int member = 2 * static_cast<int>(item);
            return {team.headers() + member, member, 1, member + 1 < team.n};
        }
        const uint32_t pairs = (blocks + 1) / 2, of = member_of(item - firsts(), pairs, team.n);
        const uint32_t block = 2 * (item - firsts() - of * pairs);
        const int member = static_cast<int>(of);
        return {grid_words(team, GridWord::entered, member) + block, member, 0, block + 1 < blocks};
    }
};

// Waits, together with the other lanes of the block, until the first `blocks` blocks of all members
// have entered: each lane waits for words of its own, from `item` on. Returns whether those that
// the calling lane waits for have entered the same call. The first lane that finds one that has not
// stops the others of its grid: that member's grid may have fewer blocks, for which they would wait
// in vain.
OXSHMEM_LAZY OXSHMEM_NOINLINE bool await_entries(TeamView team, Op op, uint64_t header, uint32_t blocks, uint32_t item) {
    abi::Team &row = team_row(team.handle);
    const GridEntries entries{team, header, blocks};
    bool agreed = true;
    for (; item < entries.items(); item += block_scope::size()) {
        const WordPair pair = entries.pair(item);
        // When the first block leaves, all members have entered, so no PE gets ahead of the others.
        const bool stays = item < entries.firsts() && port::block_rank() == 0;
        if (!agreed && !stays) {
            break;
        }
        port::pair64 seen{};
        bool stopped = false;
        const auto late = [&] {
            const int missing = pair.member + (entered(seen.first, header) ? pair.to_second : 0);
            const bool is_own = missing == team.me;
            return LateBlock{team.blame(missing), is_own, is_own ? count_entered(team, header, blocks) : 0, blocks};
        };
        const bool there = wait(op, late, pair.words, [&] {
            seen = port::load_pair<order::acquire, reach::system>(pair.words);
            stopped = !stays && port::load<order::relaxed, reach::device>(&row.stopped) == team.epoch;
            return stopped || (entered(seen.first, header) && (!pair.two || entered(seen.second, header)));
        });
        if (!there || stopped) {
            return false;
        }
        on_arrivals(pair.words, pair.two);
        if (seen.first != header || (pair.two && seen.second != header)) {
            const bool is_second = seen.first == header;
            const uint64_t other = is_second ? seen.second : seen.first;
            const int by = pair.member + (is_second ? pair.to_second : 0);
            port::store<order::relaxed, reach::device>(&row.stopped, team.epoch);
            // What a block of this PE has been refused is recorded.
            if (by != team.me || !is_bad(static_cast<uint32_t>(other))) {
                agrees(team.handle, op, by, other, header);
            }
            agreed = false;
        }
    }
    return agreed;
}

// The words by which the blocks of `members` members from `first` on that work on the data tell how
// their part has ended.
struct GridEnds {
    const TeamView &team;
    int first, members;

    OXSHMEM_DEVICE uint32_t pairs() const { return (sharing_blocks() + 1) / 2; }
    OXSHMEM_DEVICE uint32_t items() const { return static_cast<uint32_t>(members) * pairs(); }
    OXSHMEM_DEVICE uint64_t wanted() const { return static_cast<uint64_t>(team.epoch) << 32 | kEndedWell; }
    OXSHMEM_DEVICE WordPair pair(uint32_t item) const {
        const uint32_t of = member_of(item, pairs(), members), block = 2 * (item - of * pairs());
        const int member = first + static_cast<int>(of);
        return {grid_words(team, GridWord::ended, member) + block, member, 0, block + 1 < sharing_blocks()};
    }
};

// Waits, together with the other lanes of the block, until these blocks have done their part; each
// lane for words of its own, from `item` on. Returns whether those that the calling lane waits for
// have ended well. Records that another member's have not.
template <OnAbort A, class Progress>
OXSHMEM_NOINLINE bool await_ends(TeamView team, Op op, int first, int members, uint32_t item, Progress progress) {
    const GridEnds ends{team, first, members};
    const uint64_t well = ends.wanted();
    bool ended_well = true;
    for (; item < ends.items(); item += block_scope::size()) {
        const WordPair pair = ends.pair(item);
        port::pair64 seen{};
        const auto have_ended = [&] {
            seen = port::load_pair<order::acquire, reach::system>(pair.words);
            return entered(seen.first, well) && (!pair.two || entered(seen.second, well));
        };
        const auto late = [&] { return team.blame(pair.member); };
        const bool ended = wait<A>(op, late, pair.words, have_ended, progress);
        on_arrivals(pair.words, pair.two);
        const bool are_good = seen.first == well && (!pair.two || seen.second == well);
        if (ended && !are_good && pair.member != team.me) {
            raise(ErrorCode::member_left, op, team.blame(pair.member), 0, 0);
        }
        ended_well = ended_well && ended && are_good;
    }
    return ended_well;
}

// The same of this PE's blocks, which have all arrived.
OXSHMEM_LAZY OXSHMEM_DEVICE bool await_own_ends(const TeamView &team, Op op) {
    uint32_t item = block_scope::rank();
    return come_soon(GridEnds{team, team.me, 1}, item) ||
           await_ends<OnAbort::keep_waiting>(team, op, team.me, 1, item, UntilAborted{});
}

// Takes the epoch of a call in which all blocks have arrived, or which was given up, unless another
// block has. `seen`: the epoch in the row.
template <order O> OXSHMEM_DEVICE void take_grid_epoch(const TeamView &team, uint32_t seen) {
    if (epoch_after(seen) == team.epoch) {
        port::compare_exchange<O, reach::device>(&team_row(team.handle).epoch, seen, team.epoch);
    }
}

// The same by a block that leaves the call early, for the next one's sake.
OXSHMEM_LAZY OXSHMEM_DEVICE void ensure_grid_epoch(const TeamView &team) {
    take_grid_epoch<order::acq_rel>(team, port::load<order::acquire, reach::device>(&team_row(team.handle).epoch));
}

// Waits until all blocks of the grid have arrived in the call's turn. Returns false if they have
// not, and the turn has been given up. If the calling block gives it up, it tells those that wait.
OXSHMEM_LAZY OXSHMEM_OUTLINE bool await_own_blocks(TeamView team, Op op, uint32_t turn) {
    abi::Team &row = team_row(team.handle);
    uint64_t seen = port::load<order::acquire, reach::device>(&row.grid);
    if (!await_or_give_up(row, team.handle, op, turn, seen)) {
        const bool all_are_here = end_of_turn(turn, seen) == GridEnd::good;
        if (!all_are_here) {
            ensure_grid_epoch(team);
        }
        return all_are_here;
    }
    const uint64_t bad = header_of(team, announce_bad(port::state().my_pe));
    for (uint32_t block = 0; block < telling_blocks(team); ++block) {
        const uint64_t *word = grid_words(team, GridWord::entered, team.me) + block;
        if (!entered(port::load<order::relaxed, reach::system>(word), bad)) {
            tell_entry(team, block, bad);
        }
    }
    ensure_grid_epoch(team);
    return false;
}

// Leaves a call, by a block that works on the data, that not all blocks of all members have entered
// alike as far as it knows.
OXSHMEM_LAZY OXSHMEM_OUTLINE void leave_failed(TeamView team, Op op, uint32_t turn) {
    bool all_are_here = false;
    if (block_scope::rank() == 0) {
        all_are_here = await_own_blocks(team, op, turn);
        if (all_are_here) {
            ensure_grid_epoch(team);
            port::fence<order::acq_rel, reach::device>();
            tell_end(team, kEndedBadly, 0, 1);
        }
    }
    if (block_scope::any(all_are_here)) {
        await_own_ends(team, op);
        block_scope::sync();
    }
}

// Arrives in the grid's turn, by one thread, and tells that the block has entered. A block that
// does not work on the data waits until all blocks of its grid have arrived; so do all in a grid
// that is too large for every block to tell. Returns false if the turn has been given up, and in
// `turn` its number.
OXSHMEM_LAZY OXSHMEM_DEVICE bool tell_arrival(const TeamView &team, Op op, uint64_t header, uint32_t &turn) {
    abi::Team &row = team_row(team.handle);
    const bool every = every_block_tells(team), shares = is_sharing<blocks_scope>();
    uint64_t seen = 0;
    if (every) {
        // What the block has stored is released by the fence, which takes as long as the arrival
        // and goes on beside it.
        seen = count_block<order::relaxed>(row);
        release_stores();
    } else {
        // It is released to the blocks that tell.
        seen = count_block<order::acq_rel>(row);
    }
    turn = turn_of(seen);
    if (refuses_given_up(seen, team.handle, op)) {
        return false;
    }
    if (every) {
        tell_entry(team, port::block_rank(), header);
    }
    if ((!every || !shares) && !ends_well_soon(row, turn) && !await_own_blocks(team, op, turn)) {
        return false;
    }
    if (!every && shares) {
        release_stores();
        tell_entry(team, port::block_rank(), header);
    }
    return true;
}

// Enters a collective: waits until all blocks of all members have entered the same one, and sees
// what they have stored before; a block that does not work on the data waits for those of its own
// grid. All lanes have read the row and have met since. Returns the same to all lanes, and to all
// blocks that work on the data, unless a deadline passes or the launch is aborted meanwhile: false
// if not all have entered, or the members not the same call.
OXSHMEM_LAZY OXSHMEM_OUTLINE bool enter_grids(TeamView team, Op op, uint32_t announced) {
    const uint32_t before = port::read(&team_row(team.handle).epoch);
    const uint64_t header = header_of(team, announced);
    uint32_t turn = 0;
    if (block_scope::any(block_scope::rank() == 0 && !tell_arrival(team, op, header, turn))) {
        return false;
    }
    if (!is_sharing<blocks_scope>()) {
        return true;
    }
    const uint32_t blocks = telling_blocks(team);
    uint32_t item = block_scope::rank();
    const bool agreed = come_soon(GridEntries{team, header, blocks}, item) || await_entries(team, op, header, blocks, item);
    if (block_scope::any(!agreed || is_bad(announced))) {
        leave_failed(team, op, turn);
        return false;
    }
    // All blocks of the grid have read the row, and wait for the end of the first one's part. The
    // thread does not wait for what it finds.
    if (grid_scope::rank() == 0) {
        take_grid_epoch<order::relaxed>(team, before);
    }
    return true;
}

// Tells all members that the calling block has done its part. With `Visible`, what it has stored to
// them is visible to them then; what it has stored to its own PE's memory is in any case. What it
// has loaded from them it has stored since, so those loads are over.
template <bool Visible> OXSHMEM_DEVICE void tell_grids_of_end(const TeamView &team) {
    block_scope::sync();
    const int rank = static_cast<int>(block_scope::rank());
    const int lanes = meeting_lanes(static_cast<int>(block_scope::size()));
    if (rank < lanes && rank < team.n) {
        if constexpr (Visible) {
            release_stores();
        } else {
            port::fence<order::acq_rel, reach::device>();
        }
        tell_end(team, kEndedWell, rank, lanes);
    }
}

// Leaves a collective: waits until all blocks of all members that work on the data have done their
// part. A block that does not waits for those of its own grid first, which know whether all have
// entered. Returns whether all have ended well: the same to all lanes of all blocks, unless a
// deadline passes or the launch is aborted meanwhile.
OXSHMEM_LAZY OXSHMEM_OUTLINE bool leave_grids(TeamView team, Op op) {
    bool good = is_sharing<blocks_scope>() || !block_scope::any(!await_own_ends(team, op));
    uint32_t item = block_scope::rank();
    good = good &&
           (come_soon(GridEnds{team, 0, team.n}, item) || await_ends<OnAbort::unwind>(team, op, 0, team.n, item, NoProgress{}));
    if (!block_scope::any(!good)) {
        return true;
    }
    if (block_scope::rank() == 0) {
        ensure_grid_epoch(team);
    }
    block_scope::sync(); // no lane reads the epoch for the next call before
    return false;
}

} // namespace oxshmem::detail
