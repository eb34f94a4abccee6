// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// sync and barrier, over all PEs and over a team; and quiet of a grid.
#pragma once

#include "detail/grid.h"

namespace oxshmem {

namespace detail {

// In a job of at most this many PEs one thread meets the others for its scope: it takes less time
// to tell and await them in turn than several lanes do, between two H200s 1.7 us and 2.0, and
// between four 2.0 and 2.3. Programs of the schedule explorer set a lower limit.
#ifndef OXSHMEM_MET_BY_ONE
#define OXSHMEM_MET_BY_ONE 4
#endif

// Meets the members of a team; of a block one thread or the first warp does it. 0 if all have
// entered the same call. This is by_first_warp written out: with that function, the compiler takes
// more registers.
template <class Scope> OXSHMEM_DEVICE int meet_team(int handle, Call call) {
    const bool by_one = Scope::kLanes > 1 && port::state().n_pes <= OXSHMEM_MET_BY_ONE;
    if constexpr (Scope::kSeveralWarps) {
        Scope::sync();
        int failed = 0;
        if (Scope::rank() < (by_one ? 1 : 32)) {
            failed = by_one ? meet_team<thread_scope>(handle, call) : meet_team<warp_scope>(handle, call);
        }
        return Scope::any(failed != 0) ? 1 : 0;
    } else {
        if (by_one) {
            Scope::sync();
            const int failed = Scope::rank() == 0 ? meet_team<thread_scope>(handle, call) : 0;
            return Scope::any(failed != 0) ? 1 : 0;
        }
        const Op op = call == Call::barrier ? Op::barrier : Op::sync;
        TeamView team;
        if (!view_team<Scope>(team, handle, op)) {
            return 1;
        }
        Scope::sync();
        return meet<Scope, true>(team, op, announce(call, 0)) ? 0 : 1;
    }
}

// Completes what this PE has under way, if it is a barrier, and meets. All lanes share the waiting
// of quiet, which comes before anything that would occupy registers meanwhile.
template <class Scope> OXSHMEM_LINKED_OUTLINE int sync_team(int handle, Call call) {
    const Profiled profiled(call == Call::barrier ? Op::barrier : Op::sync, {port::state().my_pe, handle}, 0,
                            !kIsGrid<Scope> && Scope::rank() == 0);
    if constexpr (kIsGrid<Scope>) {
        const Op op = call == Call::barrier ? Op::barrier : Op::sync;
        if (!find_for_grid(handle, op)) {
            return 1;
        }
        return by_last_block<GridCall::of_team>(handle, op, [&] { return sync_team<block_scope>(handle, call); });
    } else {
        if (call == Call::barrier && port::state().network != static_cast<uint32_t>(abi::Network::none)) {
            Scope::sync();
            network_quiet(Scope::rank(), Scope::size());
        }
        return meet_team<Scope>(handle, call);
    }
}

// What the first half of the threads of meet_for_host has for the second half.
struct MeetingForHost {
    uint32_t there;                // whether the team is
    uint32_t epoch;                // the last one
    uint64_t slots[kMeetingLanes]; // of the next members: where this PE's header of even epochs lies there
};

// What a grid of one block does that meets the members of a team for the host: all members reach
// each other by load and store, and nothing is under way through a network that a barrier would
// wait for. The second half of the block's threads releases what earlier grids have stored.
// Meanwhile the first half reads the row of the team, since a fence waits for loads of its own
// thread too, and looks up where the members are. `found` is memory of the block.
OXSHMEM_LAZY OXSHMEM_DEVICE void meet_for_host(const abi::KnownTeam &known, Call call, MeetingForHost &found) {
    const Op op = call == Call::barrier ? Op::barrier : Op::sync;
    const int rank = static_cast<int>(port::thread_rank()), half = static_cast<int>(port::block_threads() / 2);
    const Profiled profiled(op, {port::state().my_pe, known.handle}, 0, rank == 0);
    const int lanes = meeting_lanes(half);
    TeamView team = view_of(known);
    if (rank >= half) {
        release_stores();
    } else {
        if (rank == 0) {
            request_row(team, known);
        }
        if (rank < lanes && rank < team.n) {
            const TeamView even = view_of(known);
            const int pe = even.pe_of(even.member_behind(1 + rank));
            uint64_t *const slot = translate(even.headers() + even.me, pe);
            port::write(&found.slots[rank], reinterpret_cast<uint64_t>(slot));
        }
        if (rank == 0) {
            port::write(&found.there, is_row_of(team, known) ? 1u : 0u);
            port::write(&found.epoch, team.epoch);
        }
    }
    port::sync_block();
    team.epoch = epoch_after(port::read(&found.epoch));
    if (port::read(&found.there) == 0) {
        raise_bad_team<block_scope>(known.handle, op);
    } else if (rank == 0) {
        take_epoch<block_scope>(team);
    } else if (rank >= half && rank - half < lanes) {
        const int lane = rank - half;
        const uint64_t header = header_of(team, announce(call, 0));
        if (lane < team.n) {
            OXSHMEM_ON_MESSAGE(team.pe_of(team.member_behind(1 + lane)), team.headers() + team.me, 1);
            uint64_t *const slot = as<uint64_t>(port::read(&found.slots[lane])) + team.parity() * abi::kOneRoundPes;
            port::store<order::relaxed, reach::system>(slot, header);
        }
        tell_all(team, header, lane + lanes, lanes);
        await_all<order::acquire>(team, op, header, lane, lanes, [] { return false; });
    }
}

} // namespace detail

// quiet for the operations of all blocks of the grid, which meet before it. It counts as a call on
// the world team, which a PE makes one at a time, though no other PE takes part.
OXSHMEM_LAZY OXSHMEM_DEVICE void quiet(grid_scope) {
    detail::by_last_block<detail::GridCall::of_pe>(abi::kTeamWorld, detail::Op::quiet, [] {
        quiet(block);
        return 0;
    });
}

// Returns when every PE has entered. Stores made before, to this PE's own memory and to load/store
// peers, are visible to every PE that returns; puts over the network are not completed. One group
// of threads per PE calls at a time.
template <class Scope> OXSHMEM_DEVICE void sync_all(Scope) {
    detail::sync_team<Scope>(abi::kTeamWorld, detail::Call::sync);
}
OXSHMEM_LAZY OXSHMEM_DEVICE void sync_all() {
    sync_all(thread);
}

// quiet, then sync_all: every operation issued by any PE before is complete and visible everywhere
// after.
template <class Scope> OXSHMEM_DEVICE void barrier_all(Scope) {
    detail::sync_team<Scope>(abi::kTeamWorld, detail::Call::barrier);
}
OXSHMEM_LAZY OXSHMEM_DEVICE void barrier_all() {
    barrier_all(thread);
}

// The same for the members of a team. Not 0: an error was recorded.
template <class Scope> OXSHMEM_DEVICE int team_sync(Scope, int team) {
    return detail::sync_team<Scope>(team, detail::Call::sync);
}
template <class Scope> OXSHMEM_DEVICE int barrier(Scope, int team) {
    return detail::sync_team<Scope>(team, detail::Call::barrier);
}

} // namespace oxshmem
