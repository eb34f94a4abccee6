// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// fcollect and alltoall that store to dst at once, where programs make sure that it is ready. Two
// targets take turns, so that a member may look at one while others have gone on.
#define OXSHMEM_DST_IS_READY

#include "collectives.h"

namespace explore {

template <class Scope, uint32_t kTurns, uint32_t kWords> void fcollects() {
    turns<kTurns>(
        kWords, [](uint32_t turn) { return fcollect(Scope{}, abi::kTeamWorld, target(turn), source(0), kWords); },
        [](uint32_t turn) { check_gathered(turn, target(turn), kWords); });
}

template <class Scope, uint32_t kTurns, uint32_t kWords> void alltoalls_in_turns() {
    turns<kTurns>(
        static_cast<uint32_t>(port::state().n_pes) * kWords,
        [](uint32_t turn) { return alltoall(Scope{}, abi::kTeamWorld, target(turn), source(0), kWords); },
        [](uint32_t turn) { check_alltoall(turn, target(turn), kWords); });
}

constexpr abi::Algorithm kChoice = static_cast<abi::Algorithm>(kLibrarysChoice);

// 6 words are more than packets take; 5 are no whole units of 16 bytes.
constexpr oxshmem_explore_program kPrograms[] = {
    near(kChoice, collective("alltoall", alltoalls_in_turns<thread_scope, 3, 6>, 2, 1, 2)),
    near(kChoice, collective("alltoall_3", alltoalls_in_turns<thread_scope, 2, 6>, 3, 1, 0xfffffffe)),
    near(kChoice, collective("alltoall_odd", alltoalls_in_turns<thread_scope, 2, 5>, 2, 1, 0xfffffffe)),
    near(kChoice, collective("fcollect", fcollects<thread_scope, 3, 10>, 2, 1, 2)),
    early(near(kChoice, collective("alltoall_early", alltoalls_in_turns<thread_scope, 3, 6>, 2, 1, 5))),
};

} // namespace explore

#include "module.h"
