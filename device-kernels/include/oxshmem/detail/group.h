// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Lanes that converge, and post together.
#pragma once

#include <oxshmem/port/port.h>

namespace oxshmem::detail {

// Lanes of a warp that post together: to one QP, or to the ring of the CPU proxy.
struct Group {
    uint32_t mask; // lanes
    uint32_t rank; // of the calling lane among them
    uint32_t size;
    uint32_t leader; // lowest lane

    OXSHMEM_DEVICE bool leads() const { return rank == 0; }
    OXSHMEM_DEVICE bool last() const { return rank + 1 == size; }
};

OXSHMEM_DEVICE Group make_group(uint32_t mask) {
    const uint32_t below = (1u << port::lane_id()) - 1;
    return {mask, port::count_ones(mask & below), port::count_ones(mask), port::lowest_bit(mask)};
}

} // namespace oxshmem::detail
