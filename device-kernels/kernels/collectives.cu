// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// What the host's collectives run on the device: one kernel for those that a block carries out and
// one for those that several blocks carry out, because every kernel gets copies of the functions
// that it calls. Errors are recorded, and reported by the host's next synchronisation.

#include <oxshmem/detail/reduce_numbered.h>
#include <oxshmem/oxshmem.h>

// `call`: abi::Call. `n`: bytes, but elements for alltoalls and reductions. `first` and `second`:
// the root, or the strides of dst and src in elements. `kind`: bytes of an element, or its
// abi::Type. `op`: abi::ReduceOp.
OXSHMEM_KERNEL(oxshmem_host_collective, uint32_t call, int team, void *dst, const void *src, uint64_t n, int64_t first,
               int64_t second, uint32_t kind, uint32_t op) {
    using namespace oxshmem;
    switch (static_cast<abi::Call>(call)) {
    case abi::Call::none:
    case abi::Call::sync: // The host launches the kernels of host_ops.cu for these two.
    case abi::Call::barrier:
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

namespace oxshmem::detail {

// A reduction by several blocks, once how to combine is known.
struct ReduceByBlocks {
    int team;
    void *dst;
    const void *src;
    uint64_t n;
    bool to_all;
    Caller caller;
    template <class Combine> OXSHMEM_DEVICE void operator()(const Combine &combine) const {
        reduce_elements<opening_blocks>(team, dst, src, n, to_all, combine, caller);
    }
};

} // namespace oxshmem::detail

// The same arguments, for a grid of several blocks, where block b meets block b of the other
// members; and the algorithm: packets, push or one_shot.
OXSHMEM_BOUNDED_KERNEL(512, oxshmem_host_collective_by_blocks, uint32_t call, int team, void *dst, const void *src, uint64_t n,
                       int64_t first, int64_t second, uint32_t kind, uint32_t op, uint32_t algorithm) {
    using namespace oxshmem;
    using oxshmem::detail::Caller;
    using oxshmem::detail::opening_blocks;
    const Caller caller = algorithm == static_cast<uint32_t>(abi::Algorithm::packets)    ? Caller::packets
                          : algorithm == static_cast<uint32_t>(abi::Algorithm::one_shot) ? Caller::one_shot
                                                                                         : Caller::push;
    switch (static_cast<abi::Call>(call)) {
    case abi::Call::broadcast:
        oxshmem::detail::broadcast_bytes<opening_blocks>(team, dst, src, n, static_cast<int>(first), caller);
        break;
    case abi::Call::fcollect:
        oxshmem::detail::fcollect_bytes<opening_blocks>(team, dst, src, n, caller);
        break;
    case abi::Call::alltoall:
        oxshmem::detail::alltoall_bytes<opening_blocks>(team, dst, src, n, caller);
        break;
    case abi::Call::alltoalls:
        oxshmem::detail::alltoalls_bytes<opening_blocks>(team, dst, src, static_cast<ptrdiff_t>(first),
                                                         static_cast<ptrdiff_t>(second), n, kind, Caller::push);
        break;
    case abi::Call::reduce:
    case abi::Call::reducescatter:
        oxshmem::detail::with_combine(
            static_cast<abi::Type>(kind), static_cast<abi::ReduceOp>(op),
            oxshmem::detail::ReduceByBlocks{team, dst, src, n, static_cast<abi::Call>(call) == abi::Call::reduce, caller});
        break;
    default: // The host launches one block for the others.
        break;
    }
}
