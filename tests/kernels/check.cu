// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// What the check mode finds, and what it must not take for that.
#include "conformance.h"

using namespace conformance;

// Puts a buffer and writes to it again: after a quiet, or without.
OXSHMEM_KERNEL(check_reuse, uint64_t *inbox, uint64_t *outbox, uint64_t words, int rounds, int quiets, int peer) {
    for (int round = 0; round < rounds; ++round) {
        oxshmem::put_nbi(oxshmem::thread, inbox, outbox, words, peer);
        if (quiets != 0) {
            oxshmem::quiet();
        } else {
            // The HCA's thread sees the doorbell meanwhile, or has seen it, or does later.
            dawdle(static_cast<uint32_t>(round) % 64);
        }
        write(outbox + words - 1, read(outbox + words - 1) + 1);
    }
    oxshmem::quiet();
}

// Computes for a while, without a wait, and then signals.
OXSHMEM_KERNEL(check_busy, uint64_t *signal, uint64_t nanoseconds, int peer) {
    const uint64_t end = clock_ns() + nanoseconds;
    while (clock_ns() < end) {
    }
    oxshmem::signal_op(signal, 1, oxshmem::SIGNAL_SET, peer);
    oxshmem::quiet();
}
