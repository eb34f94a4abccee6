// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// What the parts of a kernel cost on a device.

#include <oxshmem/oxshmem.h>

OXSHMEM_KERNEL(nothing) {}

OXSHMEM_KERNEL(block_barriers, uint32_t n) {
    for (uint32_t i = 0; i < n; ++i) {
        oxshmem::port::sync_block();
    }
}

OXSHMEM_KERNEL(pauses, uint32_t n) {
    for (uint32_t i = 0; i < n; ++i) {
        oxshmem::port::pause();
    }
}

OXSHMEM_KERNEL(active_masks, uint32_t n, uint32_t *out) {
    uint32_t lanes = 0;
    for (uint32_t i = 0; i < n; ++i) {
        lanes ^= oxshmem::port::active_mask();
    }
    out[oxshmem::port::thread_rank()] = lanes;
}

OXSHMEM_KERNEL(shuffles, uint32_t n, uint32_t *out) {
    uint32_t value = oxshmem::port::lane_id();
    for (uint32_t i = 0; i < n; ++i) {
        value = oxshmem::port::shfl(~0u, value, value + 1);
    }
    out[oxshmem::port::thread_rank()] = value;
}

OXSHMEM_KERNEL(own_puts, uint32_t n, uint64_t *target) {
    const uint32_t rank = oxshmem::port::thread_rank();
    for (uint32_t i = 0; i < n; ++i) {
        oxshmem::p(target + rank, uint64_t{i}, oxshmem::my_pe());
    }
}

OXSHMEM_KERNEL(barriers_of_all, uint32_t n) {
    for (uint32_t i = 0; i < n; ++i) {
        oxshmem::barrier_all(oxshmem::block);
    }
}
