// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// What kernels of applications share, whose blocks all run at the same time: the blocks of a launch meet, and sums over a
// block.
#pragma once

#include "common.h"

namespace perftest {

// Whether `signal` reached `value`, for all threads of the block; false when the wait has ended with an error.
OXSHMEM_DEVICE bool block_awaits(const uint64_t *signal, uint64_t value) {
    OXSHMEM_SHARED(uint32_t, came);
    if (port::thread_rank() == 0) {
        came = signal_wait_until(signal, CMP_GE, value) >= value;
    }
    port::sync_block();
    const bool answer = came != 0;
    port::sync_block();
    return answer;
}

// Returns when all blocks of the grid have called it as often as this one: then each sees what the others did before.
// `arrivals` is a word of the own heap, 0 at first; `round`, the block's own count, too. False when another block does not
// come.
OXSHMEM_DEVICE bool grid_meets(uint64_t *arrivals, uint64_t &round) {
    ++round;
    port::sync_block();
    if (port::grid_blocks() == 1) {
        return true;
    }
    if (port::thread_rank() == 0) {
        port::fence<port::order::acq_rel, port::reach::device>();
        port::add_to<port::order::relaxed, port::reach::device>(arrivals, uint64_t{1});
    }
    return block_awaits(arrivals, round * port::grid_blocks());
}

// The sum of the threads' values, in an order that the number of threads alone determines; for thread 0.
OXSHMEM_DEVICE double block_sum(double value) {
    OXSHMEM_SHARED(double, values, [1024]);
    const uint32_t rank = port::thread_rank(), threads = port::block_threads();
    values[rank] = value;
    port::sync_block();
    for (uint32_t half = 512; half != 0; half /= 2) {
        if (rank < half && rank + half < threads) {
            values[rank] += values[rank + half];
        }
        port::sync_block();
    }
    return values[0];
}

} // namespace perftest
