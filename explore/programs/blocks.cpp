// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Collectives that several blocks of each PE carry out, as the host's kernels do: block b meets
// block b of the other PEs, and the blocks of a grid meet nowhere. Each collective is a kernel of
// its own.
#define OXSHMEM_COLLECTED_BY_ONE 16 // two words
#include "collectives.h"

namespace explore {

using detail::Caller;
using detail::opening_blocks;

// Fills the source of a turn by the first thread of the grid, and begins the kernel of the turn.
void begin_turn(uint32_t turn, uint32_t n) {
    if (block() == 0) {
        fill_source(turn, n);
    }
    next_kernel();
}

using Sum = detail::Combine<uint64_t, abi::ReduceOp::op_sum>;

// Each block looks at the whole result, so it has to be there once the kernel has ended.
template <Caller kCaller, uint32_t kTurns, uint32_t kWords = 4> void sums() {
    const abi::KnownTeam team = known_world();
    for (uint32_t turn = 1; turn <= kTurns; ++turn) {
        begin_turn(turn, kWords);
        expect(detail::reduce_named<opening_blocks>(team, target(turn), source(turn), kWords, true, Sum{}, kCaller) == 0,
               "reduce failed");
        next_kernel();
        check_sums(turn, target(turn), kWords);
    }
}

// By turns one block carries out a collective and two do: the blocks that have nothing to do take
// no part.
template <uint32_t kTurns> void sums_by_turns() {
    const abi::KnownTeam team = known_world();
    for (uint32_t turn = 1; turn <= kTurns; ++turn) {
        begin_turn(turn, 4);
        if (turn % 2 == 0) {
            detail::reduce_named<opening_blocks>(team, target(turn), source(turn), 4, true, Sum{}, Caller::packets);
        } else if (block() == 0) {
            reduce(oxshmem::block, abi::kTeamWorld, op_sum, target(turn), source(turn), 4);
        }
        next_kernel();
        check_sums(turn, target(turn), 4);
    }
}

// A part of each member for all.
template <Caller kCaller, uint32_t kTurns> void gathers() {
    const abi::KnownTeam team = known_world();
    for (uint32_t turn = 1; turn <= kTurns; ++turn) {
        begin_turn(turn, 4);
        expect(detail::gather_parts<opening_blocks>(team, abi::Collective::fcollect, abi::Op::fcollect, abi::Call::fcollect,
                                                    target(turn), source(turn), 32, 0, kCaller) == 0,
               "fcollect failed");
        next_kernel();
        check_gathered(turn, target(turn), 4);
    }
}

// Contributions that differ, of which the longest one is another member's in each turn, and one is
// empty in the second turn: up to `most` bytes in packets, of the first block or of both.
template <uint64_t most, uint32_t kTurns> void collects() {
    const abi::KnownTeam team = known_world();
    for (uint32_t turn = 1; turn <= kTurns; ++turn) {
        const auto length = [&](int pe) {
            const uint32_t number = (static_cast<uint32_t>(pe) + turn) % static_cast<uint32_t>(port::state().n_pes);
            return turn == 2 ? number : 1 + 3 * number;
        };
        begin_turn(turn, length(me()));
        expect(detail::collect_by_blocks<opening_blocks>(team, target(turn), source(turn), 8 * length(me()), most) == 0,
               "collect failed");
        next_kernel();
        check_collected(turn, target(turn), length);
    }
}

// Contributions that are longer together than what the heap has: every block's call fails on each
// PE, and nothing is stored.
void collects_too_much() {
    fill_source(1, 1);
    const uint64_t bytes = me() == 0 ? port::state().heap_bytes - (kSource + kTurnBytes) : 8;
    const int failed = detail::collect_by_blocks<opening_blocks>(known_world(), target(1), source(1), bytes, 32);
    expect(failed != 0, "a call whose result has no room has not failed");
    for (uint32_t i = 0; i < 4; ++i) {
        expect(word_at(target(1), i) == 0, "a call that failed has stored something");
    }
}

// A thread plays the copy engine. In the second turn the members do not agree.
void copied() {
    constexpr uint32_t kWords = 4;
    const abi::KnownTeam team = known_world();
    for (uint32_t turn = 1; turn <= 3; ++turn) {
        begin_turn(turn, kWords);
        const bool agree = turn != 2;
        const uint64_t bytes = agree || me() == 0 ? 8 * kWords : 8;
        const int failed =
            detail::gather_parts<opening_blocks>(team, abi::Collective::fcollect, abi::Op::fcollect, abi::Call::fcollect,
                                                 target(turn), source(turn), bytes, 0, Caller::copy_engines);
        expect((failed == 0) == agree, "the opening of a call does not say whether the members agree");
        next_kernel();
        for (int pe = 0; agree && lane() == 0 && pe < port::state().n_pes; ++pe) {
            for (uint32_t i = 0; i < kWords; ++i) {
                uint64_t *to = detail::translate(target(turn) + static_cast<uint32_t>(me()) * kWords + i, pe);
                port::store<port::order::relaxed, port::reach::system>(to, word_at(source(turn), i));
            }
        }
        next_kernel();
        const int ended = detail::end_copies<opening_blocks>(team, abi::Op::fcollect, abi::Call::fcollect, 1);
        expect((ended == 0) == agree, "the end of copies does not say whether the members have met");
        next_kernel();
        if (agree) {
            check_gathered(turn, target(turn), kWords);
        }
    }
}

template <Caller kCaller, uint32_t kTurns, uint32_t kWords = 4> void broadcasts() {
    const abi::KnownTeam team = known_world();
    for (uint32_t turn = 1; turn <= kTurns; ++turn) {
        const int root = static_cast<int>(turn) % port::state().n_pes;
        begin_turn(turn, kWords);
        expect(detail::broadcast_named<opening_blocks>(team, target(turn), source(turn), 8 * kWords, root, kCaller, nullptr) ==
                   0,
               "broadcast failed");
        next_kernel();
        check_broadcast(turn, target(turn), root, kWords);
    }
}

// The members do not agree: every block's call fails, and nothing is stored.
void disagreement() {
    fill_source(1, 4);
    const uint64_t n = me() == 0 ? 4 : 2;
    const int failed =
        detail::reduce_named<opening_blocks>(known_world(), target(1), source(1), n, true, Sum{}, Caller::packets);
    expect(failed != 0, "a call that differs from another member's has not failed");
    for (uint32_t i = 0; i < 4; ++i) {
        expect(word_at(target(1), i) == 0, "a call that failed has stored something");
    }
}

// The same by one thread of each PE, after a call in which another member may still be, and before
// one that all agree on.
void disagreement_after_sync() {
    expect(team_sync(thread, abi::kTeamWorld) == 0, "sync failed");
    fill_source(1, 4);
    const size_t n = me() == 0 ? 4 : 2;
    expect(reduce(thread, abi::kTeamWorld, op_sum, target(1), source(1), n) != 0,
           "a call that differs from another member's has not failed");
    fill_source(2, 4);
    expect(reduce(thread, abi::kTeamWorld, op_sum, target(2), source(2), 4) == 0, "the call after it failed too");
    check_sums(2, target(2), 4);
}

constexpr oxshmem_explore_program by_blocks(const char *name, void (*body)(), uint32_t blocks, uint32_t lanes, uint32_t epoch,
                                            uint32_t pes = 2) {
    return blocks_of(blocks, direct(collective(name, body, pes, lanes, epoch)));
}

constexpr oxshmem_explore_program kPrograms[] = {
    by_blocks("reduce_packets", sums<Caller::packets, 3>, 2, 1, 2),
    by_blocks("reduce_packets_wrap", sums<Caller::packets, 4>, 2, 1, 0xfffffffe),
    by_blocks("reduce_packets_warp", sums<Caller::packets, 2>, 2, 2, 5),
    by_blocks("reduce_push", sums<Caller::push, 3>, 2, 1, 0xffffffff),
    by_blocks("reduce_push_long", sums<Caller::push, 2, 64>, 2, 1, 2),
    by_blocks("reduce_one_shot", sums<Caller::one_shot, 3>, 2, 1, 2),
    by_blocks("reduce_by_turns", sums_by_turns<4>, 2, 1, 0xfffffffd),
    by_blocks("fcollect_packets", gathers<Caller::packets, 3>, 2, 1, 3),
    by_blocks("fcollect_push", gathers<Caller::push, 3>, 2, 1, 0xfffffffe),
    by_blocks("collect_packets", collects<32, 3>, 2, 1, 3),
    by_blocks("collect_packets_3", collects<64, 2>, 2, 1, 0xfffffffe, 3),
    by_blocks("collect_packets_warp", collects<32, 2>, 2, 2, 2),
    by_blocks("collect_push", collects<0, 3>, 2, 1, 0xfffffffe),
    by_blocks("collect_some_pushed", collects<24, 3>, 2, 1, 2),
    early(by_blocks("collect_early", collects<24, 3>, 2, 1, 2)),
    by_blocks("broadcast_packets", broadcasts<Caller::packets, 3>, 2, 1, 3),
    by_blocks("broadcast_push", broadcasts<Caller::push, 3>, 2, 1, 2),
    by_blocks("broadcast_push_3", broadcasts<Caller::push, 2>, 2, 1, 2, 3),
    by_blocks("broadcast_push_long_3", broadcasts<Caller::push, 2, 32>, 2, 1, 2, 3),
    by_blocks("reduce_packets_3", sums<Caller::packets, 2>, 2, 1, 2, 3),
    uneven(by_blocks("fcollect_copied", copied, 1, 1, 2)),
    by_blocks("reduce_relay_3", sums<Caller::relay, 3, 9>, 2, 1, 2, 3),
    by_blocks("broadcast_relay_3", broadcasts<Caller::relay, 3, 5>, 2, 1, 0xfffffffe, 3),
    uneven(by_blocks("disagreement", disagreement, 2, 1, 4)),
    failing(by_blocks("collect_without_room", collects_too_much, 2, 1, 4)),
    uneven(by_blocks("disagreement_after_sync_3", disagreement_after_sync, 1, 1, 4, 3)),
    uneven(by(abi::Algorithm::push, by_blocks("disagreement_push_after_sync_3", disagreement_after_sync, 1, 1, 4, 3))),
    early(by_blocks("reduce_early", sums<Caller::packets, 3>, 2, 1, 2)),
};

} // namespace explore

#include "module.h"
