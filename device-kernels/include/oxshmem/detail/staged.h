// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Which puts go through a staging ring; ibgda/staging.h posts them.
#pragma once

#include "operation.h"

namespace oxshmem::detail {

OXSHMEM_DEVICE const abi::Qp &staging_qp(int pe, uint32_t queue) {
    const abi::State &s = port::state();
    return as<abi::Qp>(s.qps)[static_cast<uint64_t>(pe) * s.qps_per_pe + queue];
}
OXSHMEM_DEVICE const abi::Qp &staging_qp(int, ContextQp queue) {
    return *queue.qp;
}

// Whether a put of `bytes` bytes to `pe`, which the network reaches, goes through the staging ring
// of its QP.
template <class C> OXSHMEM_DEVICE bool is_staged(C context, uint64_t bytes, int pe, Use use) {
    return bytes > port::state().direct_up_to && posts_to(pe) && staging_qp(pe, queue_for(context, use)).ring != 0;
}

} // namespace oxshmem::detail
