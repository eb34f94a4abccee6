// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// What is measured, written once for both libraries. All kernels have the same parameters; see Run.
//
// A kernel runs `warmup` iterations that are not timed and then `iters` that are: from after the
// quiet that ends the former until after the quiet that ends the latter. clock[2 b] and clock[2 b +
// 1] are begin and end of CTA b, in nanoseconds. Those of contexts are OxSHMEM's alone.
#pragma once

#include "device_layer.h"

namespace compare {

struct Run {
    char *dst, *src;        // symmetric
    uint64_t *signals;      // symmetric
    uint64_t *clock;        // local
    uint64_t bytes, stride; // of one iteration; words from one element of p to the next, or see jacobi.h and moe.h
    uint64_t step, steps;   // see away()
    uint64_t warmup, iters;
    uint64_t base;           // added to values, so that no sample can pass with what another has left
    int pe;                  // the other PE of PE 0 and PE 1, which take turns in a ping-pong; PE 0 begins
    const Context *contexts; // one for each thread, warp or CTA, where the row has contexts
};

// Iteration i puts from 64 * (i mod 16) bytes on, so what one has left does not pass for what the
// next should bring.
COMPARE_DEVICE uint64_t shift(uint64_t i) {
    return i % 16 * 64;
}

// Where in the memory of the other PE iteration i works, in bytes: it walks in `steps` steps of
// `step` bytes, over and over; `steps` is a power of two. So the time of a single word is not that
// of one slice of the L2 cache, near or far as chance has it, and gets do not find their data in
// the L1 cache.
COMPARE_DEVICE uint64_t away(const Run &run, uint64_t i) {
    return (i & (run.steps - 1)) * run.step;
}
COMPARE_DEVICE uint64_t *word_away(const Run &run, char *base, uint64_t i) {
    return reinterpret_cast<uint64_t *>(base + away(run, i));
}
COMPARE_DEVICE uint64_t *signal_away(const Run &run, uint64_t i) {
    return run.signals + away(run, i) / sizeof(uint64_t);
}

// What p stores at element e in iteration i.
COMPARE_DEVICE uint64_t value(uint64_t base, uint64_t i, uint64_t e) {
    return (base + i) * 0xd1b54a32d192ed03ull + e;
}

COMPARE_DEVICE uint64_t grid_rank() {
    return static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
COMPARE_DEVICE uint64_t grid_threads() {
    return static_cast<uint64_t>(gridDim.x) * blockDim.x;
}

// Groups of threads that call together: which one the thread is in, how many the grid has, the
// thread's place in it.
COMPARE_DEVICE uint64_t group(thread_scope) {
    return grid_rank();
}
COMPARE_DEVICE uint64_t group(warp_scope) {
    return grid_rank() / 32;
}
COMPARE_DEVICE uint64_t group(block_scope) {
    return blockIdx.x;
}
COMPARE_DEVICE uint64_t groups(thread_scope) {
    return grid_threads();
}
COMPARE_DEVICE uint64_t groups(warp_scope) {
    return grid_threads() / 32;
}
COMPARE_DEVICE uint64_t groups(block_scope) {
    return gridDim.x;
}
COMPARE_DEVICE bool leads(thread_scope) {
    return true;
}
COMPARE_DEVICE bool leads(warp_scope) {
    return threadIdx.x % 32 == 0;
}
COMPARE_DEVICE bool leads(block_scope) {
    return threadIdx.x == 0;
}
COMPARE_DEVICE void meet(thread_scope) {}
COMPARE_DEVICE void meet(warp_scope) {
    __syncwarp();
}
COMPARE_DEVICE void meet(block_scope) {
    __syncthreads();
}

// One quiet for a group.
template <class Scope> COMPARE_DEVICE void quiet_of(Scope scope) {
    meet(scope);
    if (leads(scope)) {
        quiet();
    }
    meet(scope);
}

// `iterate` runs the iterations from its first argument to the one before its second, and
// `complete` waits for what the CTA has begun.
template <class Iterate, class Complete> COMPARE_DEVICE void timed_loops(const Run &run, Iterate iterate, Complete complete) {
    iterate(0, run.warmup);
    complete();
    if (threadIdx.x == 0) {
        run.clock[2 * blockIdx.x] = clock_ns();
    }
    __syncthreads();
    iterate(run.warmup, run.warmup + run.iters);
    complete();
    if (threadIdx.x == 0) {
        run.clock[2 * blockIdx.x + 1] = clock_ns();
    }
}

template <class Body> COMPARE_DEVICE void timed(const Run &run, Body body) {
    const auto iterate = [&](uint64_t first, uint64_t last) {
        for (uint64_t i = first; i < last; ++i) {
            body(i);
        }
    };
    timed_loops(run, iterate, [] { quiet_of(block); });
}

// The blocks of the grid meet; `word`, the one after the clocks, is 0 before the launch. A block
// that does not come is noticed by the host.
COMPARE_DEVICE void meet_grid(uint64_t *word, uint64_t &round) {
    ++round;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(reinterpret_cast<unsigned long long *>(word), 1ull);
        volatile uint64_t *const come = word;
        while (*come < round * gridDim.x) {
            pause();
        }
        __threadfence();
    }
    __syncthreads();
}

// The grid's groups share each message; the host sees to it that all parts are equal and multiples
// of 16 bytes.
template <class Scope> COMPARE_DEVICE void put_bw(Scope scope, const Run &run) {
    const uint64_t part = run.bytes / groups(scope), at = group(scope) * part;
    timed(run, [&](uint64_t i) { put_nbi(scope, run.dst + away(run, i) + at, run.src + shift(i) + at, part, run.pe); });
}

template <class Scope> COMPARE_DEVICE void get_bw(Scope scope, const Run &run) {
    const uint64_t part = run.bytes / groups(scope), at = group(scope) * part;
    timed(run, [&](uint64_t i) { get(scope, run.dst + at, run.src + away(run, i) + at, part, run.pe); });
}

template <class Scope> COMPARE_DEVICE void put_quiet(Scope scope, const Run &run) {
    timed(run, [&](uint64_t i) {
        put_nbi(scope, run.dst + away(run, i), run.src + shift(i), run.bytes, run.pe);
        quiet_of(scope);
    });
}

COMPARE_DEVICE void p_bw(const Run &run) {
    uint64_t *dst = reinterpret_cast<uint64_t *>(run.dst);
    const uint64_t elements = run.bytes / sizeof(uint64_t), threads = grid_threads();
    timed(run, [&](uint64_t i) {
        for (uint64_t e = grid_rank(); e < elements; e += threads) {
            p(dst + e * run.stride, value(run.base, i, e), run.pe);
        }
    });
}

COMPARE_DEVICE void p_quiet(const Run &run) {
    timed(run, [&](uint64_t i) {
        p(word_away(run, run.dst, i), value(run.base, i, 0), run.pe);
        quiet();
    });
}

// Each CTA puts a word to every other PE by the QP that it uses to that PE. When all have, CTA 0
// completes them by a quiet of its threads. The clocks hold the time of these waits alone.
COMPARE_DEVICE void quiet_used(const Run &run) {
    uint64_t *dst = reinterpret_cast<uint64_t *>(run.dst), *word = run.clock + 2ull * gridDim.x;
    const int me = my_pe(), n = n_pes();
    uint64_t round = 0, waited = 0;
    for (uint64_t i = 0; i < run.warmup + run.iters; ++i) {
        if (threadIdx.x == 0) {
            for (int distance = 1; distance < n; ++distance) {
                p(dst + blockIdx.x, value(run.base, i, blockIdx.x), (me + distance) % n);
            }
        }
        meet_grid(word, round);
        if (blockIdx.x == 0) {
            const uint64_t begin = clock_ns();
            quiet(block);
            waited += i < run.warmup ? 0 : clock_ns() - begin;
        }
        meet_grid(word, round);
    }
    if (threadIdx.x == 0) {
        run.clock[2 * blockIdx.x] = 1;
        run.clock[2 * blockIdx.x + 1] = 1 + waited;
    }
}

// Every thread sets a signal of its own.
COMPARE_DEVICE void signal_rate(const Run &run) {
    uint64_t *signal = run.signals + grid_rank();
    timed(run, [&](uint64_t i) { signal_set(signal, run.base + i + 1, run.pe); });
}

// Each CTA puts its part of a message, with a signal of its own.
COMPARE_DEVICE void put_signal_rate(const Run &run) {
    const uint64_t part = run.bytes / gridDim.x, at = blockIdx.x * part;
    timed(run, [&](uint64_t i) {
        put_signal_nbi(block, run.dst + away(run, i) + at, run.src + shift(i) + at, part, run.signals + blockIdx.x,
                       run.base + i + 1, run.pe);
    });
}

COMPARE_DEVICE void signal_ping_pong(const Run &run) {
    timed(run, [&](uint64_t i) {
        const uint64_t turn = run.base + i + 1;
        uint64_t *signal = signal_away(run, i);
        if (my_pe() == 0) {
            signal_set(signal, turn, run.pe);
        }
        const bool came = signal_wait(signal, turn);
        if (my_pe() != 0 && came) {
            signal_set(signal, turn, run.pe);
        }
    });
}

template <class Scope> COMPARE_DEVICE void put_signal_ping_pong(Scope scope, const Run &run) {
    timed(run, [&](uint64_t i) {
        const uint64_t turn = run.base + i + 1;
        uint64_t *signal = signal_away(run, i);
        const auto send = [&] {
            put_signal_nbi(scope, run.dst + away(run, i), run.src + shift(i), run.bytes, signal, turn, run.pe);
        };
        if (my_pe() == 0) {
            send();
        }
        if (leads(scope)) {
            signal_wait(signal, turn);
        }
        meet(scope);
        if (my_pe() != 0) {
            send();
        }
    });
}

// A word that was just written, as it is in memory: not from the L1 cache, where g may find what it
// has fetched before.
COMPARE_DEVICE uint64_t look(uint64_t *word, int pe) {
    const volatile uint64_t *there = ptr(word, pe);
    return there != nullptr ? *there : g(word, pe);
}

// Whether they order anything: each PE stores a word (barrier_all: at the next PE; sync_all: at
// home), meets the others, and looks at what the PE before it has stored. clock[0] gets how often
// it was wrong.
template <class Scope, class Meet> COMPARE_DEVICE void check_meeting(Scope scope, const Run &run, bool at_home, Meet meet_all) {
    uint64_t *words = reinterpret_cast<uint64_t *>(run.dst);
    const int me = my_pe(), n = n_pes(), next = (me + 1) % n, before = (me + n - 1) % n;
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < run.iters; ++i) {
        if (leads(scope)) {
            p(words + me, value(run.base, i, me), at_home ? me : next);
        }
        meet_all();
        if (leads(scope)) {
            wrong += look(words + before, at_home ? before : me) != value(run.base, i, before);
        }
        meet_all();
    }
    if (threadIdx.x == 0) {
        run.clock[0] = wrong;
    }
}

// Collectives; with none of them does a PE get far ahead, so broadcast has each PE as root in turn.
template <class Scope> COMPARE_DEVICE void alltoalls(Scope scope, const Run &run) {
    timed(run, [&](uint64_t i) { alltoall(scope, run.dst, run.src + shift(i), run.bytes); });
}
COMPARE_DEVICE void fcollects(const Run &run) {
    timed(run, [&](uint64_t i) { fcollect(block, run.dst, run.src + shift(i), run.bytes); });
}
COMPARE_DEVICE void broadcasts(const Run &run) {
    timed(run, [&](uint64_t i) {
        broadcast(block, run.dst, run.src + shift(i), run.bytes, static_cast<int>(i % static_cast<uint64_t>(n_pes())));
    });
}
COMPARE_DEVICE void sums(const Run &run) {
    timed(run, [&](uint64_t i) {
        sum(block, reinterpret_cast<uint64_t *>(run.dst), reinterpret_cast<const uint64_t *>(run.src + shift(i)),
            run.bytes / sizeof(uint64_t));
    });
}

// An all-to-all as a program does it, by puts: CTA b sends slice b of what is for each PE, and then
// waits for slice b from each. So no PE gets further ahead than one iteration, which overwrites
// data that no PE waits for any more.
COMPARE_DEVICE void exchanges(const Run &run) {
    const int me = my_pe(), n = n_pes();
    const uint64_t part = run.bytes / gridDim.x, at = blockIdx.x * part;
    uint64_t *const signals = run.signals + blockIdx.x;
    timed(run, [&](uint64_t i) {
        const uint64_t turn = run.base + i + 1;
        for (int distance = 1; distance <= n; ++distance) {
            const int pe = (me + distance) % n;
            put_signal_nbi(block, run.dst + me * run.bytes + at, run.src + shift(i) + pe * run.bytes + at, part,
                           signals + static_cast<uint64_t>(me) * gridDim.x, turn, pe);
        }
        if (threadIdx.x < static_cast<unsigned>(n)) {
            signal_wait(signals + static_cast<uint64_t>(threadIdx.x) * gridDim.x, turn);
        }
        __syncthreads();
    });
}

// The limits: what plain kernels reach over the same memory.

// The CTA's share of a copy by 16-byte accesses, eight of each thread in flight.
COMPARE_DEVICE void copy(char *to, const char *from, uint64_t bytes) {
    constexpr uint32_t kInFlight = 8;
    const uint64_t part = bytes / sizeof(uint4) / gridDim.x, step = static_cast<uint64_t>(blockDim.x) * kInFlight;
    uint4 *dst = reinterpret_cast<uint4 *>(to) + blockIdx.x * part;
    const uint4 *src = reinterpret_cast<const uint4 *>(from) + blockIdx.x * part;
    uint64_t at = threadIdx.x;
    for (; at + step - blockDim.x < part; at += step) {
        uint4 units[kInFlight];
        COMPARE_UNROLL
        for (uint32_t k = 0; k < kInFlight; ++k) {
            units[k] = src[at + k * blockDim.x];
        }
        COMPARE_UNROLL
        for (uint32_t k = 0; k < kInFlight; ++k) {
            dst[at + k * blockDim.x] = units[k];
        }
    }
    for (; at < part; at += blockDim.x) {
        dst[at] = src[at];
    }
}

COMPARE_DEVICE void link_store(const Run &run) {
    char *dst = ptr(run.dst, run.pe);
    timed(run, [&](uint64_t i) { copy(dst + away(run, i), run.src + shift(i), run.bytes); });
}

COMPARE_DEVICE void link_load(const Run &run) {
    const char *src = ptr(run.src, run.pe);
    timed(run, [&](uint64_t i) { copy(run.dst, src + away(run, i), run.bytes); });
}

COMPARE_DEVICE void link_words(const Run &run) {
    volatile uint64_t *dst = reinterpret_cast<uint64_t *>(ptr(run.dst, run.pe));
    const uint64_t elements = run.bytes / sizeof(uint64_t), threads = grid_threads();
    timed(run, [&](uint64_t i) {
        for (uint64_t e = grid_rank(); e < elements; e += threads) {
            dst[e * run.stride] = value(run.base, i, e);
        }
    });
}

// A word is loaded from here, stored there, and waited for.
COMPARE_DEVICE void word_fence(const Run &run) {
    char *dst = ptr(run.dst, run.pe);
    timed(run, [&](uint64_t i) {
        *word_away(run, dst, i) = *reinterpret_cast<const uint64_t *>(run.src + shift(i));
        __threadfence_system();
    });
}

// Waits until the flag holds at least `value`. A peer that does not come is noticed by the host,
// which ends the job.
COMPARE_DEVICE void await(volatile uint64_t *flag, uint64_t value) {
    while (*flag < value) {
        pause();
    }
}

COMPARE_DEVICE void flag_ping_pong(const Run &run) {
    timed(run, [&](uint64_t i) {
        const uint64_t turn = run.base + i + 1;
        volatile uint64_t *mine = signal_away(run, i), *theirs = ptr(signal_away(run, i), run.pe);
        if (my_pe() == 0) {
            *theirs = turn;
        }
        await(mine, turn);
        if (my_pe() != 0) {
            *theirs = turn;
        }
    });
}

// All PEs meet: thread k tells PE k and waits for it. `step` has room for a word of each PE.
COMPARE_DEVICE void flag_meeting(const Run &run, bool fence) {
    const int me = my_pe(), other = static_cast<int>(threadIdx.x);
    const bool takes_part = other < n_pes() && other != me;
    char *theirs = reinterpret_cast<char *>(takes_part ? ptr(run.signals, other) : run.signals);
    timed(run, [&](uint64_t i) {
        const uint64_t turn = run.base + i + 1;
        if (fence && threadIdx.x == 0) {
            __threadfence_system();
        }
        __syncwarp();
        if (takes_part) {
            *static_cast<volatile uint64_t *>(word_away(run, theirs, i) + me) = turn;
            await(signal_away(run, i) + other, turn);
        }
        __syncwarp();
    });
}

} // namespace compare

#ifndef COMPARE_NVSHMEM
#include "contexts.h"
#endif
#include "jacobi.h"
#include "moe.h"

#define COMPARE_ENTRY(declare, name, call)                                                                                     \
    declare(name, char *dst, char *src, uint64_t *signals, uint64_t *clock, uint64_t bytes, uint64_t stride, uint64_t step,    \
            uint64_t steps, uint64_t warmup, uint64_t iters, uint64_t base, int pe, const compare::Context *contexts) {        \
        using namespace compare;                                                                                               \
        const Run run{dst, src, signals, clock, bytes, stride, step, steps, warmup, iters, base, pe, contexts};                \
        call;                                                                                                                  \
    }
#define COMPARE_KERNEL(name, call) COMPARE_ENTRY(COMPARE_KERNEL_FUNCTION, name, call)
#define COMPARE_THREAD(name, call) COMPARE_ENTRY(COMPARE_THREAD_FUNCTION, name, call)
#define COMPARE_APPLICATION(name, call) COMPARE_ENTRY(COMPARE_APPLICATION_FUNCTION, name, call)

COMPARE_KERNEL(put_bw_thread, put_bw(thread, run))
COMPARE_KERNEL(put_bw_block, put_bw(block, run))
COMPARE_KERNEL(get_bw_block, get_bw(block, run))
COMPARE_KERNEL(put_quiet_thread, put_quiet(thread, run))
COMPARE_KERNEL(put_quiet_warp, put_quiet(warp, run))
COMPARE_KERNEL(get_thread, get_bw(thread, run))
COMPARE_KERNEL(get_warp, get_bw(warp, run))
COMPARE_KERNEL(p_bw, compare::p_bw(run))
COMPARE_KERNEL(p_quiet, compare::p_quiet(run))
COMPARE_KERNEL(quiet_used, compare::quiet_used(run))
COMPARE_KERNEL(signal_rate, compare::signal_rate(run))
COMPARE_APPLICATION(put_signal_rate, compare::put_signal_rate(run))
COMPARE_KERNEL(signal_ping_pong, compare::signal_ping_pong(run))
COMPARE_KERNEL(put_signal_ping_pong_thread, put_signal_ping_pong(thread, run))
COMPARE_KERNEL(barrier_all_thread, timed(run, [&](uint64_t) { barrier_all(thread); }))
COMPARE_KERNEL(barrier_all_block, timed(run, [&](uint64_t) { barrier_all(block); }))
COMPARE_KERNEL(sync_all_thread, timed(run, [&](uint64_t) { sync_all(thread); }))
COMPARE_KERNEL(sync_all_block, timed(run, [&](uint64_t) { sync_all(block); }))
COMPARE_KERNEL(check_barrier_all_thread, check_meeting(thread, run, false, [] { barrier_all(thread); }))
COMPARE_KERNEL(check_barrier_all_block, check_meeting(block, run, false, [] { barrier_all(block); }))
COMPARE_KERNEL(check_sync_all_thread, check_meeting(thread, run, true, [] { sync_all(thread); }))
COMPARE_KERNEL(check_sync_all_block, check_meeting(block, run, true, [] { sync_all(block); }))
COMPARE_KERNEL(alltoall_thread, alltoalls(thread, run))
COMPARE_KERNEL(alltoall_block, alltoalls(block, run))
COMPARE_KERNEL(fcollect_block, fcollects(run))
COMPARE_KERNEL(broadcast_block, broadcasts(run))
COMPARE_KERNEL(sum_block, sums(run))
COMPARE_APPLICATION(exchange_block, exchanges(run))
COMPARE_APPLICATION(jacobi_p, jacobi<true>(run))
COMPARE_APPLICATION(jacobi_put, jacobi<false>(run))
COMPARE_APPLICATION(moe, compare::moe(run))
COMPARE_KERNEL(link_store, compare::link_store(run))
COMPARE_KERNEL(link_load, compare::link_load(run))
COMPARE_KERNEL(link_words, compare::link_words(run))
COMPARE_KERNEL(word_fence, compare::word_fence(run))
COMPARE_KERNEL(flag_ping_pong, compare::flag_ping_pong(run))
COMPARE_KERNEL(flag_sync, flag_meeting(run, false))
COMPARE_KERNEL(flag_barrier, flag_meeting(run, true))
#ifndef COMPARE_NVSHMEM
COMPARE_THREAD(context_put_thread, compare::context_put(run, 1))
COMPARE_THREAD(context_put_batched_8, compare::context_put(run, 8))
COMPARE_THREAD(batch_put, compare::batch_put(run, 1))
COMPARE_THREAD(batch_put_8, compare::batch_put(run, 8))
COMPARE_THREAD(context_p_quiet, compare::context_p_quiet(run))
COMPARE_KERNEL(context_p_warp, compare::context_p_warp(run))
COMPARE_KERNEL(null_card, compare::null_card(run))
COMPARE_APPLICATION(context_put_signal_block, compare::context_put_signal(run))
#endif
#undef COMPARE_APPLICATION
#undef COMPARE_THREAD
#undef COMPARE_KERNEL
#undef COMPARE_ENTRY
