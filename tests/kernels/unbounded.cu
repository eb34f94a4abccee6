// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Kernels without launch bounds, as most programs have them: one for each function of the device
// API, each scope, and types of each kind. tests/usage.rs looks at how many registers the compiler
// gives them: with more than 64, blocks of 1024 threads cannot be launched. Nothing runs them.
#include <oxshmem/oxshmem.h>

using namespace oxshmem;

#define KERNEL(name, ...) extern "C" __global__ void name(__VA_ARGS__)
#define FOR_EACH_SCOPE(X) X(thread) X(warp) X(block)

#define BULK(scope)                                                                                                            \
    KERNEL(put_##scope, void *dst, const void *src, size_t bytes, int pe) {                                                    \
        putmem(scope, dst, src, bytes, pe);                                                                                    \
    }                                                                                                                          \
    KERNEL(put_nbi_##scope, void *dst, const void *src, size_t bytes, int pe) {                                                \
        putmem_nbi(scope, dst, src, bytes, pe);                                                                                \
    }                                                                                                                          \
    KERNEL(get_##scope, void *dst, const void *src, size_t bytes, int pe) {                                                    \
        getmem(scope, dst, src, bytes, pe);                                                                                    \
    }                                                                                                                          \
    KERNEL(get_nbi_##scope, void *dst, const void *src, size_t bytes, int pe) {                                                \
        getmem_nbi(scope, dst, src, bytes, pe);                                                                                \
    }                                                                                                                          \
    KERNEL(put_signal_##scope, void *dst, const void *src, size_t bytes, uint64_t *signal, int operation, int pe) {            \
        putmem_signal(scope, dst, src, bytes, signal, 1, static_cast<SignalOp>(operation), pe);                                \
    }                                                                                                                          \
    KERNEL(put_signal_nbi_##scope, void *dst, const void *src, size_t bytes, uint64_t *signal, int operation, int pe) {        \
        putmem_signal_nbi(scope, dst, src, bytes, signal, 1, static_cast<SignalOp>(operation), pe);                            \
    }
FOR_EACH_SCOPE(BULK)

#define STRIDED_TYPE(scope, name, T)                                                                                           \
    KERNEL(iput_##name##_##scope, T *dst, const T *src, ptrdiff_t to, ptrdiff_t from, size_t n, int pe) {                      \
        iput(scope, dst, src, to, from, n, pe);                                                                                \
    }                                                                                                                          \
    KERNEL(iget_##name##_##scope, T *dst, const T *src, ptrdiff_t to, ptrdiff_t from, size_t n, int pe) {                      \
        iget(scope, dst, src, to, from, n, pe);                                                                                \
    }
#define STRIDED(scope)                                                                                                         \
    STRIDED_TYPE(scope, u8, uint8_t) STRIDED_TYPE(scope, u64, uint64_t) STRIDED_TYPE(scope, vec16, port::vec16)
FOR_EACH_SCOPE(STRIDED)

#define MEETING(scope)                                                                                                         \
    KERNEL(quiet_##scope) {                                                                                                    \
        quiet(scope);                                                                                                          \
    }                                                                                                                          \
    KERNEL(barrier_all_##scope) {                                                                                              \
        barrier_all(scope);                                                                                                    \
    }                                                                                                                          \
    KERNEL(sync_all_##scope) {                                                                                                 \
        sync_all(scope);                                                                                                       \
    }                                                                                                                          \
    KERNEL(barrier_##scope, int *out, team_t team) {                                                                           \
        *out = barrier(scope, team);                                                                                           \
    }                                                                                                                          \
    KERNEL(team_sync_##scope, int *out, team_t team) {                                                                         \
        *out = team_sync(scope, team);                                                                                         \
    }
FOR_EACH_SCOPE(MEETING)

#define SCALAR(name, T)                                                                                                        \
    KERNEL(p_##name, T *dst, T value, int pe) {                                                                                \
        p(dst, value, pe);                                                                                                     \
    }                                                                                                                          \
    KERNEL(g_##name, T *out, const T *src, int pe) {                                                                           \
        *out = g(src, pe);                                                                                                     \
    }
SCALAR(u8, uint8_t)
SCALAR(u16, uint16_t)
SCALAR(u32, uint32_t)
SCALAR(u64, uint64_t)
SCALAR(float, float)
SCALAR(double, double)

#define ATOMIC_PLAIN(name, T)                                                                                                  \
    KERNEL(atomic_fetch_##name, T *out, const T *source, int pe) {                                                             \
        *out = atomic_fetch(source, pe);                                                                                       \
    }                                                                                                                          \
    KERNEL(atomic_set_##name, T *target, T value, int pe) {                                                                    \
        atomic_set(target, value, pe);                                                                                         \
    }                                                                                                                          \
    KERNEL(atomic_swap_##name, T *out, T *target, T value, int pe) {                                                           \
        *out = atomic_swap(target, value, pe);                                                                                 \
    }
#define ATOMIC(name, T)                                                                                                        \
    ATOMIC_PLAIN(name, T)                                                                                                      \
    KERNEL(atomic_compare_swap_##name, T *out, T *target, T expected, T desired, int pe) {                                     \
        *out = atomic_compare_swap(target, expected, desired, pe);                                                             \
    }                                                                                                                          \
    KERNEL(atomic_add_##name, T *target, T value, int pe) {                                                                    \
        atomic_add(target, value, pe);                                                                                         \
    }                                                                                                                          \
    KERNEL(atomic_fetch_add_##name, T *out, T *target, T value, int pe) {                                                      \
        *out = atomic_fetch_add(target, value, pe);                                                                            \
    }                                                                                                                          \
    KERNEL(atomic_and_##name, T *target, T value, int pe) {                                                                    \
        atomic_and(target, value, pe);                                                                                         \
    }                                                                                                                          \
    KERNEL(atomic_fetch_and_##name, T *out, T *target, T value, int pe) {                                                      \
        *out = atomic_fetch_and(target, value, pe);                                                                            \
    }                                                                                                                          \
    KERNEL(atomic_fetch_or_##name, T *out, T *target, T value, int pe) {                                                       \
        *out = atomic_fetch_or(target, value, pe);                                                                             \
    }                                                                                                                          \
    KERNEL(atomic_xor_##name, T *target, T value, int pe) {                                                                    \
        atomic_xor(target, value, pe);                                                                                         \
    }                                                                                                                          \
    KERNEL(atomic_fetch_xor_##name, T *out, T *target, T value, int pe) {                                                      \
        *out = atomic_fetch_xor(target, value, pe);                                                                            \
    }
ATOMIC(u32, uint32_t)
ATOMIC(u64, uint64_t)
ATOMIC_PLAIN(double, double)

KERNEL(fence_kernel) {
    fence();
}
KERNEL(signal_op_kernel, uint64_t *signal, uint64_t value, int operation, int pe) {
    signal_op(signal, value, static_cast<SignalOp>(operation), pe);
}
KERNEL(signal_fetch_kernel, uint64_t *out, const uint64_t *signal) {
    *out = signal_fetch(signal);
}
KERNEL(signal_wait_until_kernel, uint64_t *out, const uint64_t *signal, int comparison, uint64_t value) {
    *out = signal_wait_until(signal, static_cast<Compare>(comparison), value);
}

#define WAIT(name, T)                                                                                                          \
    KERNEL(wait_until_##name, T *variable, int comparison, T value) {                                                          \
        wait_until(variable, static_cast<Compare>(comparison), value);                                                         \
    }                                                                                                                          \
    KERNEL(wait_until_all_##name, T *variables, size_t n, const int *status, int comparison, T value) {                        \
        wait_until_all(variables, n, status, static_cast<Compare>(comparison), value);                                         \
    }                                                                                                                          \
    KERNEL(wait_until_any_##name, size_t *out, T *variables, size_t n, const int *status, int comparison, T value) {           \
        *out = wait_until_any(variables, n, status, static_cast<Compare>(comparison), value);                                  \
    }                                                                                                                          \
    KERNEL(wait_until_some_##name, size_t *out, T *variables, size_t n, size_t *indices, const int *status, int comparison,    \
           T value) {                                                                                                          \
        *out = wait_until_some(variables, n, indices, status, static_cast<Compare>(comparison), value);                        \
    }                                                                                                                          \
    KERNEL(wait_until_all_vector_##name, T *variables, size_t n, const int *status, int comparison, const T *values) {         \
        wait_until_all_vector(variables, n, status, static_cast<Compare>(comparison), values);                                 \
    }                                                                                                                          \
    KERNEL(wait_until_any_vector_##name, size_t *out, T *variables, size_t n, const int *status, int comparison,               \
           const T *values) {                                                                                                  \
        *out = wait_until_any_vector(variables, n, status, static_cast<Compare>(comparison), values);                          \
    }                                                                                                                          \
    KERNEL(wait_until_some_vector_##name, size_t *out, T *variables, size_t n, size_t *indices, const int *status,             \
           int comparison, const T *values) {                                                                                  \
        *out = wait_until_some_vector(variables, n, indices, status, static_cast<Compare>(comparison), values);                \
    }                                                                                                                          \
    KERNEL(test_##name, size_t *out, T *variables, size_t n, size_t *indices, const int *status, int comparison, T value,      \
           const T *values) {                                                                                                  \
        const Compare compare = static_cast<Compare>(comparison);                                                              \
        out[0] = static_cast<size_t>(test(variables, compare, value));                                                         \
        out[1] = static_cast<size_t>(test_all(variables, n, status, compare, value));                                          \
        out[2] = test_any(variables, n, status, compare, value);                                                               \
        out[3] = test_some(variables, n, indices, status, compare, value);                                                     \
        out[4] = static_cast<size_t>(test_all_vector(variables, n, status, compare, values));                                  \
        out[5] = test_any_vector(variables, n, status, compare, values);                                                       \
        out[6] = test_some_vector(variables, n, indices, status, compare, values);                                             \
    }
WAIT(i16, int16_t)
WAIT(u64, uint64_t)

KERNEL(team_queries, int *out, team_t team, team_t other, int pe) {
    out[0] = team_my_pe(team);
    out[1] = team_n_pes(team);
    out[2] = team_translate_pe(team, pe, other);
}

// What a program does between its own loads and stores, with 16 values of its own that stay where
// they are.
KERNEL(busy, uint32_t *dst, const uint32_t *src, size_t bytes, uint64_t *word, uint64_t *signal, int pe) {
    constexpr int kValues = 16;
    uint32_t values[kValues];
    for (int i = 0; i < kValues; ++i) {
        values[i] = src[threadIdx.x * kValues + i];
    }
    putmem(block, dst, src, bytes, pe);
    p(word, static_cast<uint64_t>(bytes), pe);
    signal_op(signal, 1, SIGNAL_ADD, pe);
    signal_wait_until(signal, CMP_GE, 1);
    quiet(block);
    barrier_all(block);
    for (int i = 0; i < kValues; ++i) {
        dst[threadIdx.x * kValues + i] = values[i];
    }
}
