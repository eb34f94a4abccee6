// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Like unbounded.cu, for collectives over teams.
#include <oxshmem/oxshmem.h>

using namespace oxshmem;

#define KERNEL(name, ...) extern "C" __global__ void name(__VA_ARGS__)
#define FOR_EACH_SCOPE(X, ...) X(thread, __VA_ARGS__) X(warp, __VA_ARGS__) X(block, __VA_ARGS__)

#define GATHERING(scope, ...)                                                                                                  \
    KERNEL(broadcast_##scope, int *out, team_t team, void *dst, const void *src, size_t bytes, int root) {                     \
        *out = broadcastmem(scope, team, dst, src, bytes, root);                                                               \
    }                                                                                                                          \
    KERNEL(collect_##scope, int *out, team_t team, void *dst, const void *src, size_t bytes) {                                 \
        *out = collectmem(scope, team, dst, src, bytes);                                                                       \
    }                                                                                                                          \
    KERNEL(fcollect_##scope, int *out, team_t team, void *dst, const void *src, size_t bytes) {                                \
        *out = fcollectmem(scope, team, dst, src, bytes);                                                                      \
    }                                                                                                                          \
    KERNEL(alltoall_##scope, int *out, team_t team, void *dst, const void *src, size_t bytes) {                                \
        *out = alltoallmem(scope, team, dst, src, bytes);                                                                      \
    }                                                                                                                          \
    KERNEL(alltoalls_##scope, int *out, team_t team, port::vec16 *dst, const port::vec16 *src, ptrdiff_t to, ptrdiff_t from,   \
           size_t n) {                                                                                                         \
        *out = alltoalls(scope, team, dst, src, to, from, n);                                                                  \
    }
FOR_EACH_SCOPE(GATHERING)
GATHERING(grid)

#define REDUCTION(scope, name, T, op)                                                                                          \
    KERNEL(name##_##op##_reduce_##scope, int *out, team_t team, T *dst, const T *src, size_t n) {                              \
        *out = reduce(scope, team, op_##op, dst, src, n);                                                                      \
    }
#define REDUCESCATTER(scope, name, T, op)                                                                                      \
    KERNEL(name##_##op##_reducescatter_##scope, int *out, team_t team, T *dst, const T *src, size_t n) {                       \
        *out = reducescatter(scope, team, op_##op, dst, src, n);                                                               \
    }
FOR_EACH_SCOPE(REDUCTION, int8, int8_t, prod)
FOR_EACH_SCOPE(REDUCTION, uint64, uint64_t, prod)
FOR_EACH_SCOPE(REDUCTION, half, half, sum)
FOR_EACH_SCOPE(REDUCTION, bfloat16, bfloat16, max)
FOR_EACH_SCOPE(REDUCTION, double, double, min)
FOR_EACH_SCOPE(REDUCTION, complexd, complex<double>, prod)
FOR_EACH_SCOPE(REDUCESCATTER, float, float, sum)
REDUCTION(grid, float, float, sum)
REDUCESCATTER(grid, half, half, sum)

KERNEL(barrier_grid, int *out, team_t team) {
    *out = barrier(grid, team);
}
KERNEL(quiet_grid) {
    quiet(grid);
}
