// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// What kernels of applications share, whose blocks all run at the same time: the blocks of a launch
// meet, and sums over a block.
#pragma once

#include "common.h"

// A kernel for blocks of at most APPLICATION_THREADS threads (options.rs): then a thread has 80
// registers, and loops over data spill none. A block of 512 leaves room for one of the software
// HCA's kernel on the same multiprocessor.
#define PERFTEST_APPLICATION_KERNEL(name, ...) OXSHMEM_BOUNDED_KERNEL(768, name, __VA_ARGS__)

namespace perftest {

// Whether `signal` reached `value`, for all threads of the block; false when the wait has ended
// with an error.
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

// Returns when all blocks of the grid have called it as often as this one: then each sees what the
// others did before. `arrivals` is a word of this PE's heap, 0 at first; `round`, the block's own
// count, too. False when another block does not come.
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

// The sum of the threads' values, in an order that the number of threads alone determines; for
// thread 0. Little shared memory, so that the software HCA's kernel finds room beside it.
OXSHMEM_DEVICE double block_sum(double value) {
    OXSHMEM_SHARED(double, sums, [32]);
    const uint32_t rank = port::thread_rank(), lane = port::lane_id(), left = port::block_threads() - (rank - lane);
    const uint32_t lanes = left < 32 ? left : 32, warps = (port::block_threads() + 31) / 32;
    for (uint32_t half = 16; half != 0; half /= 2) {
        const double other = port::shfl(port::kWholeWarp, value, lane + half);
        value += lane < half && lane + half < lanes ? other : 0.0;
    }
    if (lane == 0) {
        sums[rank / 32] = value;
    }
    port::sync_block();
    if (rank == 0) {
        for (uint32_t warp = 1; warp < warps; ++warp) {
            value += sums[warp];
        }
    }
    port::sync_block();
    return value;
}

} // namespace perftest
