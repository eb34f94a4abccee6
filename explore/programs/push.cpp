// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Collectives that follow a meeting: straight between the members' buffers where these are
// load/store reachable, otherwise by messages, and along trees. Source and target are the same in
// every turn, since a call that returns has done with both.
#include "collectives.h"

namespace explore {

template <class Scope, uint32_t kTurns, uint32_t kWords> void fcollects() {
    turns<kTurns>(
        kWords, [](uint32_t) { return fcollect(Scope{}, abi::kTeamWorld, target(0), source(0), kWords); },
        [](uint32_t turn) { check_gathered(turn, target(0), kWords); });
}

// A member stores to its own target before the call, which comes before what the others store
// there.
template <class Scope, uint32_t kTurns, uint32_t kWords> void collects() {
    turns<kTurns>(
        kWords,
        [](uint32_t) {
            for (uint32_t i = 0; lane() == 0 && i < static_cast<uint32_t>(port::state().n_pes) * kWords; ++i) {
                port::store<port::order::relaxed, port::reach::block>(target(0) + i, uint64_t{7});
            }
            port::sync_block();
            return collect(Scope{}, abi::kTeamWorld, target(0), source(0), kWords);
        },
        [](uint32_t turn) { check_gathered(turn, target(0), kWords); });
}

template <class Scope, uint32_t kTurns, uint32_t kWords> void alltoalls_in_turns() {
    turns<kTurns>(
        static_cast<uint32_t>(port::state().n_pes) * kWords,
        [](uint32_t) { return alltoalls(Scope{}, abi::kTeamWorld, target(0), source(0), 1, 1, kWords); },
        [](uint32_t turn) { check_alltoall(turn, target(0), kWords); });
}

template <class Scope, uint32_t kTurns, uint32_t kWords> void sums() {
    turns<kTurns>(
        kWords, [](uint32_t) { return reduce(Scope{}, abi::kTeamWorld, op_sum, target(0), source(0), kWords); },
        [](uint32_t turn) { check_sums(turn, target(0), kWords); });
}

template <class Scope, uint32_t kTurns, uint32_t kWords> void broadcasts() {
    const auto root = [](uint32_t turn) { return static_cast<int>(turn) % port::state().n_pes; };
    turns<kTurns>(
        kWords, [root](uint32_t turn) { return broadcast(Scope{}, abi::kTeamWorld, target(0), source(0), kWords, root(turn)); },
        [root](uint32_t turn) { check_broadcast(turn, target(0), root(turn), kWords); });
}

using abi::Algorithm;

constexpr oxshmem_explore_program kPrograms[] = {
    near(Algorithm::push, collective("fcollect", fcollects<thread_scope, 3, 2>, 2, 1, 2)),
    near(Algorithm::push, collective("fcollect_warp", fcollects<warp_scope, 2, 4>, 2, 2, 0xfffffffe)),
    near(Algorithm::push, collective("collect", collects<thread_scope, 2, 2>, 2, 1, 2)),
    near(Algorithm::push, collective("collect_warp", collects<warp_scope, 2, 2>, 2, 2, 0xfffffffe)),
    near(Algorithm::push, collective("collect_3", collects<thread_scope, 2, 1>, 3, 1, 3)),
    near(Algorithm::push, collective("alltoalls", alltoalls_in_turns<thread_scope, 2, 1>, 3, 1, 3)),
    near(Algorithm::push, collective("reduce", sums<thread_scope, 3, 3>, 2, 1, 2)),
    near(Algorithm::one_shot, collective("reduce_one_shot", sums<thread_scope, 3, 2>, 2, 1, 0xfffffffe)),
    near(Algorithm::push, collective("broadcast", broadcasts<thread_scope, 3, 2>, 3, 1, 2)),
    early(near(Algorithm::push, collective("reduce_early", sums<thread_scope, 3, 3>, 2, 1, 2))),
    far(Algorithm::push, collective("fcollect_far", fcollects<thread_scope, 2, 5>, 2, 1, 2)),
    far(Algorithm::push, collective("alltoalls_far", alltoalls_in_turns<thread_scope, 2, 2>, 2, 1, 0xfffffffe)),
    far(Algorithm::push, collective("reduce_far", sums<thread_scope, 2, 10>, 2, 1, 0xfffffffe)),
    far(Algorithm::push, collective("broadcast_far", broadcasts<thread_scope, 2, 13>, 3, 1, 4)),
    far(Algorithm::tree, collective("broadcast_tree", broadcasts<thread_scope, 2, 5>, 3, 1, 4)),
    far(Algorithm::tree, collective("reduce_tree", sums<thread_scope, 2, 5>, 2, 1, 0xfffffffe)),
    far(Algorithm::tree, collective("reduce_tree_3", sums<thread_scope, 2, 4>, 3, 1, 4)),
    by_proxy(far(Algorithm::push, collective("fcollect_ibrc", fcollects<thread_scope, 2, 5>, 2, 1, 2))),
    by_proxy(far(Algorithm::tree, collective("reduce_tree_ibrc", sums<thread_scope, 2, 5>, 2, 1, 4))),
};

} // namespace explore

#include "module.h"
