// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Calls whose counts and records the host checks.
#define OXSHMEM_PROFILE

#include "profile_cost.h"

using namespace conformance;

// One call of each kind by one thread, and a barrier of the block.
OXSHMEM_KERNEL(profile_exchange, uint64_t *inbox, const uint64_t *outbox, uint64_t *signal, uint64_t *counter, uint64_t words,
               int peer, Report *report) {
    if (thread_rank() == 0) {
        oxshmem::put_nbi(oxshmem::thread, inbox, outbox, words, peer);
        oxshmem::quiet();
        oxshmem::p(inbox + words, uint64_t{5}, peer);
        oxshmem::put_signal_nbi(oxshmem::thread, inbox + words + 1, outbox, words, signal, 1, oxshmem::SIGNAL_SET, peer);
        oxshmem::atomic_add(counter, uint64_t{3}, peer);
        oxshmem::signal_wait_until(signal, oxshmem::CMP_EQ, 1);
    }
    oxshmem::barrier_all(oxshmem::block);
    if (thread_rank() == 0) {
        EXPECT_EQ(report, peek(counter), uint64_t{3});
        EXPECT_EQ(report, oxshmem::g(inbox + words, peer), uint64_t{5});
    }
}

// A collective. Over the network it makes calls of its own, which are counted too.
OXSHMEM_KERNEL(profile_broadcast, uint64_t *inbox, const uint64_t *outbox, uint64_t words) {
    oxshmem::broadcast(oxshmem::block, 0, inbox, outbox, words, 0);
}

// `calls` puts, each of one word more.
OXSHMEM_KERNEL(profile_flood, uint64_t *inbox, const uint64_t *outbox, uint64_t calls, int peer) {
    for (uint64_t words = 1; words <= calls; ++words) {
        oxshmem::put_nbi(oxshmem::thread, inbox, outbox, words, peer);
    }
    oxshmem::quiet();
}
