// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// What the host API runs on the device: the host's puts, gets, atomics, signals and barriers take
// the same paths as a kernel's. Each is launched as one block, so the operations to one peer share
// a queue pair and stay in order.

#include <oxshmem/oxshmem.h>

OXSHMEM_KERNEL(oxshmem_host_put, void *dst, const void *src, uint64_t bytes, int pe) {
    oxshmem::putmem(oxshmem::block, dst, src, bytes, pe);
}

OXSHMEM_KERNEL(oxshmem_host_put_signal, void *dst, const void *src, uint64_t bytes, uint64_t *signal, uint64_t value, int op,
               int pe) {
    oxshmem::putmem_signal(oxshmem::block, dst, src, bytes, signal, value, static_cast<oxshmem::SignalOp>(op), pe);
}

OXSHMEM_KERNEL(oxshmem_host_get, void *dst, const void *src, uint64_t bytes, int pe) {
    oxshmem::getmem(oxshmem::block, dst, src, bytes, pe);
}

OXSHMEM_KERNEL(oxshmem_host_signal, uint64_t *signal, uint64_t value, int op, int pe) {
    oxshmem::signal_op(signal, value, static_cast<oxshmem::SignalOp>(op), pe);
}

OXSHMEM_KERNEL(oxshmem_host_signal_wait, const uint64_t *signal, int cmp, uint64_t value, uint64_t *seen) {
    const uint64_t last = oxshmem::signal_wait_until(signal, static_cast<oxshmem::Compare>(cmp), value);
    if (seen != nullptr) {
        *seen = last;
    }
}

// runtime/host/atomic.rs numbers the operations.
template <class T> OXSHMEM_DEVICE T host_atomic(T *target, T operand, T compare, int op, int pe) {
    switch (op) {
    case 0:
        return oxshmem::atomic_fetch(target, pe);
    case 1:
        return oxshmem::atomic_swap(target, operand, pe);
    case 2:
        return oxshmem::atomic_compare_swap(target, compare, operand, pe);
    case 3:
        return oxshmem::atomic_fetch_add(target, operand, pe);
    case 4:
        return oxshmem::atomic_fetch_and(target, operand, pe);
    case 5:
        return oxshmem::atomic_fetch_or(target, operand, pe);
    default:
        return oxshmem::atomic_fetch_xor(target, operand, pe);
    }
}

OXSHMEM_KERNEL(oxshmem_host_atomic32, uint32_t *target, uint32_t operand, uint32_t compare, int op, int pe, uint32_t *old) {
    *old = host_atomic(target, operand, compare, op, pe);
}

OXSHMEM_KERNEL(oxshmem_host_atomic64, uint64_t *target, uint64_t operand, uint64_t compare, int op, int pe, uint64_t *old) {
    *old = host_atomic(target, operand, compare, op, pe);
}

OXSHMEM_KERNEL(oxshmem_host_quiet) {
    oxshmem::quiet();
}

OXSHMEM_KERNEL(oxshmem_host_barrier_all) {
    oxshmem::barrier_all(oxshmem::warp);
}

OXSHMEM_KERNEL(oxshmem_host_sync_all) {
    oxshmem::sync_all(oxshmem::warp);
}
