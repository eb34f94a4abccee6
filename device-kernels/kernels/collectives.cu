// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// What the host's collectives run on the device. Each is launched as one block. Errors are recorded, and reported by the host's
// next synchronisation.

#include <oxshmem/oxshmem.h>

OXSHMEM_KERNEL(oxshmem_host_team_sync, int team) {
    oxshmem::team_sync(oxshmem::block, team);
}

OXSHMEM_KERNEL(oxshmem_host_team_barrier, int team) {
    oxshmem::barrier(oxshmem::block, team);
}

OXSHMEM_KERNEL(oxshmem_host_broadcast, int team, void *dst, const void *src, uint64_t bytes, int root) {
    oxshmem::broadcastmem(oxshmem::block, team, dst, src, bytes, root);
}

OXSHMEM_KERNEL(oxshmem_host_collect, int team, void *dst, const void *src, uint64_t bytes) {
    oxshmem::collectmem(oxshmem::block, team, dst, src, bytes);
}

OXSHMEM_KERNEL(oxshmem_host_fcollect, int team, void *dst, const void *src, uint64_t bytes) {
    oxshmem::fcollectmem(oxshmem::block, team, dst, src, bytes);
}

OXSHMEM_KERNEL(oxshmem_host_alltoall, int team, void *dst, const void *src, uint64_t bytes) {
    oxshmem::alltoallmem(oxshmem::block, team, dst, src, bytes);
}

OXSHMEM_KERNEL(oxshmem_host_alltoalls, int team, void *dst, const void *src, int64_t dst_stride, int64_t src_stride, uint64_t n,
               uint32_t element_bytes) {
    oxshmem::detail::alltoalls_bytes<oxshmem::block_scope>(team, dst, src, static_cast<ptrdiff_t>(dst_stride),
                                                           static_cast<ptrdiff_t>(src_stride), n, element_bytes);
}

OXSHMEM_DEVICE void host_reduce(int team, uint32_t op, uint32_t type, void *dst, const void *src, uint64_t n, bool to_all) {
    using namespace oxshmem::abi;
    const oxshmem::detail::CombineNumbered combine{static_cast<Type>(type), static_cast<ReduceOp>(op)};
    oxshmem::detail::reduce_elements<oxshmem::block_scope>(team, dst, src, n, to_all, combine);
}

OXSHMEM_KERNEL(oxshmem_host_reduce, int team, uint32_t op, uint32_t type, void *dst, const void *src, uint64_t n) {
    host_reduce(team, op, type, dst, src, n, true);
}

OXSHMEM_KERNEL(oxshmem_host_reducescatter, int team, uint32_t op, uint32_t type, void *dst, const void *src, uint64_t n) {
    host_reduce(team, op, type, dst, src, n, false);
}
