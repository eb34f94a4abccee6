// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Collectives by packets, where all PEs are load/store reachable.
#include "program.h"

#include <oxshmem/collectives.h>

namespace explore {

constexpr uint64_t kSource = 0x400, kTarget = 0x800, kTurnBytes = 0x100;

uint64_t word(uint32_t turn, int pe, uint32_t i) {
    return 0x1000000u * turn + 0x10000u * static_cast<uint32_t>(pe) + 0x100 + i;
}

uint64_t *source(uint32_t turn) {
    return heap<uint64_t>(kSource + (turn % 2) * kTurnBytes);
}
uint64_t *target(uint32_t turn) {
    return heap<uint64_t>(kTarget + (turn % 2) * kTurnBytes);
}

void fill_source(uint32_t turn, uint32_t n) {
    if (lane() == 0) {
        for (uint32_t i = 0; i < n; ++i) {
            port::store<port::order::relaxed, port::reach::block>(source(turn) + i, word(turn, me(), i));
        }
    }
    port::sync_block();
}

uint64_t result(uint32_t turn, uint32_t i) {
    return port::load<port::order::relaxed, port::reach::block>(target(turn) + i);
}

template <class Scope, uint32_t kTurns, uint32_t kWords> void fcollects() {
    for (uint32_t turn = 1; turn <= kTurns; ++turn) {
        fill_source(turn, kWords);
        fcollect(Scope{}, abi::kTeamWorld, target(turn), source(turn), kWords);
        port::sync_block();
        for (int pe = 0; pe < port::state().n_pes; ++pe) {
            for (uint32_t i = 0; i < kWords; ++i) {
                expect(result(turn, static_cast<uint32_t>(pe) * kWords + i) == word(turn, pe, i),
                       "fcollect stored what no member has contributed");
            }
        }
    }
}

template <class Scope, uint32_t kTurns> void alltoalls() {
    const uint32_t n = static_cast<uint32_t>(port::state().n_pes);
    for (uint32_t turn = 1; turn <= kTurns; ++turn) {
        fill_source(turn, n);
        alltoall(Scope{}, abi::kTeamWorld, target(turn), source(turn), 1);
        port::sync_block();
        for (uint32_t pe = 0; pe < n; ++pe) {
            expect(result(turn, pe) == word(turn, static_cast<int>(pe), static_cast<uint32_t>(me())),
                   "alltoall stored what no member has sent");
        }
    }
}

template <class Scope, uint32_t kTurns> void sums() {
    const int n = port::state().n_pes;
    for (uint32_t turn = 1; turn <= kTurns; ++turn) {
        fill_source(turn, 3);
        reduce(Scope{}, abi::kTeamWorld, op_sum, target(turn), source(turn), 3);
        port::sync_block();
        for (uint32_t i = 0; i < 3; ++i) {
            uint64_t sum = 0;
            for (int pe = 0; pe < n; ++pe) {
                sum += word(turn, pe, i);
            }
            expect(result(turn, i) == sum, "reduce stored another sum");
        }
    }
}

template <class Scope, uint32_t kTurns> void broadcasts() {
    for (uint32_t turn = 1; turn <= kTurns; ++turn) {
        const int root = static_cast<int>(turn) % port::state().n_pes;
        fill_source(turn, 2);
        broadcast(Scope{}, abi::kTeamWorld, target(turn), source(turn), 2, root);
        port::sync_block();
        expect(result(turn, 1) == word(turn, root, 1), "broadcast stored what the root has not sent");
    }
}

constexpr oxshmem_explore_program packets(const char *name, void (*body)(), uint32_t pes, uint32_t lanes, uint32_t epoch) {
    oxshmem_explore_program program = posting(name, body, 1, 2, 40000);
    program.pes = pes;
    program.lanes = lanes;
    for (uint32_t pe = 0; pe < pes; ++pe) {
        program.blocks[pe] = 1;
    }
    program.epoch = epoch;
    program.network = 0;
    program.direct = 1;
    return program;
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
