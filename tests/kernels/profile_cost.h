// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Times calls, in a module that is compiled with OXSHMEM_PROFILE and in one that is not.
#pragma once

#include "conformance.h"

// By one thread: `calls` of each kind, and the nanoseconds that they took, in `took`: p, put of 64
// words (both with the quiet at the end), barrier_all.
OXSHMEM_KERNEL(profile_cost, uint64_t *inbox, const uint64_t *outbox, uint64_t calls, int peer, uint64_t *took) {
    using oxshmem::port::clock_ns;
    uint64_t begin = clock_ns();
    for (uint64_t i = 0; i < calls; ++i) {
        oxshmem::p(inbox, i, peer);
    }
    oxshmem::quiet();
    took[0] = clock_ns() - begin;
    begin = clock_ns();
    for (uint64_t i = 0; i < calls; ++i) {
        oxshmem::put_nbi(oxshmem::thread, inbox, outbox, 64, peer);
    }
    oxshmem::quiet();
    took[1] = clock_ns() - begin;
    oxshmem::barrier_all();
    begin = clock_ns();
    for (uint64_t i = 0; i < calls; ++i) {
        oxshmem::barrier_all();
    }
    took[2] = clock_ns() - begin;
}
