// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// One kernel for each function of the device API and each scope, for tests/usage.rs to look at what
// the compiler made of it. Nothing runs them.
#include <oxshmem/oxshmem.h>

#define FOR_EACH_SCOPE(X) X(thread) X(warp) X(block)

#define BULK(scope)                                                                                                            \
    OXSHMEM_KERNEL(put_##scope, void *dst, const void *src, size_t bytes, int pe) {                                            \
        oxshmem::putmem(oxshmem::scope, dst, src, bytes, pe);                                                                  \
    }                                                                                                                          \
    OXSHMEM_KERNEL(put_nbi_##scope, void *dst, const void *src, size_t bytes, int pe) {                                        \
        oxshmem::putmem_nbi(oxshmem::scope, dst, src, bytes, pe);                                                              \
    }                                                                                                                          \
    OXSHMEM_KERNEL(get_##scope, void *dst, const void *src, size_t bytes, int pe) {                                            \
        oxshmem::getmem(oxshmem::scope, dst, src, bytes, pe);                                                                  \
    }                                                                                                                          \
    OXSHMEM_KERNEL(get_nbi_##scope, void *dst, const void *src, size_t bytes, int pe) {                                        \
        oxshmem::getmem_nbi(oxshmem::scope, dst, src, bytes, pe);                                                              \
    }                                                                                                                          \
    OXSHMEM_KERNEL(put_signal_##scope, void *dst, const void *src, size_t bytes, uint64_t *signal, int pe) {                   \
        oxshmem::putmem_signal(oxshmem::scope, dst, src, bytes, signal, 1, oxshmem::SIGNAL_SET, pe);                           \
    }                                                                                                                          \
    OXSHMEM_KERNEL(put_signal_nbi_##scope, void *dst, const void *src, size_t bytes, uint64_t *signal, int pe) {               \
        oxshmem::putmem_signal_nbi(oxshmem::scope, dst, src, bytes, signal, 1, oxshmem::SIGNAL_SET, pe);                       \
    }                                                                                                                          \
    OXSHMEM_KERNEL(iput_##scope, uint64_t *dst, const uint64_t *src, ptrdiff_t stride, size_t n, int pe) {                     \
        oxshmem::iput(oxshmem::scope, dst, src, stride, 1, n, pe);                                                             \
    }                                                                                                                          \
    OXSHMEM_KERNEL(iget_##scope, uint64_t *dst, const uint64_t *src, ptrdiff_t stride, size_t n, int pe) {                     \
        oxshmem::iget(oxshmem::scope, dst, src, 1, stride, n, pe);                                                             \
    }
FOR_EACH_SCOPE(BULK)

#define COLLECTIVE(scope)                                                                                                      \
    OXSHMEM_KERNEL(quiet_##scope) {                                                                                            \
        oxshmem::quiet(oxshmem::scope);                                                                                        \
    }                                                                                                                          \
    OXSHMEM_KERNEL(barrier_all_##scope) {                                                                                      \
        oxshmem::barrier_all(oxshmem::scope);                                                                                  \
    }                                                                                                                          \
    OXSHMEM_KERNEL(sync_all_##scope) {                                                                                         \
        oxshmem::sync_all(oxshmem::scope);                                                                                     \
    }
FOR_EACH_SCOPE(COLLECTIVE)

#define SCALAR(name, T)                                                                                                        \
    OXSHMEM_KERNEL(p_##name, T *dst, T value, int pe) {                                                                        \
        oxshmem::p(dst, value, pe);                                                                                            \
    }                                                                                                                          \
    OXSHMEM_KERNEL(g_##name, T *out, const T *src, int pe) {                                                                   \
        *out = oxshmem::g(src, pe);                                                                                            \
    }
SCALAR(u8, uint8_t)
SCALAR(u16, uint16_t)
SCALAR(u32, uint32_t)
SCALAR(u64, uint64_t)

OXSHMEM_KERNEL(fence) {
    oxshmem::fence();
}

OXSHMEM_KERNEL(signal_op, uint64_t *signal, uint64_t value, int operation, int pe) {
    oxshmem::signal_op(signal, value, static_cast<oxshmem::SignalOp>(operation), pe);
}

OXSHMEM_KERNEL(signal_wait_until, const uint64_t *signal, uint64_t value) {
    oxshmem::signal_wait_until(signal, oxshmem::CMP_GE, value);
}

OXSHMEM_KERNEL(wait_until, uint64_t *variable, int comparison, uint64_t value) {
    oxshmem::wait_until(variable, static_cast<oxshmem::Compare>(comparison), value);
}

OXSHMEM_KERNEL(atomic_add, uint64_t *target, uint64_t value, int pe) {
    oxshmem::atomic_add(target, value, pe);
}

OXSHMEM_KERNEL(atomic_fetch_add, uint64_t *out, uint64_t *target, uint64_t value, int pe) {
    *out = oxshmem::atomic_fetch_add(target, value, pe);
}

OXSHMEM_KERNEL(atomic_compare_swap, uint64_t *out, uint64_t *target, uint64_t expected, uint64_t desired, int pe) {
    *out = oxshmem::atomic_compare_swap(target, expected, desired, pe);
}
