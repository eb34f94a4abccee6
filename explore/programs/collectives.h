// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// What programs of collectives have in common: sources that tell turns, PEs and elements apart, and
// what becomes of them.
#pragma once

#include "program.h"

#include <oxshmem/collectives.h>

namespace explore {

constexpr uint64_t kSource = 0x400, kTarget = 0x800, kTurnBytes = 0x200;

inline uint64_t word(uint32_t turn, int pe, uint32_t i) {
    return 0x1000000u * turn + 0x10000u * static_cast<uint32_t>(pe) + 0x100 + i;
}

inline uint64_t *source(uint32_t turn) {
    return heap<uint64_t>(kSource + (turn % 2) * kTurnBytes);
}
inline uint64_t *target(uint32_t turn) {
    return heap<uint64_t>(kTarget + (turn % 2) * kTurnBytes);
}

inline void fill_source(uint32_t turn, uint32_t n) {
    if (lane() == 0) {
        for (uint32_t i = 0; i < n; ++i) {
            port::store<port::order::relaxed, port::reach::block>(source(turn) + i, word(turn, me(), i));
        }
    }
    port::sync_block();
}

inline uint64_t word_at(const uint64_t *results, uint32_t i) {
    return port::load<port::order::relaxed, port::reach::block>(results + i);
}

// What reduce, fcollect, alltoall and broadcast of `n` elements of each member have stored.
inline void check_sums(uint32_t turn, const uint64_t *results, uint32_t n) {
    for (uint32_t i = 0; i < n; ++i) {
        uint64_t sum = 0;
        for (int pe = 0; pe < port::state().n_pes; ++pe) {
            sum += word(turn, pe, i);
        }
        expect(word_at(results, i) == sum, "reduce stored another sum");
    }
}
inline void check_gathered(uint32_t turn, const uint64_t *results, uint32_t n) {
    for (int pe = 0; pe < port::state().n_pes; ++pe) {
        for (uint32_t i = 0; i < n; ++i) {
            expect(word_at(results, static_cast<uint32_t>(pe) * n + i) == word(turn, pe, i),
                   "fcollect stored what no member has contributed");
        }
    }
}
// What collect has stored, to which PE p contributes `length(p)` elements.
template <class Length> void check_collected(uint32_t turn, const uint64_t *results, Length length) {
    uint32_t at = 0;
    for (int pe = 0; pe < port::state().n_pes; ++pe) {
        for (uint32_t i = 0; i < length(pe); ++i) {
            expect(word_at(results, at++) == word(turn, pe, i), "collect stored what no member has contributed");
        }
    }
}
inline void check_alltoall(uint32_t turn, const uint64_t *results, uint32_t n) {
    for (int pe = 0; pe < port::state().n_pes; ++pe) {
        for (uint32_t i = 0; i < n; ++i) {
            expect(word_at(results, static_cast<uint32_t>(pe) * n + i) == word(turn, pe, static_cast<uint32_t>(me()) * n + i),
                   "alltoall stored what no member has sent");
        }
    }
}
inline void check_broadcast(uint32_t turn, const uint64_t *results, int root, uint32_t n) {
    for (uint32_t i = 0; i < n; ++i) {
        expect(word_at(results, i) == word(turn, root, i), "broadcast stored what the root has not sent");
    }
}

// One block of each PE, which meets by messages.
constexpr oxshmem_explore_program collective(const char *name, void (*body)(), uint32_t pes, uint32_t lanes, uint32_t epoch) {
    oxshmem_explore_program program = posting(name, body, 1, 2, 40000);
    program.pes = pes;
    program.lanes = lanes;
    program.epoch = epoch;
    return blocks_of(1, program);
}

// Runs turns of a collective, which leaves a result that `check` looks at.
template <uint32_t kTurns, class Call, class Check> void turns(uint32_t n, Call call, Check check) {
    for (uint32_t turn = 1; turn <= kTurns; ++turn) {
        for (uint32_t i = lane(); i < n; i += port::block_threads()) {
            port::store<port::order::relaxed, port::reach::block>(source(0) + i, word(turn, me(), i));
        }
        port::sync_block();
        expect(call(turn) == 0, "a collective failed");
        port::sync_block();
        check(turn);
        port::sync_block();
    }
}

constexpr oxshmem_explore_program by(abi::Algorithm algorithm, oxshmem_explore_program program) {
    program.algorithm = static_cast<uint32_t>(algorithm);
    program.results_at = kTarget;
    program.results_bytes = 2 * kTurnBytes;
    return program;
}
// Among members that are load/store reachable, and over the network.
constexpr oxshmem_explore_program near(abi::Algorithm algorithm, oxshmem_explore_program program) {
    return direct(by(algorithm, program));
}
constexpr oxshmem_explore_program far(abi::Algorithm algorithm, oxshmem_explore_program program) {
    return in_rounds(by(algorithm, program));
}

} // namespace explore
