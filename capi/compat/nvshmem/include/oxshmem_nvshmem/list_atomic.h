// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Names of atomics and of point-to-point synchronisation.

#define OXSHMEM_NV_HOST_ATOMIC(T, op, operand, compare)                                                                        \
    oxshmem_nv::from_word<T>(oxshmem_nv_atomic(__func__, const_cast<T *>(target), op, sizeof(T),                               \
                                               oxshmem_nv::to_word<T>(operand), oxshmem_nv::to_word<T>(compare), pe))

// Fetch, set and swap.
#define OXSHMEM_NV_EXTENDED(name, T)                                                                                           \
    OXSHMEM_NV_BOTH(T, nvshmem_##name##_atomic_fetch, (const T *target, int pe), return oxshmem::atomic_fetch(target, pe),     \
                    return OXSHMEM_NV_HOST_ATOMIC(T, 0, 0, 0))                                                                 \
    OXSHMEM_NV_BOTH(void, nvshmem_##name##_atomic_set, (T * target, T value, int pe), oxshmem::atomic_set(target, value, pe),  \
                    OXSHMEM_NV_HOST_ATOMIC(T, 1, value, 0))                                                                    \
    OXSHMEM_NV_BOTH(T, nvshmem_##name##_atomic_swap, (T * target, T value, int pe),                                            \
                    return oxshmem::atomic_swap(target, value, pe), return OXSHMEM_NV_HOST_ATOMIC(T, 1, value, 0))
OXSHMEM_FOR_EACH_FLOATING_ATOMIC_TYPE(OXSHMEM_NV_EXTENDED)
OXSHMEM_FOR_EACH_STANDARD_ATOMIC_TYPE(OXSHMEM_NV_EXTENDED)
#undef OXSHMEM_NV_EXTENDED

// Additions of floating-point numbers: by compare and swap, as no card adds them.
#define OXSHMEM_NV_FLOATING(name, T)                                                                                           \
    OXSHMEM_NV_BOTH(T, nvshmemx_##name##_atomic_fetch_add, (T * target, T value, int pe),                                      \
                    return oxshmem_nv::fetch_add_floating(S{}, target, value, pe),                                             \
                    return oxshmem_nv::host_fetch_add_floating(__func__, target, value, pe))                                   \
    OXSHMEM_NV_BOTH(void, nvshmemx_##name##_atomic_add, (T * target, T value, int pe),                                         \
                    oxshmem_nv::fetch_add_floating(S{}, target, value, pe),                                                    \
                    oxshmem_nv::host_fetch_add_floating(__func__, target, value, pe))
OXSHMEM_FOR_EACH_FLOATING_ATOMIC_TYPE(OXSHMEM_NV_FLOATING)
#undef OXSHMEM_NV_FLOATING

// Those of binary16 numbers.
#define OXSHMEM_NV_HOST_HALF(op, bits)                                                                                         \
    oxshmem_nv::from_word<OXSHMEM_NV_HALF>(oxshmem_nv_half_atomic(__func__, target, op, static_cast<uint16_t>(bits), pe))
OXSHMEM_NV_BOTH(OXSHMEM_NV_HALF, nvshmem_half_atomic_fetch, (const OXSHMEM_NV_HALF *target, int pe),
                return oxshmem_nv::half_fetch(target, pe), return OXSHMEM_NV_HOST_HALF(0, 0))
OXSHMEM_NV_BOTH(void, nvshmem_half_atomic_set, (OXSHMEM_NV_HALF * target, OXSHMEM_NV_HALF value, int pe),
                oxshmem_nv::half_swap(target, value, pe), OXSHMEM_NV_HOST_HALF(1, oxshmem_nv::to_word(value)))
OXSHMEM_NV_BOTH(OXSHMEM_NV_HALF, nvshmem_half_atomic_swap, (OXSHMEM_NV_HALF * target, OXSHMEM_NV_HALF value, int pe),
                return oxshmem_nv::half_swap(target, value, pe), return OXSHMEM_NV_HOST_HALF(1, oxshmem_nv::to_word(value)))
OXSHMEM_NV_BOTH(OXSHMEM_NV_HALF, nvshmemx_half_atomic_fetch_add, (OXSHMEM_NV_HALF * target, OXSHMEM_NV_HALF value, int pe),
                return oxshmem_nv::half_fetch_add(target, value, pe),
                return OXSHMEM_NV_HOST_HALF(3, oxshmem_nv::to_word(value)))
OXSHMEM_NV_BOTH(void, nvshmemx_half_atomic_add, (OXSHMEM_NV_HALF * target, OXSHMEM_NV_HALF value, int pe),
                oxshmem_nv::half_fetch_add(target, value, pe), OXSHMEM_NV_HOST_HALF(3, oxshmem_nv::to_word(value)))
#undef OXSHMEM_NV_HOST_HALF

// A name with and one without a result; `CALL` is the template's name, `op` an oxshmem_atomic_op.
#define OXSHMEM_NV_PAIR(name, T, CALL, op)                                                                                     \
    OXSHMEM_NV_BOTH(void, nvshmem_##name##_atomic_##CALL, (T * target, T value, int pe),                                       \
                    oxshmem::atomic_##CALL(target, value, pe), OXSHMEM_NV_HOST_ATOMIC(T, op, value, 0))                        \
    OXSHMEM_NV_BOTH(T, nvshmem_##name##_atomic_fetch_##CALL, (T * target, T value, int pe),                                    \
                    return oxshmem::atomic_fetch_##CALL(target, value, pe), return OXSHMEM_NV_HOST_ATOMIC(T, op, value, 0))
#define OXSHMEM_NV_STANDARD(name, T)                                                                                           \
    OXSHMEM_NV_PAIR(name, T, add, 3)                                                                                           \
    OXSHMEM_NV_BOTH(void, nvshmem_##name##_atomic_inc, (T * target, int pe), oxshmem::atomic_inc(target, pe),                  \
                    OXSHMEM_NV_HOST_ATOMIC(T, 3, 1, 0))                                                                        \
    OXSHMEM_NV_BOTH(T, nvshmem_##name##_atomic_fetch_inc, (T * target, int pe), return oxshmem::atomic_fetch_inc(target, pe),  \
                    return OXSHMEM_NV_HOST_ATOMIC(T, 3, 1, 0))                                                                 \
    OXSHMEM_NV_BOTH(T, nvshmem_##name##_atomic_compare_swap, (T * target, T expected, T desired, int pe),                      \
                    return oxshmem::atomic_compare_swap(target, expected, desired, pe),                                        \
                    return OXSHMEM_NV_HOST_ATOMIC(T, 2, desired, expected))
OXSHMEM_FOR_EACH_STANDARD_ATOMIC_TYPE(OXSHMEM_NV_STANDARD)
#undef OXSHMEM_NV_STANDARD

#define OXSHMEM_NV_BITWISE(name, T)                                                                                            \
    OXSHMEM_NV_PAIR(name, T, and, 4)                                                                                           \
    OXSHMEM_NV_PAIR(name, T, or, 5)                                                                                            \
    OXSHMEM_NV_PAIR(name, T, xor, 6)
OXSHMEM_FOR_EACH_BITWISE_ATOMIC_TYPE(OXSHMEM_NV_BITWISE)
#undef OXSHMEM_NV_BITWISE
#undef OXSHMEM_NV_PAIR
#undef OXSHMEM_NV_HOST_ATOMIC

// Waits and tests. `form` is empty, with one value for all variables, or _vector.
#define OXSHMEM_NV_WAIT_FORMS(name, T, form, V)                                                                                \
    OXSHMEM_NV_DEVICE(thread, void, nvshmem_##name##_wait_until_all##form,                                                     \
                      (T * ivars, size_t n, const int *status, int cmp, V value),                                              \
                      oxshmem::wait_until_all##form(ivars, n, status, oxshmem_nv::compare(cmp), value))                        \
    OXSHMEM_NV_DEVICE(thread, size_t, nvshmem_##name##_wait_until_any##form,                                                   \
                      (T * ivars, size_t n, const int *status, int cmp, V value),                                              \
                      return oxshmem::wait_until_any##form(ivars, n, status, oxshmem_nv::compare(cmp), value))                 \
    OXSHMEM_NV_DEVICE(thread, size_t, nvshmem_##name##_wait_until_some##form,                                                  \
                      (T * ivars, size_t n, size_t * indices, const int *status, int cmp, V value),                            \
                      return oxshmem::wait_until_some##form(ivars, n, indices, status, oxshmem_nv::compare(cmp), value))       \
    OXSHMEM_NV_DEVICE(thread, int, nvshmem_##name##_test_all##form,                                                            \
                      (T * ivars, size_t n, const int *status, int cmp, V value),                                              \
                      return oxshmem::test_all##form(ivars, n, status, oxshmem_nv::compare(cmp), value))                       \
    OXSHMEM_NV_DEVICE(thread, size_t, nvshmem_##name##_test_any##form,                                                         \
                      (T * ivars, size_t n, const int *status, int cmp, V value),                                              \
                      return oxshmem::test_any##form(ivars, n, status, oxshmem_nv::compare(cmp), value))                       \
    OXSHMEM_NV_DEVICE(thread, size_t, nvshmem_##name##_test_some##form,                                                        \
                      (T * ivars, size_t n, size_t * indices, const int *status, int cmp, V value),                            \
                      return oxshmem::test_some##form(ivars, n, indices, status, oxshmem_nv::compare(cmp), value))
#define OXSHMEM_NV_WAIT(name, T)                                                                                               \
    OXSHMEM_NV_DEVICE(thread, void, nvshmem_##name##_wait_until, (T * ivar, int cmp, T value),                                 \
                      oxshmem::wait_until(ivar, oxshmem_nv::compare(cmp), value))                                              \
    OXSHMEM_NV_DEVICE(thread, int, nvshmem_##name##_test, (T * ivar, int cmp, T value),                                        \
                      return oxshmem::test(ivar, oxshmem_nv::compare(cmp), value))                                             \
    OXSHMEM_NV_WAIT_FORMS(name, T, , T)                                                                                        \
    OXSHMEM_NV_WAIT_FORMS(name, T, _vector, const T *)                                                                         \
    OXSHMEM_NV_HOST(void, nvshmemx_##name##_wait_until_on_stream, (T * ivar, int cmp, T value, cudaStream_t stream),           \
                    oxshmem_nv_wait_on_stream(__func__, ivar, 1, nullptr, cmp, oxshmem_nv::to_word(value), nullptr,            \
                                              oxshmem_nv::element<T>::kType, stream))                                          \
    OXSHMEM_NV_HOST(void, nvshmemx_##name##_wait_until_all_on_stream,                                                          \
                    (T * ivars, size_t n, const int *status, int cmp, T value, cudaStream_t stream),                           \
                    oxshmem_nv_wait_on_stream(__func__, ivars, n, status, cmp, oxshmem_nv::to_word(value), nullptr,            \
                                              oxshmem_nv::element<T>::kType, stream))                                          \
    OXSHMEM_NV_HOST(                                                                                                           \
        void, nvshmemx_##name##_wait_until_all_vector_on_stream,                                                               \
        (T * ivars, size_t n, const int *status, int cmp, T *values, cudaStream_t stream),                                     \
        oxshmem_nv_wait_on_stream(__func__, ivars, n, status, cmp, 0, values, oxshmem_nv::element<T>::kType, stream))
OXSHMEM_FOR_EACH_WAIT_TYPE(OXSHMEM_NV_WAIT)
#undef OXSHMEM_NV_WAIT
#undef OXSHMEM_NV_WAIT_FORMS
