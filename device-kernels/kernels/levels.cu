// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// The host's collectives of teams that have several nodes, in two levels. A module of its own,
// which is loaded when there is such a team.

#include <oxshmem/detail/levels_strided.h>
#include <oxshmem/detail/reduce_numbered.h>
#include <oxshmem/oxshmem.h>

OXSHMEM_SYNCS_GRID_DEPENDENCY;

namespace oxshmem::detail {

struct ReduceByLevels {
    int team;
    void *dst;
    const void *src;
    uint64_t n;
    bool to_all;
    template <class Combine> OXSHMEM_DEVICE void operator()(const Combine &combine) const {
        reduce_by_levels(team, dst, src, n, to_all, combine);
    }
};

} // namespace oxshmem::detail

// The arguments of oxshmem_host_collective, for a grid of at most kLevelsBlocks blocks. Block b
// meets block b of the other members.
OXSHMEM_BOUNDED_KERNEL(512, oxshmem_host_collective_by_levels, uint32_t call, int team, void *dst, const void *src, uint64_t n,
                       int64_t first, int64_t second, uint32_t kind, uint32_t op) {
    oxshmem::port::grid_dependency_sync();
    using namespace oxshmem;
    switch (static_cast<abi::Call>(call)) {
    case abi::Call::broadcast:
        oxshmem::detail::broadcast_by_levels(team, dst, src, n, static_cast<int>(first));
        break;
    case abi::Call::collect:
        oxshmem::detail::collect_by_levels(team, dst, src, n);
        break;
    case abi::Call::fcollect:
        oxshmem::detail::fcollect_by_levels(team, dst, src, n);
        break;
    case abi::Call::alltoall:
        oxshmem::detail::alltoall_by_levels(team, dst, src, n);
        break;
    case abi::Call::alltoalls:
        oxshmem::detail::alltoalls_by_levels(team, dst, src, static_cast<ptrdiff_t>(first), static_cast<ptrdiff_t>(second), n,
                                             kind);
        break;
    case abi::Call::reduce:
    case abi::Call::reducescatter:
        oxshmem::detail::with_combine(
            static_cast<abi::Type>(kind), static_cast<abi::ReduceOp>(op),
            oxshmem::detail::ReduceByLevels{team, dst, src, n, static_cast<abi::Call>(call) == abi::Call::reduce});
        break;
    default: // The host launches one block for the others.
        break;
    }
}
