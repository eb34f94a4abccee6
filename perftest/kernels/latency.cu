// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// One operation after the other by one block, each complete before the next. `times` gets the
// nanoseconds of each iteration.

#include "common.h"

namespace perftest {

template <class Scope>
OXSHMEM_DEVICE void put_latency(Scope scope, char *dst, const char *src, uint64_t bytes, uint64_t first, uint64_t iters, int pe,
                                uint64_t *times) {
    Scope::sync();
    for (uint64_t i = 0; i < iters; ++i) {
        const uint64_t from = port::clock_ns();
        putmem_nbi(scope, dst, src + shift(first + i), bytes, pe);
        quiet(scope);
        if (Scope::rank() == 0) {
            times[i] = port::clock_ns() - from;
        }
    }
}

} // namespace perftest

#define PERFTEST_PUT_LATENCY(scope)                                                                                            \
    OXSHMEM_KERNEL(put_latency_##scope, char *dst, const char *src, uint64_t bytes, uint64_t first, uint64_t iters, int pe,    \
                   uint64_t *times) {                                                                                          \
        perftest::put_latency(oxshmem::scope, dst, src, bytes, first, iters, pe, times);                                       \
    }
PERFTEST_PUT_LATENCY(thread)
PERFTEST_PUT_LATENCY(warp)
PERFTEST_PUT_LATENCY(block)
#undef PERFTEST_PUT_LATENCY

// A round: the block's threads put an array word by word, then one quiet. Before each of them they
// stay silent for `pause` nanoseconds.
OXSHMEM_KERNEL(p_latency, uint64_t *dst, uint64_t elements, uint64_t seed, uint64_t first, uint64_t iters, uint64_t pause,
               int pe, uint64_t *times) {
    const uint64_t threads = perftest::grid_threads();
    for (uint64_t i = 0; i < iters; ++i) {
        for (const uint64_t start = oxshmem::port::clock_ns(); oxshmem::port::clock_ns() - start < pause;) {
            oxshmem::port::pause();
        }
        oxshmem::port::sync_block();
        const uint64_t from = oxshmem::port::clock_ns();
        for (uint64_t e = perftest::grid_rank(); e < elements; e += threads) {
            oxshmem::p(dst + e, perftest::word(seed, first + i, e), pe);
        }
        oxshmem::quiet(oxshmem::block);
        if (oxshmem::port::thread_rank() == 0) {
            times[i] = oxshmem::port::clock_ns() - from;
        }
    }
}

// A round: the block's threads fetch an array word by word.
OXSHMEM_KERNEL(g_latency, uint64_t *dst, const uint64_t *src, uint64_t elements, uint64_t first, uint64_t iters, int pe,
               uint64_t *times) {
    const uint64_t threads = perftest::grid_threads();
    for (uint64_t i = 0; i < iters; ++i) {
        oxshmem::port::sync_block();
        const uint64_t start = oxshmem::port::clock_ns();
        const uint64_t *from = src + perftest::shift(first + i) / sizeof(uint64_t);
        for (uint64_t e = perftest::grid_rank(); e < elements; e += threads) {
            dst[e] = oxshmem::g(from + e, pe);
        }
        oxshmem::port::sync_block();
        if (oxshmem::port::thread_rank() == 0) {
            times[i] = oxshmem::port::clock_ns() - start;
        }
    }
}
