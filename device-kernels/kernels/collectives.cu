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

namespace oxshmem::detail {

// The sum of integers that are as wide as T.
template <class T> struct SumOf {
    Type number;
    OXSHMEM_DEVICE vec16 operator()(vec16 a, vec16 b) const { return combine_as<ReduceOp::op_sum, T>(a, b); }
    OXSHMEM_DEVICE Type type() const { return number; }
    OXSHMEM_DEVICE ReduceOp op() const { return ReduceOp::op_sum; }
};

// A reduction of the given type and operator by several blocks. The usual ones have loops of their
// own; the others look for their type and operator with each 16 bytes.
OXSHMEM_DEVICE void reduce_by_blocks(int team, void *dst, const void *src, uint64_t n, bool to_all, Type type, ReduceOp op,
                                     Caller caller) {
    if (op == ReduceOp::op_sum) {
        switch (type) {
        case Type::float32:
            reduce_elements<blocks_scope>(team, dst, src, n, to_all, Combine<float, ReduceOp::op_sum>{}, caller);
            return;
        case Type::float64:
            reduce_elements<blocks_scope>(team, dst, src, n, to_all, Combine<double, ReduceOp::op_sum>{}, caller);
            return;
        case Type::half:
            reduce_elements<blocks_scope>(team, dst, src, n, to_all, Combine<half, ReduceOp::op_sum>{}, caller);
            return;
        case Type::bfloat16:
            reduce_elements<blocks_scope>(team, dst, src, n, to_all, Combine<bfloat16, ReduceOp::op_sum>{}, caller);
            return;
        case Type::int32:
        case Type::uint32:
            // Sums of signed and unsigned integers are the same bits; what members announce is the
            // type given.
            reduce_elements<blocks_scope>(team, dst, src, n, to_all, SumOf<uint32_t>{type}, caller);
            return;
        case Type::int64:
        case Type::uint64:
            reduce_elements<blocks_scope>(team, dst, src, n, to_all, SumOf<uint64_t>{type}, caller);
            return;
        default:
            break;
        }
    }
    reduce_elements<blocks_scope>(team, dst, src, n, to_all, CombineNumbered{type, op}, caller);
}

} // namespace oxshmem::detail

// The same arguments, for a grid of several blocks, where block b meets block b of the other
// members; and the algorithm, an abi::Algorithm but tree.
OXSHMEM_BOUNDED_KERNEL(512, oxshmem_host_collective_by_blocks, uint32_t call, int team, void *dst, const void *src, uint64_t n,
                       int64_t first, int64_t second, uint32_t kind, uint32_t op, uint32_t algorithm) {
    using namespace oxshmem;
    using oxshmem::detail::blocks_scope;
    using oxshmem::detail::Caller;
    const Caller caller = algorithm == static_cast<uint32_t>(abi::Algorithm::packets)    ? Caller::packets
                          : algorithm == static_cast<uint32_t>(abi::Algorithm::one_shot) ? Caller::one_shot
                                                                                         : Caller::push;
    switch (static_cast<abi::Call>(call)) {
    case abi::Call::broadcast:
        oxshmem::detail::broadcast_bytes<blocks_scope>(team, dst, src, n, static_cast<int>(first), caller);
        break;
    case abi::Call::fcollect:
        oxshmem::detail::fcollect_bytes<blocks_scope>(team, dst, src, n, caller);
        break;
    case abi::Call::alltoall:
        oxshmem::detail::alltoall_bytes<blocks_scope>(team, dst, src, n, caller);
        break;
    case abi::Call::alltoalls:
        oxshmem::detail::alltoalls_bytes<blocks_scope>(team, dst, src, static_cast<ptrdiff_t>(first),
                                                       static_cast<ptrdiff_t>(second), n, kind, Caller::push);
        break;
    case abi::Call::reduce:
    case abi::Call::reducescatter:
        oxshmem::detail::reduce_by_blocks(team, dst, src, n, static_cast<abi::Call>(call) == abi::Call::reduce,
                                          static_cast<abi::Type>(kind), static_cast<abi::ReduceOp>(op), caller);
        break;
    default: // The host launches one block for the others.
        break;
    }
}
