// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Queue pairs: where they are, and what their words mean.
#pragma once

#include "../group.h"
#include "../landing.h"
#include "wqe.h"

namespace oxshmem::detail {

using abi::Qp;

// QP `queue` of those to `pe`.
OXSHMEM_DEVICE Qp &qp_of(int pe, uint32_t queue) {
    const abi::State &s = port::state();
    return as<Qp>(s.qps)[static_cast<uint64_t>(pe) * s.qps_per_pe + queue];
}

// Qp::index, computed because a load would have to be waited for.
OXSHMEM_DEVICE uint32_t index_of(const Qp &qp) {
    return static_cast<uint32_t>(reinterpret_cast<uint64_t>(&qp) - port::state().qps) / static_cast<uint32_t>(sizeof(Qp));
}

// The lanes that are here together, use `qp` and need the same number of blocks.
OXSHMEM_DEVICE Group converge(const Qp &qp, uint32_t blocks) {
    return make_group(port::converged(static_cast<uint64_t>(blocks) << 32 | index_of(qp)));
}

// Blocks ever reserved, given a number that differs from it by less than half of what the gate's
// field holds: the gate and that number may have been read in either order.
OXSHMEM_DEVICE uint64_t reserved_in(uint64_t gate, uint64_t near) {
    const auto ahead = static_cast<int64_t>(gate - (near << abi::kGateReservedShift)) >> abi::kGateReservedShift;
    return near + static_cast<uint64_t>(ahead);
}

OXSHMEM_DEVICE uint64_t groups_in(uint64_t gate) {
    return (gate & (abi::kGateOneGroup * ((1ull << abi::kGateGroupBits) - 1))) / abi::kGateOneGroup;
}

// Where WQE number `index` begins.
OXSHMEM_DEVICE uint64_t block_at(const Qp &qp, uint64_t index) {
    return qp.wq + (index & ((1ull << qp.depth_log2) - 1)) * abi::kBlockBytes;
}

} // namespace oxshmem::detail
