// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// sync and barrier, over all PEs and over a team; and quiet of a grid.
#pragma once

#include "detail/grid.h"

namespace oxshmem {

namespace detail {

// Meets the members of a team; of a block the first warp does it. 0 if all have entered the same
// call.
template <class Scope> OXSHMEM_DEVICE int meet_team(int handle, Call call) {
    if constexpr (Scope::kSeveralWarps) {
        return by_first_warp([&] { return meet_team<warp_scope>(handle, call); });
    } else {
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
        return by_last_block<GridCall::of_team>(handle, op, [&] { return sync_team<block_scope>(handle, call); });
    } else {
        if (call == Call::barrier && port::state().network != static_cast<uint32_t>(abi::Network::none)) {
            Scope::sync();
            network_quiet(Scope::rank(), Scope::size());
        }
        return meet_team<Scope>(handle, call);
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
