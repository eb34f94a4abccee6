// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Calls in grid scope: every block gives a part of what the others see, and sees all of it when the
// call returns. The last block to arrive makes the call for all, or all take part.
#define OXSHMEM_TOGETHER_BYTES 32
#define OXSHMEM_COLLECTED_BY_ONE 16
#define OXSHMEM_RELAYED_FROM 64  // three PEs pass on 8 words by packets, but not 4
#define OXSHMEM_LONG_BROADCAST 0 // and one lane of each reads every one that is pushed
#define OXSHMEM_LONG_BROADCAST_LANES 1
#define OXSHMEM_WAIT_POLLS 1 // a wait looks each time whether the launch is aborted
#include "collectives.h"

#include <oxshmem/split.h>

namespace explore {

constexpr uint64_t kFrom = 0x400; // of turn t: word of each PE and block
constexpr uint64_t kFlag = 0x200; // what blocks of a PE tell each other without the library

// Each block stores to all PEs, the blocks of all PEs meet, and each looks at what all have stored.
template <uint32_t kTurns> void syncs() {
    const int n = port::state().n_pes;
    const uint32_t blocks = port::grid_blocks();
    const auto said = [](uint32_t turn, int pe, uint32_t of) {
        return uint64_t{100} * turn + uint64_t{10} * static_cast<uint64_t>(pe) + of;
    };
    for (uint32_t turn = 1; turn <= kTurns; ++turn) {
        uint64_t *const own = heap<uint64_t>(kFrom) + turn * 16;
        for (int pe = 0; lane() == 0 && pe < n; ++pe) {
            oxshmem::p(own + static_cast<uint32_t>(me()) * blocks + block(), said(turn, me(), block()), pe);
        }
        expect(team_sync(grid, abi::kTeamWorld) == 0, "sync failed");
        for (int pe = 0; pe < n; ++pe) {
            for (uint32_t of = 0; of < blocks; ++of) {
                const uint64_t *const at = own + static_cast<uint32_t>(pe) * blocks + of;
                const uint64_t seen = port::load<port::order::relaxed, port::reach::system>(at);
                expect(seen == said(turn, pe, of), "a block left sync before another had entered");
            }
        }
    }
}

// Every block writes every second element of the source.
void fill_together(uint32_t turn, uint32_t n) {
    for (uint32_t i = block(); lane() == 0 && i < n; i += port::grid_blocks()) {
        port::store<port::order::relaxed, port::reach::block>(source(turn) + i, word(turn, me(), i));
    }
}

// A call that has to be good.
void sum_well(uint32_t turn, const char *otherwise, uint32_t n = 4) {
    fill_together(turn, n);
    expect(reduce(grid, abi::kTeamWorld, op_sum, target(turn), source(turn), n) == 0, otherwise);
    check_sums(turn, target(turn), n);
}

template <uint32_t kTurns, uint32_t kWords = 4> void sums() {
    for (uint32_t turn = 1; turn <= kTurns; ++turn) {
        sum_well(turn, "reduce failed", kWords);
    }
}

template <uint32_t kTurns> void gathers() {
    for (uint32_t turn = 1; turn <= kTurns; ++turn) {
        fill_together(turn, 4);
        expect(fcollect(grid, abi::kTeamWorld, target(turn), source(turn), 4) == 0, "fcollect failed");
        check_gathered(turn, target(turn), 4);
    }
}

// Contributions that differ: of the first block, of both, and none. A block stores to its PE's own
// target before the call, which comes before what the others store there.
template <uint32_t kTurns> void collects() {
    for (uint32_t turn = 1; turn <= kTurns; ++turn) {
        const auto length = [&](int pe) { return (static_cast<uint32_t>(pe) + turn) % 3 * 2; };
        fill_together(turn, length(me()));
        for (uint32_t i = 0; lane() == 0 && block() == 1 && i < 4; ++i) {
            port::store<port::order::relaxed, port::reach::block>(target(turn) + i, uint64_t{7});
        }
        expect(collect(grid, abi::kTeamWorld, target(turn), source(turn), length(me())) == 0, "collect failed");
        check_collected(turn, target(turn), length);
    }
}

template <uint32_t kTurns> void broadcasts() {
    for (uint32_t turn = 1; turn <= kTurns; ++turn) {
        const int root = static_cast<int>(turn) % port::state().n_pes;
        fill_together(turn, 8);
        expect(broadcast(grid, abi::kTeamWorld, target(turn), source(turn), 8, root) == 0, "broadcast failed");
        check_broadcast(turn, target(turn), root, 8);
    }
}

// The same in two calls, between which each block does something else.
template <class Scope, uint32_t kTurns> void sums_in_two() {
    for (uint32_t turn = 1; turn <= kTurns; ++turn) {
        fill_together(turn, 4);
        port::sync_block();
        const auto begun = reduce_begin(Scope{}, abi::kTeamWorld, op_sum, target(turn), source(turn), 4);
        port::store<port::order::relaxed, port::reach::block>(heap<uint64_t>(kFlag) + 8 * block(), uint64_t{turn});
        expect(end(begun) == 0, "reduce failed");
        port::sync_block();
        check_sums(turn, target(turn), 4);
        port::sync_block();
    }
}

// Puts of all blocks over the network, and quiet of the grid by whichever block is the last.
void quiet_of_all() {
    p(place(block(), 0), value(block(), 0), 1);
    oxshmem::quiet(grid);
    note(kNoteQuietFor, block());
}

// What the host does when it takes an error, and none of the PE's blocks is in a call.
void take_error() {
    abi::Team &row = detail::team_row(abi::kTeamWorld);
    const uint64_t seen = port::load<port::order::acquire, port::reach::device>(&row.grid);
    port::store<port::order::relaxed, port::reach::system>(&detail::control().abort, 0u);
    if ((seen & abi::kGridGivenUp) != 0) {
        port::store<port::order::release, port::reach::device>(&row.grid, (seen / abi::kGridTurn + 2) * abi::kGridTurn);
    }
}

void abort_launch() {
    port::fetch_max<port::order::acq_rel, port::reach::system>(&detail::control().abort, abi::kAbortLaunch);
}

// Waits until all blocks of this PE have left their calls. Then block `by` takes the error.
void leave_and_take_error(uint32_t by) {
    uint64_t *const left = heap<uint64_t>(kFlag), *const taken = left + 1;
    port::fetch_add<port::order::acq_rel, port::reach::device>(left, uint64_t{1});
    if (block() == by) {
        await(left, port::grid_blocks());
        take_error();
        tell(taken, 1);
    } else {
        await(taken, 1);
    }
}

// PE 0's second block comes too late, when the launch has been aborted and another block has left:
// the call fails on all PEs and in all blocks. The next one, before which the host has taken the
// error, does not.
void late_block() {
    const uint64_t *const left = heap<uint64_t>(kFlag);
    if (me() == 0 && block() == 1) {
        abort_launch();
        while (port::load<port::order::acquire, port::reach::device>(left) == 0) {
            port::pause();
        }
    }
    fill_together(1, 4);
    expect(reduce(grid, abi::kTeamWorld, op_sum, target(1), source(1), 4) != 0, "a call without a block has not failed");
    for (uint32_t i = 0; i < 4; ++i) {
        expect(word_at(target(1), i) == 0, "a call that failed has stored something");
    }
    if (me() == 0) {
        leave_and_take_error(1);
    }
    sum_well(2, "the call after one that failed failed too");
}

// PE 0 gives up a call when its launch is aborted, and tells the others so. These have not made the
// call yet: theirs fails at once, so that they make the next one, in which PE 0 waits for them.
void late_members() {
    uint64_t *const gave_up = heap<uint64_t>(kFlag) + 5;
    const auto sum = [](uint32_t turn) {
        fill_together(turn, 4);
        return reduce(thread, abi::kTeamWorld, op_sum, target(turn), source(turn), 4);
    };
    if (me() == 0) {
        abort_launch();
    } else {
        while (port::load<port::order::acquire, port::reach::system>(gave_up) == 0) {
            port::pause();
        }
    }
    expect(sum(1) != 0, "a call that a member has left has not failed");
    if (me() == 0) {
        take_error();
        for (int pe = 1; pe < port::state().n_pes; ++pe) {
            port::store<port::order::release, port::reach::system>(detail::translate(gave_up, pe), uint64_t{1});
        }
    }
    expect(sum(2) == 0, "the call after one that was left failed too");
    check_sums(2, target(2), 4);
}

// A meeting by each block for its own. The call of PE 1 is refused there, or differs from that of
// the others. Its launch is aborted, so that it does not wait for the others. These find out that
// the call is PE 1's, from each other where they meet in rounds, and in a block that another one
// has stopped.
template <class Scope, bool kIsRefused> void bad_call() {
    constexpr int kBad = 1;
    constexpr uint32_t kGood = 0, kOther = 1;
    if (me() == kBad) {
        abort_launch();
    }
    detail::TeamView team;
    expect(detail::view_team<Scope>(team, abi::kTeamWorld, abi::Op::sync), "there is no world team");
    const uint32_t said = me() == kBad && kIsRefused ? detail::announce_bad(kBad)
                                                     : detail::announce(abi::Call::sync, me() == kBad ? kOther : kGood);
    expect(!detail::meet<Scope, true>(team, abi::Op::sync, said), "a bad call has not failed");
    const abi::Control &control = detail::control();
    const uint32_t claimed = port::load<port::order::acquire, port::reach::system>(&control.claimed);
    expect(me() == kBad || claimed != 0, "a call has failed and has recorded no error");
    if (me() != kBad && claimed == abi::kErrorValid) {
        const auto of = [](const auto &word) { return port::load<port::order::relaxed, port::reach::device>(&word); };
        const auto code = static_cast<abi::ErrorCode>(of(control.error.code));
        // One whose call differs may have left when it hears of that.
        expect(code == abi::ErrorCode::mismatch || (!kIsRefused && code == abi::ErrorCode::member_left),
               "another error than a bad call's is reported");
        expect(of(control.error.pe) == kBad, "another PE is blamed than the one that makes the bad call");
    }
}

// PE 0's second block leaves out the first of two calls, in which another block misses it when the
// launch has been aborted. Both fail in all blocks of all PEs. The next one, before which the host
// has taken the error, does not: each PE has taken an epoch for each call.
void left_out_once() {
    uint64_t *const left = heap<uint64_t>(kFlag) + 2;
    const bool is_out = me() == 0 && block() == 1;
    if (is_out) {
        abort_launch();
        while (port::load<port::order::acquire, port::reach::device>(left) == 0) {
            port::pause();
        }
    } else {
        fill_together(1, 4);
        expect(reduce(grid, abi::kTeamWorld, op_sum, target(1), source(1), 4) != 0, "a call without a block has not failed");
        port::fetch_add<port::order::acq_rel, port::reach::device>(left, uint64_t{1});
    }
    fill_together(2, 4);
    expect(reduce(grid, abi::kTeamWorld, op_sum, target(2), source(2), 4) != 0, "the call after it has not failed");
    if (me() == 0) {
        leave_and_take_error(1);
    }
    sum_well(3, "the call after those that failed failed too");
}

// The PE's last block never makes the call: the others leave it when the launch has been aborted,
// and what they call after that does not tell any of them that it was good.
void absent_block() {
    if (block() + 1 == port::grid_blocks()) {
        abort_launch();
        return;
    }
    fill_together(1, 4);
    expect(reduce(grid, abi::kTeamWorld, op_sum, target(1), source(1), 4) != 0, "a call without a block has not failed");
    expect(team_sync(grid, abi::kTeamWorld) != 0, "the call after it has not failed");
    const uint32_t abort = port::load<port::order::relaxed, port::reach::system>(&detail::control().abort);
    expect(abort == abi::kAbortLaunch, "a block has waited once more for one that was given up");
}

// A block comes late, and those that have left the call without it make another one at once: no
// block takes the first for a good one.
void late_block_alone() {
    uint64_t *const left = heap<uint64_t>(kFlag);
    if (block() + 1 == port::grid_blocks()) {
        abort_launch();
        while (port::load<port::order::acquire, port::reach::device>(left) == 0) {
            port::pause();
        }
    }
    fill_together(1, 4);
    expect(reduce(grid, abi::kTeamWorld, op_sum, target(1), source(1), 4) != 0, "a call without a block has not failed");
    port::fetch_add<port::order::acq_rel, port::reach::device>(left, uint64_t{1});
    oxshmem::quiet(grid);
}

// The launch is aborted before all blocks are in a call, or while they are: each block is told
// something, and the next call, before which the host has taken the error, is good.
template <bool kInTwo> void aborted() {
    const auto abort = [] {
        if (me() == 0 && block() == 0) {
            abort_launch();
        }
    };
    fill_together(1, 4);
    int failed = 0;
    if (kInTwo) {
        const auto begun = reduce_begin(grid, abi::kTeamWorld, op_sum, target(1), source(1), 4);
        abort();
        failed = end(begun);
    } else {
        abort();
        failed = reduce(grid, abi::kTeamWorld, op_sum, target(1), source(1), 4);
    }
    if (failed == 0) {
        check_sums(1, target(1), 4);
    }
    if (me() == 0) {
        leave_and_take_error(0);
    }
    sum_well(2, "the call after one that was aborted failed");
}

// The same on every PE: one that has not passed on its share keeps the others from leaving.
template <bool kSum> void aborted_relay() {
    fill_together(1, 8);
    if (block() == 0) {
        abort_launch();
    }
    if (kSum && reduce(grid, abi::kTeamWorld, op_sum, target(1), source(1), 8) == 0) {
        check_sums(1, target(1), 8);
    }
    if (!kSum && broadcast(grid, abi::kTeamWorld, target(1), source(1), 8, 1) == 0) {
        check_broadcast(1, target(1), 1, 8);
    }
    leave_and_take_error(0);
    sum_well(2, "the call after one that was aborted failed");
}

// The job ends while a block whose part has failed waits for another one. `kLate`: that one comes
// when the first has left. Both are told of the failure, and the next call, before which the host
// has taken the error, is good.
template <bool kLate> void part_fails_as_job_ends() {
    const uint64_t *const left = heap<uint64_t>(kFlag);
    const bool fails = block() == 0;
    expect(detail::enter_own_grid(abi::kTeamWorld, detail::Op::reduce), "the blocks have not met");
    if (fails) {
        port::fetch_max<port::order::acq_rel, port::reach::system>(&detail::control().abort, abi::kAbortJob);
    }
    while (kLate && !fails && port::load<port::order::acquire, port::reach::device>(left) == 0) {
        port::pause();
    }
    expect(!detail::leave_own_grid(abi::kTeamWorld, detail::Op::reduce, !fails), "a call whose part has failed is good");
    leave_and_take_error(0);
    sum_well(2, "the call after one that failed failed too");
}

// A block looks for the end of a turn when another one has given up the next: its own has ended
// well.
void slow_to_look() {
    constexpr detail::Op kOp = detail::Op::reduce;
    uint64_t *const given_up = heap<uint64_t>(kFlag);
    if (block() == 0) {
        expect(detail::enter_own_grid(abi::kTeamWorld, kOp), "the blocks have not met");
        abort_launch();
        expect(!detail::enter_own_grid(abi::kTeamWorld, kOp), "a block has met one that has not come");
        tell(given_up, 1);
    } else {
        abi::Team &row = detail::team_row(abi::kTeamWorld);
        const uint64_t seen = detail::count_block<port::order::acq_rel>(row);
        await(given_up, 1);
        expect(detail::await_entered_turn(row, abi::kTeamWorld, kOp, seen, true), "a turn that has ended well has failed");
    }
}

// As aborted(), in two calls, which some blocks leave later than others.
void aborted_twice() {
    for (uint32_t turn = 1; turn <= 2; ++turn) {
        if (turn == 1 && block() == 0) {
            abort_launch();
        }
        fill_together(turn, 4);
        if (reduce(grid, abi::kTeamWorld, op_sum, target(turn), source(turn), 4) == 0) {
            check_sums(turn, target(turn), 4);
        }
    }
    leave_and_take_error(0);
    sum_well(3, "the call after those that were aborted failed");
}

// As disagreement(), in two calls with another one of the grid between them.
void disagreement_in_two() {
    fill_together(1, 4);
    port::sync_block();
    const auto begun =
        reduce_begin(grid, abi::kTeamWorld, op_sum, target(1), source(1), static_cast<size_t>(me() == 0 ? 4 : 2));
    oxshmem::quiet(grid);
    expect(end(begun) != 0, "a call that differs from another member's has not failed");
    sum_well(2, "the call after it failed too");
}

// The members do not agree: the call fails in every block. With `kOrders` the call orders what was
// stored before it, and no block leaves it before all members have made it.
template <bool kOrders> void disagreement() {
    uint64_t *const makes_it = heap<uint64_t>(kFlag) + 4; // of each PE
    for (int pe = 0; block() == 0 && lane() == 0 && pe < port::state().n_pes; ++pe) {
        port::store<port::order::relaxed, port::reach::system>(detail::translate(makes_it + me(), pe), uint64_t{1});
    }
    fill_together(1, 4);
    const uint64_t n = me() == 0 ? 4 : 2;
    expect(reduce(grid, abi::kTeamWorld, op_sum, target(1), source(1), n) != 0,
           "a call that differs from another member's has not failed");
    for (int pe = 0; kOrders && pe < port::state().n_pes; ++pe) {
        expect(port::load<port::order::relaxed, port::reach::system>(makes_it + pe) == 1,
               "a block has left a call that another member has not made yet");
    }
    sum_well(2, "the call after it failed too");
}

// The same after a call in which another member may still be.
void disagreement_after_sync() {
    expect(team_sync(grid, abi::kTeamWorld) == 0, "sync failed");
    disagreement<true>();
}

using abi::Algorithm;

// With packets that the user has chosen one block makes the call for all; the library leaves them
// to all blocks.
constexpr Algorithm kPacketsOfAll = static_cast<Algorithm>(kLibrarysPush);

constexpr oxshmem_explore_program in_grid(const char *name, void (*body)(), uint32_t pes, uint32_t blocks, Algorithm algorithm,
                                          uint32_t epoch) {
    oxshmem_explore_program program = blocks_of(blocks, direct(collective(name, body, pes, 1, epoch)));
    program.algorithm = static_cast<uint32_t>(algorithm);
    return program;
}

constexpr oxshmem_explore_program kPrograms[] = {
    in_grid("sync", syncs<3>, 2, 2, Algorithm::packets, 2),
    in_grid("sync_3", syncs<2>, 2, 3, Algorithm::packets, 0xfffffffe),
    early(in_grid("sync_early", syncs<3>, 2, 2, Algorithm::packets, 2)),
    in_grid("sync_1", syncs<2>, 2, 1, Algorithm::packets, 3),
    in_grid("reduce_packets", sums<3>, 2, 2, Algorithm::packets, 3),
    in_grid("reduce_packets_of_all", sums<3>, 2, 2, kPacketsOfAll, 3),
    in_grid("reduce_packets_of_all_3", sums<2>, 2, 3, kPacketsOfAll, 0xffffffff),
    early(in_grid("fcollect_packets_of_all", gathers<3>, 2, 2, kPacketsOfAll, 0xfffffffe)),
    in_grid("collect_packets_of_all", collects<3>, 2, 2, kPacketsOfAll, 0xfffffffe),
    in_grid("collect_push", collects<3>, 2, 2, Algorithm::push, 2),
    in_grid("collect_push_3", collects<2>, 2, 3, Algorithm::push, 3),
    early(in_grid("collect_push_early", collects<2>, 2, 2, Algorithm::push, 0xffffffff)),
    in_grid("reduce_packets_of_all_of_3", sums<2>, 3, 2, kPacketsOfAll, 0xffffffff),
    in_grid("reduce_relay_of_3", sums<2, 8>, 3, 2, kPacketsOfAll, 0xffffffff),
    in_grid("broadcast_relay_of_3", broadcasts<2>, 3, 2, kPacketsOfAll, 0xfffffffe),
    in_grid("reduce_push_1", sums<2>, 2, 1, Algorithm::push, 2),
    in_grid("reduce_push", sums<3>, 2, 2, Algorithm::push, 0xffffffff),
    in_grid("reduce_push_3", sums<2>, 2, 3, Algorithm::push, 2),
    in_grid("reduce_one_shot", sums<3>, 2, 2, Algorithm::one_shot, 2),
    in_grid("fcollect_push", gathers<3>, 2, 2, Algorithm::push, 0xfffffffe),
    early(in_grid("fcollect_push_early", gathers<3>, 2, 2, Algorithm::push, 3)),
    in_grid("broadcast_push_of_3", broadcasts<2>, 3, 2, Algorithm::push, 3),
    in_grid("reduce_in_two_grid", sums_in_two<grid_scope, 3>, 2, 2, Algorithm::push, 2),
    in_grid("reduce_in_two", sums_in_two<thread_scope, 3>, 2, 1, Algorithm::push, 0xfffffffe),
    posting("quiet", quiet_of_all, 2, 2, 40000),
    failing(in_grid("late_block", late_block, 2, 2, Algorithm::packets, 3)),
    failing(in_grid("slow_to_look", slow_to_look, 2, 2, Algorithm::packets, 2)),
    failing(in_grid("late_members", late_members, 2, 1, Algorithm::push, 2)),
    failing(in_grid("late_members_packets", late_members, 2, 1, Algorithm::packets, 0xffffffff)),
    failing(in_grid("late_members_of_3", late_members, 3, 1, Algorithm::push, 0xfffffffe)),
    failing(in_rounds(in_grid("late_members_rounds_of_3", late_members, 3, 1, Algorithm::push, 2))),
    failing(in_grid("refused_of_3", bad_call<thread_scope, true>, 3, 1, Algorithm::packets, 2)),
    failing(in_rounds(in_grid("refused_rounds_of_3", bad_call<thread_scope, true>, 3, 1, Algorithm::packets, 2))),
    failing(in_rounds(in_grid("refused_rounds_of_4", bad_call<thread_scope, true>, 4, 1, Algorithm::packets, 0xfffffffe))),
    failing(in_rounds(in_grid("refused_levels_of_3", bad_call<detail::levels_scope, true>, 3, 2, Algorithm::packets, 3))),
    failing(
        in_rounds(in_grid("refused_levels_of_4", bad_call<detail::levels_scope, true>, 4, 2, Algorithm::packets, 0xffffffff))),
    failing(in_grid("differing_of_3", bad_call<thread_scope, false>, 3, 1, Algorithm::packets, 2)),
    failing(in_rounds(in_grid("differing_rounds_of_3", bad_call<thread_scope, false>, 3, 1, Algorithm::packets, 2))),
    failing(in_rounds(in_grid("differing_rounds_of_4", bad_call<thread_scope, false>, 4, 1, Algorithm::packets, 0xfffffffe))),
    failing(in_rounds(in_grid("differing_levels_of_3", bad_call<detail::levels_scope, false>, 3, 2, Algorithm::packets, 3))),
    failing(in_rounds(
        in_grid("differing_levels_of_4", bad_call<detail::levels_scope, false>, 4, 2, Algorithm::packets, 0xffffffff))),
    failing(in_grid("left_out_once", left_out_once, 2, 2, Algorithm::packets, 2)),
    failing(in_grid("left_out_once_3", left_out_once, 2, 3, Algorithm::packets, 2)),
    failing(in_grid("left_out_once_push", left_out_once, 2, 2, Algorithm::push, 2)),
    failing(in_grid("left_out_once_packets", left_out_once, 2, 2, kPacketsOfAll, 2)),
    failing(in_grid("late_block_3", late_block, 2, 3, Algorithm::packets, 3)),
    failing(in_grid("late_block_push", late_block, 2, 2, Algorithm::push, 2)),
    failing(in_grid("late_block_push_3", late_block, 2, 3, Algorithm::push, 2)),
    failing(in_grid("late_block_push_of_3", late_block, 3, 2, Algorithm::push, 2)),
    failing(in_grid("late_block_packets_of_3", late_block, 3, 2, kPacketsOfAll, 2)),
    failing(in_grid("late_block_of_3", late_block, 3, 2, Algorithm::packets, 2)),
    failing(in_grid("disagreement_of_3", disagreement<true>, 3, 2, Algorithm::push, 4)),
    failing(in_grid("disagreement_packets_of_3", disagreement<false>, 3, 2, kPacketsOfAll, 4)),
    failing(in_grid("disagreement_after_sync_of_3", disagreement_after_sync, 3, 2, Algorithm::push, 4)),
    failing(in_grid("disagreement_in_two_of_3", disagreement_in_two, 3, 2, Algorithm::push, 4)),
    failing(in_grid("late_block_packets", late_block, 2, 2, kPacketsOfAll, 2)),
    failing(in_grid("late_block_packets_3", late_block, 2, 3, kPacketsOfAll, 2)),
    failing(in_grid("late_block_alone_packets", late_block_alone, 1, 3, kPacketsOfAll, 2)),
    failing(in_grid("absent_block_packets", absent_block, 1, 3, kPacketsOfAll, 2)),
    failing(in_grid("disagreement_packets", disagreement<false>, 2, 2, kPacketsOfAll, 4)),
    failing(in_grid("late_block_alone", late_block_alone, 1, 3, Algorithm::push, 2)),
    failing(in_grid("aborted", aborted<false>, 2, 2, Algorithm::packets, 4)),
    failing(in_grid("aborted_push", aborted<false>, 2, 2, Algorithm::push, 4)),
    failing(in_grid("aborted_push_3", aborted<false>, 2, 3, Algorithm::push, 0xffffffff)),
    failing(in_grid("aborted_packets", aborted<false>, 2, 2, kPacketsOfAll, 4)),
    failing(in_grid("aborted_packets_3", aborted<false>, 2, 3, kPacketsOfAll, 4)),
    failing(in_grid("aborted_relay_of_3", aborted_relay<false>, 3, 2, kPacketsOfAll, 4)),
    failing(in_grid("aborted_reduce_relay_of_3", aborted_relay<true>, 3, 2, kPacketsOfAll, 4)),
    failing(in_grid("aborted_in_two", aborted<true>, 2, 2, Algorithm::push, 4)),
    failing(in_grid("aborted_in_two_3", aborted<true>, 2, 3, Algorithm::push, 4)),
    failing(in_grid("aborted_twice", aborted_twice, 1, 3, Algorithm::push, 4)),
    failing(in_grid("aborted_twice_packets", aborted_twice, 1, 3, kPacketsOfAll, 4)),
    failing(in_grid("part_fails_as_job_ends", part_fails_as_job_ends<false>, 1, 3, kPacketsOfAll, 2)),
    failing(in_grid("part_fails_as_job_ends_late", part_fails_as_job_ends<true>, 1, 2, kPacketsOfAll, 2)),
    failing(in_grid("absent_block", absent_block, 1, 3, Algorithm::packets, 2)),
    failing(in_grid("absent_block_push", absent_block, 1, 3, Algorithm::push, 2)),
    failing(in_grid("disagreement", disagreement<true>, 2, 2, Algorithm::push, 4)),
    failing(in_grid("disagreement_3", disagreement<true>, 2, 3, Algorithm::push, 4)),
    failing(in_grid("disagreement_in_two", disagreement_in_two, 2, 2, Algorithm::push, 4)),
    failing(in_grid("disagreement_in_two_3", disagreement_in_two, 2, 3, Algorithm::push, 4)),
};

} // namespace explore

#include "module.h"
