// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Queue pairs: where they are, and what their words mean.
#pragma once

#include "../context.h"
#include "../group.h"
#include "../landing.h"
#include "../profile.h"
#include "wqe.h"

namespace oxshmem::detail {

using abi::Qp;

// QP `queue` of those to `pe`.
OXSHMEM_DEVICE Qp &qp_of(int pe, uint32_t queue) {
    const abi::State &s = port::state();
    return as<Qp>(s.qps)[static_cast<uint64_t>(pe) * s.qps_per_pe + queue];
}

OXSHMEM_DEVICE Qp &qp_of(int, ContextQp queue) {
    return *queue.qp;
}

// Qp::index, computed because a load would have to be waited for.
OXSHMEM_DEVICE uint32_t index_of(const Qp &qp) {
    return static_cast<uint32_t>(reinterpret_cast<uint64_t>(&qp) - port::state().qps) / static_cast<uint32_t>(sizeof(Qp));
}

// The lanes that are here together, use `qp` and need the same number of blocks.
OXSHMEM_INLINE Group converge(uint32_t, const Qp &qp, uint32_t blocks) {
    return make_group(port::converged(static_cast<uint64_t>(blocks) << 32 | index_of(qp)));
}
OXSHMEM_INLINE Group converge(ContextQp queue, const Qp &qp, uint32_t blocks) {
    if ((queue.how & abi::kContextAlone) != 0) {
        return make_group(1u << port::lane_id());
    }
    // An address has fewer than 56 bits.
    return make_group(port::converged(static_cast<uint64_t>(blocks) << 56 ^ reinterpret_cast<uint64_t>(&qp)));
}

// A bit of memory that says that a QP was posted to.
struct UsedBit {
    uint64_t *word;
    uint64_t mask;
};

OXSHMEM_DEVICE UsedBit used_bit(uint32_t, const Qp &qp) {
    const uint32_t index = index_of(qp);
    return {as<uint64_t>(port::state().used) + index / 64, uint64_t{1} << index % 64};
}
OXSHMEM_DEVICE UsedBit used_bit(ContextQp, const Qp &qp) {
    return {as<uint64_t>(qp.used_word), qp.used_mask};
}

// Blocks ever reserved, given a number that differs from it by less than half of what the gate's
// field holds: the gate and that number may have been read in either order.
OXSHMEM_DEVICE uint64_t reserved_in(uint64_t gate, uint64_t near) {
    const auto ahead = static_cast<int64_t>(gate - (near << abi::kGateReservedShift)) >> abi::kGateReservedShift;
    return near + static_cast<uint64_t>(ahead);
}

// The bits of a gate that count groups.
constexpr uint64_t kGateGroups = abi::kGateOneGroup * ((1ull << abi::kGateGroupBits) - 1);

OXSHMEM_DEVICE uint64_t groups_in(uint64_t gate) {
    return (gate & kGateGroups) / abi::kGateOneGroup;
}

// Where WQE number `index` begins.
OXSHMEM_DEVICE uint64_t block_at(const Qp &qp, uint64_t index) {
    return qp.wq + (index & ((1ull << qp.depth_log2) - 1)) * abi::kBlockBytes;
}

} // namespace oxshmem::detail
