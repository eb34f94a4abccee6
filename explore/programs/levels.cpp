// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Collectives in two levels over the network, each PE a node of its own. Messages of 16 bytes, so
// that few words are several pieces, which take turns in the workspace.
#define OXSHMEM_LEVELS_PIECE 16

#include "collectives.h"

#include <oxshmem/detail/levels_strided.h>

namespace explore {

using Sum = detail::Combine<uint64_t, abi::ReduceOp::op_sum>;

template <uint32_t kTurns, uint32_t kWords> void reduces() {
    turns<kTurns>(
        kWords, [](uint32_t) { return detail::reduce_by_levels(abi::kTeamWorld, target(0), source(0), kWords, true, Sum{}); },
        [](uint32_t turn) { check_sums(turn, target(0), kWords); });
}

template <uint32_t kTurns, uint32_t kWords> void reduces_in_place() {
    turns<kTurns>(
        kWords, [](uint32_t) { return detail::reduce_by_levels(abi::kTeamWorld, source(0), source(0), kWords, true, Sum{}); },
        [](uint32_t turn) { check_sums(turn, source(0), kWords); });
}

// By several blocks, each of which meets by messages in a place of its own; a collective is a
// kernel of its own.
template <uint32_t kTurns, uint32_t kWords> void reduces_by_blocks() {
    for (uint32_t turn = 1; turn <= kTurns; ++turn) {
        if (block() == 0) {
            fill_source(turn, kWords);
        }
        next_kernel();
        expect(detail::reduce_by_levels(abi::kTeamWorld, target(turn), source(turn), kWords, true, Sum{}) == 0,
               "reduce failed");
        next_kernel();
        check_sums(turn, target(turn), kWords);
    }
}

template <uint32_t kTurns, uint32_t kWords> void scatters() {
    turns<kTurns>(
        static_cast<uint32_t>(port::state().n_pes) * kWords,
        [](uint32_t) { return detail::reduce_by_levels(abi::kTeamWorld, target(0), source(0), kWords, false, Sum{}); },
        [](uint32_t turn) {
            for (uint32_t i = 0; i < kWords; ++i) {
                uint64_t sum = 0;
                for (int pe = 0; pe < port::state().n_pes; ++pe) {
                    sum += word(turn, pe, static_cast<uint32_t>(me()) * kWords + i);
                }
                expect(word_at(target(0), i) == sum, "reducescatter stored another sum");
            }
        });
}

template <uint32_t kTurns, uint32_t kWords> void gathers() {
    turns<kTurns>(
        kWords, [](uint32_t) { return detail::fcollect_by_levels(abi::kTeamWorld, target(0), source(0), 8 * kWords); },
        [](uint32_t turn) { check_gathered(turn, target(0), kWords); });
}

// Each member has a word more than the one before it, and the first one none.
template <uint32_t kTurns> void collects() {
    turns<kTurns>(
        static_cast<uint32_t>(port::state().n_pes),
        [](uint32_t) {
            return detail::collect_by_levels(abi::kTeamWorld, target(0), source(0), 8 * static_cast<uint64_t>(me()));
        },
        [](uint32_t turn) {
            uint32_t at = 0;
            for (int pe = 0; pe < port::state().n_pes; ++pe) {
                for (uint32_t i = 0; i < static_cast<uint32_t>(pe); ++i, ++at) {
                    expect(word_at(target(0), at) == word(turn, pe, i), "collect stored another word");
                }
            }
        });
}

template <uint32_t kTurns, uint32_t kWords> void exchanges() {
    turns<kTurns>(
        static_cast<uint32_t>(port::state().n_pes) * kWords,
        [](uint32_t) { return detail::alltoall_by_levels(abi::kTeamWorld, target(0), source(0), 8 * kWords); },
        [](uint32_t turn) { check_alltoall(turn, target(0), kWords); });
}

// From every other word, to where they follow each other.
template <uint32_t kTurns, uint32_t kWords> void strided_exchanges() {
    turns<kTurns>(
        2 * static_cast<uint32_t>(port::state().n_pes) * kWords,
        [](uint32_t) { return detail::alltoalls_by_levels(abi::kTeamWorld, target(0), source(0), 1, 2, kWords, 8); },
        [](uint32_t turn) {
            for (int pe = 0; pe < port::state().n_pes; ++pe) {
                for (uint32_t i = 0; i < kWords; ++i) {
                    expect(word_at(target(0), static_cast<uint32_t>(pe) * kWords + i) ==
                               word(turn, pe, 2 * (static_cast<uint32_t>(me()) * kWords + i)),
                           "alltoalls stored what no member has sent");
                }
            }
        });
}

template <uint32_t kTurns, uint32_t kWords> void broadcasts() {
    const auto root = [](uint32_t turn) { return static_cast<int>(turn) % port::state().n_pes; };
    turns<kTurns>(
        kWords,
        [root](uint32_t turn) {
            return detail::broadcast_by_levels(abi::kTeamWorld, target(0), source(0), 8 * kWords, root(turn));
        },
        [root](uint32_t turn) { check_broadcast(turn, target(0), root(turn), kWords); });
}

constexpr oxshmem_explore_program levels(const char *name, void (*body)(), uint32_t pes, uint32_t epoch) {
    return far(abi::Algorithm::levels, collective(name, body, pes, 1, epoch));
}
// The same with results in the source.
constexpr oxshmem_explore_program in_place(const char *name, void (*body)(), uint32_t pes, uint32_t epoch) {
    oxshmem_explore_program program = levels(name, body, pes, epoch);
    program.results_at = kSource;
    return program;
}

constexpr oxshmem_explore_program kPrograms[] = {
    levels("reduce", reduces<2, 8>, 2, 2),
    levels("reduce_3", reduces<2, 6>, 3, 0xfffffffe),
    in_place("reduce_in_place", reduces_in_place<2, 12>, 2, 4),
    in_place("reduce_in_place_3", reduces_in_place<2, 6>, 3, 2),
    blocks_of(2, levels("reduce_blocks", reduces_by_blocks<2, 8>, 2, 2)),
    levels("reducescatter", scatters<2, 8>, 2, 2),
    levels("reducescatter_3", scatters<2, 6>, 3, 0xfffffffe),
    levels("fcollect", gathers<2, 5>, 3, 2),
    levels("collect", collects<2>, 3, 0xfffffffe),
    levels("alltoall", exchanges<2, 2>, 3, 4),
    levels("alltoalls", strided_exchanges<2, 6>, 2, 4),
    levels("broadcast_ring", broadcasts<2, 9>, 3, 2),
    levels("broadcast_tree", broadcasts<2, 2>, 3, 4),
    by_proxy(levels("reduce_ibrc", reduces<2, 8>, 2, 2)),
};

} // namespace explore

#include "module.h"
