// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// What the host API runs on the device: the host's puts, gets, atomics, signals and barriers take
// the same paths as a kernel's. Each is launched as one block, so the operations to one peer share
// a queue pair, which a fence puts in order.

#include <oxshmem/oxshmem.h>

OXSHMEM_SYNCS_GRID_DEPENDENCY;

OXSHMEM_KERNEL(oxshmem_host_put, void *dst, const void *src, uint64_t bytes, int pe) {
    oxshmem::port::grid_dependency_sync();
    oxshmem::putmem(oxshmem::block, dst, src, bytes, pe);
}

OXSHMEM_KERNEL(oxshmem_host_put_signal, void *dst, const void *src, uint64_t bytes, uint64_t *signal, uint64_t value, int op,
               int pe) {
    oxshmem::port::grid_dependency_sync();
    oxshmem::putmem_signal(oxshmem::block, dst, src, bytes, signal, value, static_cast<oxshmem::SignalOp>(op), pe);
}

OXSHMEM_KERNEL(oxshmem_host_get, void *dst, const void *src, uint64_t bytes, int pe) {
    oxshmem::port::grid_dependency_sync();
    oxshmem::getmem(oxshmem::block, dst, src, bytes, pe);
}

// Stores the time of the device's clock, for traces.
OXSHMEM_KERNEL(oxshmem_host_clock, uint64_t *now) {
    oxshmem::port::grid_dependency_sync();
    oxshmem::port::write(now, oxshmem::port::clock_ns());
}

// Copies by stores, as staged puts are copied, each block its share: for measuring how fast that
// is. `bytes` is a multiple of 16 times the number of blocks.
OXSHMEM_KERNEL(oxshmem_host_copy, void *dst, const void *src, uint64_t bytes) {
    oxshmem::port::grid_dependency_sync();
    const uint64_t share = bytes / oxshmem::port::grid_blocks(), at = share * oxshmem::port::block_rank();
    oxshmem::detail::copy<oxshmem::block_scope>(static_cast<char *>(dst) + at, static_cast<const char *>(src) + at, share);
    oxshmem::port::fence<oxshmem::port::order::release, oxshmem::port::reach::system>();
}

// What follows takes numbers of bytes and types, for operations that are given by address.

// Stores the low `bytes` bytes of a word: 1, 2, 4 or 8.
OXSHMEM_KERNEL(oxshmem_host_put_word, void *dst, uint64_t word, uint32_t bytes, int pe) {
    oxshmem::port::grid_dependency_sync();
    switch (bytes) {
    case 1:
        oxshmem::p(static_cast<uint8_t *>(dst), static_cast<uint8_t>(word), pe);
        break;
    case 2:
        oxshmem::p(static_cast<uint16_t *>(dst), static_cast<uint16_t>(word), pe);
        break;
    case 4:
        oxshmem::p(static_cast<uint32_t *>(dst), static_cast<uint32_t>(word), pe);
        break;
    default:
        oxshmem::p(static_cast<uint64_t *>(dst), word, pe);
        break;
    }
}

// Calls `with` with pointers to elements of that many bytes: 1, 2, 4, 8 or 16.
template <class With> OXSHMEM_DEVICE void with_elements(void *dst, const void *src, uint32_t bytes, With with) {
    switch (bytes) {
    case 1:
        with(static_cast<uint8_t *>(dst), static_cast<const uint8_t *>(src));
        break;
    case 2:
        with(static_cast<uint16_t *>(dst), static_cast<const uint16_t *>(src));
        break;
    case 4:
        with(static_cast<uint32_t *>(dst), static_cast<const uint32_t *>(src));
        break;
    case 8:
        with(static_cast<uint64_t *>(dst), static_cast<const uint64_t *>(src));
        break;
    default:
        with(static_cast<oxshmem::port::vec16 *>(dst), static_cast<const oxshmem::port::vec16 *>(src));
        break;
    }
}

// Strides are in elements.
OXSHMEM_KERNEL(oxshmem_host_iput, void *dst, const void *src, int64_t dst_stride, int64_t src_stride, uint64_t n,
               uint32_t bytes, int pe) {
    oxshmem::port::grid_dependency_sync();
    with_elements(dst, src, bytes,
                  [&](auto *to, const auto *from) { oxshmem::iput(oxshmem::block, to, from, dst_stride, src_stride, n, pe); });
}

OXSHMEM_KERNEL(oxshmem_host_iget, void *dst, const void *src, int64_t dst_stride, int64_t src_stride, uint64_t n,
               uint32_t bytes, int pe) {
    oxshmem::port::grid_dependency_sync();
    with_elements(dst, src, bytes,
                  [&](auto *to, const auto *from) { oxshmem::iget(oxshmem::block, to, from, dst_stride, src_stride, n, pe); });
}

template <class T>
OXSHMEM_NOINLINE void host_wait(const void *variables, uint64_t n, const int *status, int cmp, uint64_t value,
                                const void *values) {
    const auto compare = static_cast<oxshmem::Compare>(cmp);
    const T *ivars = static_cast<const T *>(variables);
    if (values != nullptr) {
        oxshmem::wait_until_all_vector(ivars, n, status, compare, static_cast<const T *>(values));
    } else {
        oxshmem::wait_until_all(ivars, n, status, compare, static_cast<T>(value));
    }
}

// Waits for all variables. `type`: an abi::Type of 2 to 8 bytes. `values`, if not null: one for
// each.
OXSHMEM_KERNEL(oxshmem_host_wait, const void *variables, uint64_t n, const int *status, int cmp, uint64_t value,
               const void *values, uint32_t type) {
    oxshmem::port::grid_dependency_sync();
    using oxshmem::abi::Type;
    switch (static_cast<Type>(type)) {
    case Type::int16:
        host_wait<int16_t>(variables, n, status, cmp, value, values);
        break;
    case Type::uint16:
        host_wait<uint16_t>(variables, n, status, cmp, value, values);
        break;
    case Type::int32:
        host_wait<int32_t>(variables, n, status, cmp, value, values);
        break;
    case Type::uint32:
        host_wait<uint32_t>(variables, n, status, cmp, value, values);
        break;
    case Type::int64:
        host_wait<int64_t>(variables, n, status, cmp, value, values);
        break;
    case Type::uint64:
        host_wait<uint64_t>(variables, n, status, cmp, value, values);
        break;
    default: // The host admits no other.
        break;
    }
}

OXSHMEM_KERNEL(oxshmem_host_signal, uint64_t *signal, uint64_t value, int op, int pe) {
    oxshmem::port::grid_dependency_sync();
    oxshmem::signal_op(signal, value, static_cast<oxshmem::SignalOp>(op), pe);
}

OXSHMEM_KERNEL(oxshmem_host_signal_wait, const uint64_t *signal, int cmp, uint64_t value, uint64_t *seen) {
    oxshmem::port::grid_dependency_sync();
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
    oxshmem::port::grid_dependency_sync();
    *old = host_atomic(target, operand, compare, op, pe);
}

OXSHMEM_KERNEL(oxshmem_host_atomic64, uint64_t *target, uint64_t operand, uint64_t compare, int op, int pe, uint64_t *old) {
    oxshmem::port::grid_dependency_sync();
    *old = host_atomic(target, operand, compare, op, pe);
}

OXSHMEM_KERNEL(oxshmem_host_quiet) {
    oxshmem::port::grid_dependency_sync();
    oxshmem::quiet();
}

// For what kernels of one block have posted: this one has the rank of theirs, and so their queue
// pairs.
OXSHMEM_KERNEL(oxshmem_host_fence) {
    oxshmem::port::grid_dependency_sync();
    oxshmem::fence();
}

OXSHMEM_KERNEL(oxshmem_host_barrier, int team) {
    oxshmem::port::grid_dependency_sync();
    oxshmem::detail::sync_team<oxshmem::warp_scope>(team, oxshmem::detail::Call::barrier);
}

OXSHMEM_KERNEL(oxshmem_host_sync, int team) {
    oxshmem::port::grid_dependency_sync();
    oxshmem::detail::sync_team<oxshmem::warp_scope>(team, oxshmem::detail::Call::sync);
}

// Both of these where no network takes part.
OXSHMEM_KERNEL(oxshmem_host_barrier_near, oxshmem::abi::KnownTeam team) {
    oxshmem::port::grid_dependency_sync();
    OXSHMEM_SHARED(oxshmem::detail::MeetingForHost, found);
    oxshmem::detail::meet_for_host(team, oxshmem::detail::Call::barrier, found);
}

OXSHMEM_KERNEL(oxshmem_host_sync_near, oxshmem::abi::KnownTeam team) {
    oxshmem::port::grid_dependency_sync();
    OXSHMEM_SHARED(oxshmem::detail::MeetingForHost, found);
    oxshmem::detail::meet_for_host(team, oxshmem::detail::Call::sync, found);
}

// Completes what was posted through `n` contexts.
OXSHMEM_KERNEL(oxshmem_host_quiet_contexts, const oxshmem::Context *contexts, uint32_t n) {
    oxshmem::port::grid_dependency_sync();
    for (uint32_t i = 0; i < n; ++i) {
        oxshmem::quiet(oxshmem::port::read(contexts + i), oxshmem::block);
    }
}
