// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Collectives by a list of steps, so that one launch runs hundreds of them.
#include "conformance.h"

#include <oxshmem/collectives.h>
#include <oxshmem/detail/reduce_numbered.h>

namespace {

using namespace conformance;
using namespace oxshmem;
namespace inner = oxshmem::detail;

// Mirrored in pe/collectives.rs.
struct Step {
    uint32_t call, scope, algorithm, by_rounds;
    int32_t team, root;
    uint32_t type, op;
    uint32_t element;
    int32_t result; // written: what the call returned
    int64_t dst_stride, src_stride;
    uint64_t dst, src, n;
};

// Calls whose elements or operators the step names by numbers.
OXSHMEM_DEVICE inner::AlltoallsCall strided(const Step &step) {
    return {inner::as<void>(step.dst),
            inner::as<void>(step.src),
            static_cast<ptrdiff_t>(step.dst_stride),
            static_cast<ptrdiff_t>(step.src_stride),
            step.n,
            step.element};
}
template <bool kToAll> OXSHMEM_DEVICE inner::ReduceCall<kToAll, inner::CombineNumbered> reduction(const Step &step) {
    const inner::CombineNumbered combine{static_cast<abi::Type>(step.type), static_cast<abi::ReduceOp>(step.op)};
    return {inner::as<void>(step.dst), inner::as<void>(step.src), step.n, combine};
}

template <class S> OXSHMEM_DEVICE int run(const Step &step) {
    using inner::as;
    void *const dst = as<void>(step.dst);
    const void *const src = as<void>(step.src);
    const size_t bytes = step.n * step.element;
    switch (static_cast<abi::Call>(step.call)) {
    case abi::Call::sync:
        return team_sync(S{}, step.team);
    case abi::Call::barrier:
        return barrier(S{}, step.team);
    case abi::Call::broadcast:
        return broadcastmem(S{}, step.team, dst, src, bytes, step.root);
    case abi::Call::collect:
        return collectmem(S{}, step.team, dst, src, bytes);
    case abi::Call::fcollect:
        return fcollectmem(S{}, step.team, dst, src, bytes);
    case abi::Call::alltoall:
        return alltoallmem(S{}, step.team, dst, src, bytes);
    case abi::Call::alltoalls:
        return inner::call_in<S>(step.team, strided(step));
    case abi::Call::reduce:
        return inner::call_in<S>(step.team, reduction<true>(step));
    case abi::Call::reducescatter:
        return inner::call_in<S>(step.team, reduction<false>(step));
    case abi::Call::none:
        break;
    }
    return -1;
}

// The same in two calls, where there are two.
template <class S> OXSHMEM_DEVICE int run_in_two(const Step &step) {
    using inner::as;
    void *const dst = as<void>(step.dst);
    const void *const src = as<void>(step.src);
    const size_t bytes = step.n * step.element;
    switch (static_cast<abi::Call>(step.call)) {
    case abi::Call::broadcast:
        return end(broadcastmem_begin(S{}, step.team, dst, src, bytes, step.root));
    case abi::Call::fcollect:
        return end(fcollectmem_begin(S{}, step.team, dst, src, bytes));
    case abi::Call::alltoall:
        return end(alltoallmem_begin(S{}, step.team, dst, src, bytes));
    case abi::Call::alltoalls:
        return end(inner::begin_in<S>(step.team, strided(step)));
    case abi::Call::reduce:
        return end(inner::begin_in<S>(step.team, reduction<true>(step)));
    case abi::Call::reducescatter:
        return end(inner::begin_in<S>(step.team, reduction<false>(step)));
    default:
        return run<S>(step);
    }
}

constexpr uint32_t kInTwo = 4; // added to the number of a scope

template <class S> OXSHMEM_DEVICE void run_in(Step &step) {
    if (thread_rank() < S::size()) {
        const int result = step.scope < kInTwo ? run<S>(step) : run_in_two<S>(step);
        S::sync();
        if (S::rank() == 0) {
            step.result = result;
        }
    }
}

// Makes the team's table say what the step asks for.
OXSHMEM_DEVICE void prepare(const Step &step) {
    abi::Team *row = inner::find_team(step.team);
    if (thread_rank() == 0 && row != nullptr) {
        for (abi::Choice(&choices)[abi::kChoices] : row->choices) {
            choices[0] = {~0ull, step.algorithm, 0};
        }
        row->one_round = step.by_rounds != 0 ? 0 : row->one_round;
    }
    sync_block();
}

} // namespace

// `saved`: room for one row of a team.
OXSHMEM_KERNEL(run_steps, Step *steps, uint32_t count, abi::Team *saved) {
    for (uint32_t i = 0; i < count; ++i) {
        Step &step = steps[i];
        abi::Team *row = inner::find_team(step.team);
        if (thread_rank() == 0 && row != nullptr) {
            *saved = *row;
        }
        sync_block();
        prepare(step);
        if (step.scope % kInTwo == 0) {
            run_in<thread_scope>(step);
        } else if (step.scope % kInTwo == 1) {
            run_in<warp_scope>(step);
        } else {
            run_in<block_scope>(step);
        }
        sync_block();
        if (thread_rank() == 0 && row != nullptr) {
            saved->epoch = row->epoch;
            *row = *saved;
        }
        sync_block();
    }
}

// Makes a team's table say what steps in grid scope ask for, until give_row: by one thread.
// `chosen` is that of the row.
OXSHMEM_KERNEL(take_row, int team, uint32_t algorithm, uint32_t by_rounds, uint32_t chosen, abi::Team *saved) {
    abi::Team &row = inner::team_row(team);
    *saved = row;
    for (abi::Choice(&choices)[abi::kChoices] : row.choices) {
        choices[0] = {~0ull, algorithm, 0};
    }
    row.one_round = by_rounds != 0 ? 0 : row.one_round;
    row.chosen = chosen;
}

OXSHMEM_KERNEL(give_row, int team, const abi::Team *saved) {
    abi::Team &row = inner::team_row(team);
    memcpy(row.choices, saved->choices, sizeof(row.choices));
    row.one_round = saved->one_round;
    row.chosen = saved->chosen;
}

// All blocks make the call of each step. The result is what it was before, and 1 more for each
// block whose call says that all is well. Blocks from `absent` on leave the calls out.
OXSHMEM_KERNEL(run_steps_in_grid, Step *steps, uint32_t count, uint32_t absent) {
    for (uint32_t i = 0; i < count && block_rank() < absent; ++i) {
        const int failed = steps[i].scope < kInTwo ? run<grid_scope>(steps[i]) : run_in_two<grid_scope>(steps[i]);
        if (thread_rank() == 0 && failed == 0) {
            port::fetch_add<port::order::relaxed, port::reach::device>(reinterpret_cast<uint32_t *>(&steps[i].result), 1u);
        }
    }
}

OXSHMEM_KERNEL(read_one_round, int team, uint64_t *out) {
    *out = inner::team_row(team).one_round;
}

// The templates' own forms: types and operators that the compiler knows. `data`: room for 16 words
// on every PE.
OXSHMEM_KERNEL(typed_forms, int *data, Report *report) {
    const int n = n_pes(), me = my_pe();
    int *const src = data, *const dst = data + 4;
    if (thread_rank() == 0) {
        src[0] = me + 1, src[1] = -me;
    }
    sync_block();
    EXPECT_EQ(report, reduce(block, TEAM_WORLD, op_sum, dst, src, 2), 0);
    EXPECT_EQ(report, dst[0], n * (n + 1) / 2);
    EXPECT_EQ(report, dst[1], -(n * (n - 1) / 2));
    sync_block();
    EXPECT_EQ(report, reduce(block, TEAM_WORLD, op_min, dst, src, 2), 0);
    EXPECT_EQ(report, dst[0], 1);
    EXPECT_EQ(report, dst[1], 1 - n);
    sync_block();
    EXPECT_EQ(report, broadcast(block, TEAM_WORLD, dst, src, 2, n - 1), 0);
    EXPECT_EQ(report, dst[0], n);
    EXPECT_EQ(report, dst[1], 1 - n);
    EXPECT_EQ(report, team_my_pe(TEAM_WORLD), me);
    EXPECT_EQ(report, team_n_pes(TEAM_WORLD), n);
    EXPECT_EQ(report, team_translate_pe(TEAM_WORLD, n - 1, TEAM_WORLD), n - 1);
    EXPECT_EQ(report, team_translate_pe(TEAM_WORLD, n, TEAM_WORLD), -1);
    EXPECT_EQ(report, team_my_pe(TEAM_INVALID), -1);
    EXPECT_EQ(report, team_n_pes(0x300), -1);
}

// Members that have no data pass null, or an address of the heap. `data`: room for 16 words.
OXSHMEM_KERNEL(empty_buffers, int *data, Report *report) {
    const int me = my_pe();
    int *const any = me % 2 == 0 ? nullptr : data + me;
    int *const none = me % 2 == 0 ? data + me : nullptr;
    EXPECT_EQ(report, broadcast(block, TEAM_WORLD, any, none, 0, 0), 0);
    EXPECT_EQ(report, fcollect(block, TEAM_WORLD, none, any, 0), 0);
    EXPECT_EQ(report, alltoall(block, TEAM_WORLD, any, none, 0), 0);
    EXPECT_EQ(report, alltoalls(block, TEAM_WORLD, none, any, 1, 1, 0), 0);
    EXPECT_EQ(report, reduce(block, TEAM_WORLD, op_sum, any, none, 0), 0);
    EXPECT_EQ(report, reducescatter(block, TEAM_WORLD, op_max, none, any, 0), 0);
    EXPECT_EQ(report, collect(block, TEAM_WORLD, static_cast<int *>(nullptr), any, 0), 0);
    if (thread_rank() == 0) {
        data[8] = 17;
    }
    sync_block();
    EXPECT_EQ(report, collect(block, TEAM_WORLD, data, me == 0 ? data + 8 : any, me == 0 ? 1 : 0), 0);
    EXPECT_EQ(report, data[0], 17);
}
