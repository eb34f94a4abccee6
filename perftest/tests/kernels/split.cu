// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Shows the tests what the kernels' split gives each part.

#include "common.h"

// parts[2 * i] and parts[2 * i + 1]: first byte and length of part i.
OXSHMEM_KERNEL(split_table, uint64_t bytes, uint64_t count, uint64_t *parts) {
    for (uint64_t i = perftest::grid_rank(); i < count; i += perftest::grid_threads()) {
        const perftest::Part part = perftest::split_bytes(bytes, count, i);
        parts[2 * i] = part.first;
        parts[2 * i + 1] = part.count;
    }
}

// words[e] = word(seed, iteration, e).
OXSHMEM_KERNEL(word_table, uint64_t seed, uint64_t iteration, uint64_t count, uint64_t *words) {
    for (uint64_t e = perftest::grid_rank(); e < count; e += perftest::grid_threads()) {
        words[e] = perftest::word(seed, iteration, e);
    }
}
