// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// What the host's collectives run on the device. Errors are recorded, and reported by the host's
// next synchronisation.

#include <oxshmem/detail/reduce_numbered.h>
#include <oxshmem/oxshmem.h>

OXSHMEM_SYNCS_GRID_DEPENDENCY;

// `call`: abi::Call. `n`: bytes, but elements for alltoalls and reductions. `first` and `second`:
// the root, or the strides of dst and src in elements. `kind`: bytes of an element, or its
// abi::Type. `op`: abi::ReduceOp.
OXSHMEM_KERNEL(oxshmem_host_collective, uint32_t call, int team, void *dst, const void *src, uint64_t n, int64_t first,
               int64_t second, uint32_t kind, uint32_t op) {
    oxshmem::port::grid_dependency_sync();
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

// Collectives by a grid of several blocks, where block b meets block b of the other members. A
// kernel for each call and algorithm, and for each usual reduction: of one that serves several,
// every call would wait for more code than it needs. All take the same arguments: those above, with
// what the host knows of the team; `call` says whether a reduction is a reducescatter, `algorithm`
// whether one that is not by packets is one_shot, and `first` up to how many bytes contributions to
// a collect go in packets.
#define OXSHMEM_BY_BLOCKS(name)                                                                                                \
    OXSHMEM_BOUNDED_KERNEL(512, name, [[maybe_unused]] uint32_t call, oxshmem::abi::KnownTeam team, void *dst,                 \
                           const void *src, uint64_t n, [[maybe_unused]] int64_t first, [[maybe_unused]] int64_t second,       \
                           [[maybe_unused]] uint32_t kind, [[maybe_unused]] uint32_t op, [[maybe_unused]] uint32_t algorithm)

namespace oxshmem::detail {

// The arguments of such a kernel.
struct ByBlocks {
    const abi::KnownTeam &team;
    void *dst;
    const void *src;
    uint64_t n;

    OXSHMEM_DEVICE void broadcast(int64_t root, Caller caller) const {
        broadcast_named<opening_blocks>(team, dst, src, n, static_cast<int>(root), caller, nullptr);
    }
    OXSHMEM_DEVICE void fcollect(Caller caller) const {
        gather_parts<opening_blocks>(team, Collective::fcollect, Op::fcollect, Call::fcollect, dst, src, n, 0, caller);
    }
    OXSHMEM_DEVICE void alltoall(Caller caller) const {
        gather_parts<opening_blocks>(team, Collective::alltoall, Op::alltoall, Call::alltoall, dst, src, n, n, caller);
    }
    template <class Combine> OXSHMEM_DEVICE void reduce(uint32_t call, const Combine &combine, Caller caller) const {
        reduce_named<opening_blocks>(team, dst, src, n, call == static_cast<uint32_t>(Call::reduce), combine, caller);
    }
};

OXSHMEM_DEVICE Caller by_shares_or_one_shot(uint32_t algorithm) {
    return algorithm == static_cast<uint32_t>(abi::Algorithm::one_shot) ? Caller::one_shot : Caller::push;
}

} // namespace oxshmem::detail

OXSHMEM_BY_BLOCKS(oxshmem_host_broadcast_packets) {
    oxshmem::port::grid_dependency_sync();
    oxshmem::detail::ByBlocks{team, dst, src, n}.broadcast(first, oxshmem::detail::Caller::packets);
}
OXSHMEM_BY_BLOCKS(oxshmem_host_broadcast_push) {
    oxshmem::port::grid_dependency_sync();
    oxshmem::detail::ByBlocks{team, dst, src, n}.broadcast(first, oxshmem::detail::Caller::push);
}
OXSHMEM_BY_BLOCKS(oxshmem_host_broadcast_relay) {
    oxshmem::port::grid_dependency_sync();
    oxshmem::detail::ByBlocks{team, dst, src, n}.broadcast(first, oxshmem::detail::Caller::relay);
}
OXSHMEM_BY_BLOCKS(oxshmem_host_broadcast_copy) {
    oxshmem::port::grid_dependency_sync();
    oxshmem::detail::ByBlocks{team, dst, src, n}.broadcast(first, oxshmem::detail::Caller::copy_engines);
}
OXSHMEM_BY_BLOCKS(oxshmem_host_fcollect_packets) {
    oxshmem::port::grid_dependency_sync();
    oxshmem::detail::ByBlocks{team, dst, src, n}.fcollect(oxshmem::detail::Caller::packets);
}
OXSHMEM_BY_BLOCKS(oxshmem_host_fcollect_push) {
    oxshmem::port::grid_dependency_sync();
    oxshmem::detail::ByBlocks{team, dst, src, n}.fcollect(oxshmem::detail::Caller::push);
}
OXSHMEM_BY_BLOCKS(oxshmem_host_fcollect_copy) {
    oxshmem::port::grid_dependency_sync();
    oxshmem::detail::ByBlocks{team, dst, src, n}.fcollect(oxshmem::detail::Caller::copy_engines);
}
OXSHMEM_BY_BLOCKS(oxshmem_host_alltoall_packets) {
    oxshmem::port::grid_dependency_sync();
    oxshmem::detail::ByBlocks{team, dst, src, n}.alltoall(oxshmem::detail::Caller::packets);
}
OXSHMEM_BY_BLOCKS(oxshmem_host_alltoall_push) {
    oxshmem::port::grid_dependency_sync();
    oxshmem::detail::ByBlocks{team, dst, src, n}.alltoall(oxshmem::detail::Caller::push);
}
OXSHMEM_BY_BLOCKS(oxshmem_host_alltoall_copy) {
    oxshmem::port::grid_dependency_sync();
    oxshmem::detail::ByBlocks{team, dst, src, n}.alltoall(oxshmem::detail::Caller::copy_engines);
}
OXSHMEM_BY_BLOCKS(oxshmem_host_collect) {
    oxshmem::port::grid_dependency_sync();
    const uint64_t most = static_cast<uint64_t>(first);
    oxshmem::detail::collect_by_blocks<oxshmem::detail::opening_blocks>(team, dst, src, n, most);
}
OXSHMEM_BOUNDED_KERNEL(512, oxshmem_host_copied, uint32_t call, oxshmem::abi::KnownTeam team, uint32_t step) {
    oxshmem::port::grid_dependency_sync();
    using namespace oxshmem::abi;
    const Op op = call == static_cast<uint32_t>(Call::broadcast)  ? Op::broadcast
                  : call == static_cast<uint32_t>(Call::fcollect) ? Op::fcollect
                                                                  : Op::alltoall;
    oxshmem::detail::end_copies<oxshmem::detail::opening_blocks>(team, op, static_cast<Call>(call), step);
}
OXSHMEM_BY_BLOCKS(oxshmem_host_alltoalls_push) {
    oxshmem::port::grid_dependency_sync();
    oxshmem::detail::alltoalls_bytes<oxshmem::detail::opening_blocks>(
        team, dst, src, static_cast<ptrdiff_t>(first), static_cast<ptrdiff_t>(second), n, kind, oxshmem::detail::Caller::push);
}

// Reductions with what `...` makes of `type` and `which`.
#define OXSHMEM_REDUCE_BY_BLOCKS_AND(name, caller, ...)                                                                        \
    OXSHMEM_BY_BLOCKS(name) {                                                                                                  \
        oxshmem::port::grid_dependency_sync();                                                                                 \
        using namespace oxshmem;                                                                                               \
        using namespace oxshmem::detail;                                                                                       \
        [[maybe_unused]] const Type type = static_cast<Type>(kind);                                                            \
        [[maybe_unused]] const ReduceOp which = static_cast<ReduceOp>(op);                                                     \
        ByBlocks{team, dst, src, n}.reduce(call, __VA_ARGS__, caller);                                                         \
    }
#define OXSHMEM_REDUCE_BY_BLOCKS(name, ...)                                                                                    \
    OXSHMEM_REDUCE_BY_BLOCKS_AND(oxshmem_host_reduce_##name##_packets, Caller::packets, __VA_ARGS__)                           \
    OXSHMEM_REDUCE_BY_BLOCKS_AND(oxshmem_host_reduce_##name##_relay, Caller::relay, __VA_ARGS__)                               \
    OXSHMEM_REDUCE_BY_BLOCKS_AND(oxshmem_host_reduce_##name##_push, by_shares_or_one_shot(algorithm), __VA_ARGS__)

OXSHMEM_REDUCE_BY_BLOCKS(any, CombineNumbered{type, which})
OXSHMEM_REDUCE_BY_BLOCKS(sum_float, Combine<float, ReduceOp::op_sum>{})
OXSHMEM_REDUCE_BY_BLOCKS(sum_double, Combine<double, ReduceOp::op_sum>{})
OXSHMEM_REDUCE_BY_BLOCKS(sum_half, Combine<half, ReduceOp::op_sum>{})
OXSHMEM_REDUCE_BY_BLOCKS(sum_bfloat16, Combine<bfloat16, ReduceOp::op_sum>{})
OXSHMEM_REDUCE_BY_BLOCKS(sum_32, SumOf<uint32_t>{type})
OXSHMEM_REDUCE_BY_BLOCKS(sum_64, SumOf<uint64_t>{type})
