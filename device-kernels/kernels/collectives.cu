// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// What the host's collectives run on the device: one kernel for all, because every kernel gets copies of the functions that it
// calls. It is launched as one block. Errors are recorded, and reported by the host's next synchronisation.

#include <oxshmem/detail/reduce_numbered.h>
#include <oxshmem/oxshmem.h>

// `call`: abi::Call. `n`: bytes, but elements for alltoalls and reductions. `first` and `second`: the root, or the strides of
// dst and src in elements. `kind`: bytes of an element, or its abi::Type. `op`: abi::ReduceOp.
OXSHMEM_KERNEL(oxshmem_host_collective, uint32_t call, int team, void *dst, const void *src, uint64_t n, int64_t first,
               int64_t second, uint32_t kind, uint32_t op) {
    using namespace oxshmem;
    switch (static_cast<abi::Call>(call)) {
    case abi::Call::none:
        break;
    case abi::Call::sync:
    case abi::Call::barrier:
        oxshmem::detail::sync_team<block_scope>(team, static_cast<abi::Call>(call));
        break;
    case abi::Call::broadcast:
        broadcastmem(block, team, dst, src, n, static_cast<int>(first));
        break;
    case abi::Call::collect:
        collectmem(block, team, dst, src, n);
        break;
    case abi::Call::fcollect:
        fcollectmem(block, team, dst, src, n);
        break;
    case abi::Call::alltoall:
        alltoallmem(block, team, dst, src, n);
        break;
    case abi::Call::alltoalls:
        oxshmem::detail::alltoalls_bytes<block_scope>(team, dst, src, static_cast<ptrdiff_t>(first),
                                                      static_cast<ptrdiff_t>(second), n, kind);
        break;
    case abi::Call::reduce:
    case abi::Call::reducescatter: {
        const oxshmem::detail::CombineNumbered combine{static_cast<abi::Type>(kind), static_cast<abi::ReduceOp>(op)};
        const bool to_all = static_cast<abi::Call>(call) == abi::Call::reduce;
        oxshmem::detail::reduce_elements<block_scope>(team, dst, src, n, to_all, combine);
        break;
    }
    }
}
