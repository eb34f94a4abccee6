// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// One collective of all PEs after the other, by one group of threads of each, or by a grid. `times`
// gets the nanoseconds of each. Each collective has a kernel of its own, as programs have: in one
// kernel with the others it has fewer registers, and takes longer.

#include "common.h"

namespace perftest {

// Mirrored in src/collectives/point.rs.
enum class Kind : uint32_t { barrier, sync, broadcast, collect, fcollect, alltoall, alltoalls, reduce, reducescatter };

// What each PE gives is `bytes` long; to alltoall and alltoalls it gives as much for each PE.
// alltoalls leaves out every other word on both sides. Reductions add floats.
template <Kind kKind, class Scope> OXSHMEM_DEVICE int call(Scope scope, char *dst, const char *src, uint64_t bytes) {
    if constexpr (kKind == Kind::barrier) {
        return barrier(scope, TEAM_WORLD);
    } else if constexpr (kKind == Kind::sync) {
        return team_sync(scope, TEAM_WORLD);
    } else if constexpr (kKind == Kind::broadcast) {
        return broadcastmem(scope, TEAM_WORLD, dst, src, bytes, 0);
    } else if constexpr (kKind == Kind::collect) {
        return collectmem(scope, TEAM_WORLD, dst, src, bytes);
    } else if constexpr (kKind == Kind::fcollect) {
        return fcollectmem(scope, TEAM_WORLD, dst, src, bytes);
    } else if constexpr (kKind == Kind::alltoall) {
        return alltoallmem(scope, TEAM_WORLD, dst, src, bytes);
    } else if constexpr (kKind == Kind::alltoalls) {
        return alltoalls(scope, TEAM_WORLD, reinterpret_cast<uint64_t *>(dst), reinterpret_cast<const uint64_t *>(src), 2, 2,
                         bytes / sizeof(uint64_t));
    } else {
        float *const to = reinterpret_cast<float *>(dst);
        const float *const from = reinterpret_cast<const float *>(src);
        const uint64_t floats = bytes / sizeof(float);
        if constexpr (kKind == Kind::reduce) {
            return reduce(scope, TEAM_WORLD, op_sum, to, from, floats);
        } else {
            return reducescatter(scope, TEAM_WORLD, op_sum, to, from, floats);
        }
    }
}

template <Kind kKind, class Scope>
OXSHMEM_DEVICE void collective(Scope scope, char *dst, const char *src, uint64_t bytes, uint64_t first, uint64_t iters,
                               uint64_t *times) {
    Scope::sync();
    for (uint64_t i = 0; i < iters; ++i) {
        const uint64_t from = port::clock_ns();
        if (call<kKind>(scope, dst, src + shift(first + i), bytes) != 0) {
            return; // the error is recorded
        }
        if (Scope::rank() == 0) {
            times[i] = port::clock_ns() - from;
        }
    }
}

// Kernels have copies of what they call, so these two have no need for the rest.
template <class Scope> OXSHMEM_DEVICE bool meets(Scope scope, Kind kind) {
    return (kind == Kind::barrier ? barrier(scope, TEAM_WORLD) : team_sync(scope, TEAM_WORLD)) == 0;
}

// Whether barrier and sync order anything: each PE stores a word (barrier: at the next PE; sync: at
// home), meets the others, and looks at what the PE before it has stored. `wrong` gets how often
// that was not there.
template <class Scope> OXSHMEM_DEVICE void meetings(Scope scope, Kind kind, uint64_t *words, uint64_t iters, uint64_t *wrong) {
    const int me = my_pe(), n = n_pes(), next = (me + 1) % n, before = (me + n - 1) % n;
    uint64_t count = 0;
    for (uint64_t i = 0; i < iters; ++i) {
        if (Scope::rank() == 0) {
            p(words + me, word(0, i, static_cast<uint64_t>(me)), kind == Kind::barrier ? next : me);
        }
        Scope::sync();
        if (!meets(scope, kind)) {
            return;
        }
        if (Scope::rank() == 0) {
            count += g(words + before, kind == Kind::barrier ? me : before) != word(0, i, static_cast<uint64_t>(before));
        }
        Scope::sync();
        if (!meets(scope, kind)) {
            return;
        }
    }
    if (Scope::rank() == 0) {
        *wrong = count;
    }
}

} // namespace perftest

#define PERFTEST_KIND(scope, KERNEL, kind)                                                                                     \
    KERNEL(collective_##kind##_##scope, char *dst, const char *src, uint64_t bytes, uint64_t first, uint64_t iters,            \
           uint64_t *times) {                                                                                                  \
        perftest::collective<perftest::Kind::kind>(oxshmem::scope, dst, src, bytes, first, iters, times);                      \
    }
#define PERFTEST_COLLECTIVE(scope, KERNEL)                                                                                     \
    PERFTEST_KIND(scope, KERNEL, barrier)                                                                                      \
    PERFTEST_KIND(scope, KERNEL, sync)                                                                                         \
    PERFTEST_KIND(scope, KERNEL, broadcast)                                                                                    \
    PERFTEST_KIND(scope, KERNEL, collect)                                                                                      \
    PERFTEST_KIND(scope, KERNEL, fcollect)                                                                                     \
    PERFTEST_KIND(scope, KERNEL, alltoall)                                                                                     \
    PERFTEST_KIND(scope, KERNEL, alltoalls)                                                                                    \
    PERFTEST_KIND(scope, KERNEL, reduce)                                                                                       \
    PERFTEST_KIND(scope, KERNEL, reducescatter)                                                                                \
    KERNEL(meetings_##scope, uint32_t kind, uint64_t *words, uint64_t iters, uint64_t *wrong) {                                \
        perftest::meetings(oxshmem::scope, static_cast<perftest::Kind>(kind), words, iters, wrong);                            \
    }
// The bound of blocks of a grid is GRID_THREADS of src/collectives/options.rs.
#define PERFTEST_GRID_KERNEL(...) OXSHMEM_BOUNDED_KERNEL(512, __VA_ARGS__)
PERFTEST_COLLECTIVE(thread, OXSHMEM_KERNEL)
PERFTEST_COLLECTIVE(warp, OXSHMEM_KERNEL)
PERFTEST_COLLECTIVE(block, OXSHMEM_KERNEL)
PERFTEST_COLLECTIVE(grid, PERFTEST_GRID_KERNEL)
#undef PERFTEST_GRID_KERNEL
#undef PERFTEST_COLLECTIVE
#undef PERFTEST_KIND
