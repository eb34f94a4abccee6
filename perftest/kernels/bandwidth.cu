// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// put, get, p and g as fast as they go: every iteration moves `bytes` bytes, all iterations are in
// flight together, and one quiet ends them. `clock` gets begin and end of each block. Iterations
// are not ordered, so what is checked is that of a later launch of one iteration.

#include "common.h"

namespace perftest {

template <class Scope>
OXSHMEM_DEVICE void put_bw(Scope scope, char *dst, const char *src, uint64_t bytes, uint64_t first, uint64_t iters, int pe,
                           uint64_t *clock) {
    const Part part = my_part<Scope>(bytes);
    begin(clock);
    if (part.count != 0) {
        for (uint64_t i = first; i < first + iters; ++i) {
            putmem_nbi(scope, dst + part.first, src + shift(i) + part.first, part.count, pe);
        }
    }
    end(clock);
}

// The source is a walk of `steps` steps, see common.h.
template <class Scope>
OXSHMEM_DEVICE void get_bw(Scope scope, char *dst, const char *src, uint64_t step, uint64_t steps, uint64_t bytes,
                           uint64_t first, uint64_t iters, int pe, uint64_t *clock) {
    const Part part = my_part<Scope>(bytes);
    begin(clock);
    if (part.count != 0) {
        for (uint64_t i = first; i < first + iters; ++i) {
            getmem_nbi(scope, dst + part.first, src + away(i, step, steps) + part.first, part.count, pe);
        }
    }
    end(clock);
}

} // namespace perftest

#define PERFTEST_COPY(scope)                                                                                                   \
    OXSHMEM_KERNEL(put_bw_##scope, char *dst, const char *src, uint64_t bytes, uint64_t first, uint64_t iters, int pe,         \
                   uint64_t *clock) {                                                                                          \
        perftest::put_bw(oxshmem::scope, dst, src, bytes, first, iters, pe, clock);                                            \
    }                                                                                                                          \
    OXSHMEM_KERNEL(get_bw_##scope, char *dst, const char *src, uint64_t step, uint64_t steps, uint64_t bytes, uint64_t first,  \
                   uint64_t iters, int pe, uint64_t *clock) {                                                                  \
        perftest::get_bw(oxshmem::scope, dst, src, step, steps, bytes, first, iters, pe, clock);                               \
    }
PERFTEST_COPY(thread)
PERFTEST_COPY(warp)
PERFTEST_COPY(block)
#undef PERFTEST_COPY

// Element e is always put by the same thread. With `stride` 1 the lanes of a warp put to adjacent
// words.
OXSHMEM_KERNEL(p_bw, uint64_t *dst, uint64_t elements, uint64_t stride, uint64_t seed, uint64_t first, uint64_t iters, int pe,
               uint64_t *clock) {
    const uint64_t threads = perftest::grid_threads();
    perftest::begin(clock);
    for (uint64_t i = first; i < first + iters; ++i) {
        for (uint64_t e = perftest::grid_rank(); e < elements; e += threads) {
            oxshmem::p(dst + e * stride, perftest::word(seed, i, e), pe);
        }
    }
    perftest::end(clock);
}

OXSHMEM_KERNEL(g_bw, uint64_t *dst, const uint64_t *src, uint64_t elements, uint64_t first, uint64_t iters, int pe,
               uint64_t *clock) {
    const uint64_t threads = perftest::grid_threads();
    perftest::begin(clock);
    for (uint64_t i = first; i < first + iters; ++i) {
        const uint64_t *from = src + perftest::shift(i) / sizeof(uint64_t);
        for (uint64_t e = perftest::grid_rank(); e < elements; e += threads) {
            dst[e] = oxshmem::g(from + e, pe);
        }
    }
    perftest::end(clock);
}
