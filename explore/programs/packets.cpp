// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Collectives by packets, where all PEs are load/store reachable.
#include "collectives.h"

namespace explore {

template <class Scope, uint32_t kTurns, uint32_t kWords> void fcollects() {
    for (uint32_t turn = 1; turn <= kTurns; ++turn) {
        fill_source(turn, kWords);
        fcollect(Scope{}, abi::kTeamWorld, target(turn), source(turn), kWords);
        port::sync_block();
        check_gathered(turn, target(turn), kWords);
    }
}

template <class Scope, uint32_t kTurns> void alltoalls() {
    const uint32_t n = static_cast<uint32_t>(port::state().n_pes);
    for (uint32_t turn = 1; turn <= kTurns; ++turn) {
        fill_source(turn, n);
        alltoall(Scope{}, abi::kTeamWorld, target(turn), source(turn), 1);
        port::sync_block();
        check_alltoall(turn, target(turn), 1);
    }
}

template <class Scope, uint32_t kTurns> void sums() {
    for (uint32_t turn = 1; turn <= kTurns; ++turn) {
        fill_source(turn, 3);
        reduce(Scope{}, abi::kTeamWorld, op_sum, target(turn), source(turn), 3);
        port::sync_block();
        check_sums(turn, target(turn), 3);
    }
}

template <class Scope, uint32_t kTurns> void broadcasts() {
    for (uint32_t turn = 1; turn <= kTurns; ++turn) {
        const int root = static_cast<int>(turn) % port::state().n_pes;
        fill_source(turn, 2);
        broadcast(Scope{}, abi::kTeamWorld, target(turn), source(turn), 2, root);
        port::sync_block();
        check_broadcast(turn, target(turn), root, 2);
    }
}

constexpr oxshmem_explore_program packets(const char *name, void (*body)(), uint32_t pes, uint32_t lanes, uint32_t epoch) {
    return direct(collective(name, body, pes, lanes, epoch));
}

constexpr oxshmem_explore_program kPrograms[] = {
    packets("fcollect", fcollects<thread_scope, 3, 2>, 2, 1, 2),
    packets("fcollect_warp", fcollects<warp_scope, 3, 3>, 2, 2, 0xfffffffe),
    packets("alltoall", alltoalls<thread_scope, 4>, 2, 1, 0xfffffffd),
    packets("alltoall_3", alltoalls<thread_scope, 3>, 3, 1, 3),
    packets("reduce", sums<thread_scope, 3>, 2, 1, 2),
    packets("reduce_3", sums<warp_scope, 2>, 3, 2, 0xfffffffe),
    packets("broadcast", broadcasts<thread_scope, 4>, 2, 1, 2),
    early(packets("fcollect_early", fcollects<thread_scope, 3, 2>, 2, 1, 2)),
};

} // namespace explore

#include "module.h"
