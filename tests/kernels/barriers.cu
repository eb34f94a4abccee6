// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// barrier_all, sync_all, quiet, fence and ptr.
#include "conformance.h"

namespace {

using namespace conformance;

template <class S>
OXSHMEM_DEVICE void rounds(uint32_t *flags, uint32_t *own, uint32_t first, uint32_t count, bool sync, Report *report) {
    if (thread_rank() >= S::size()) {
        return;
    }
    const uint32_t n = static_cast<uint32_t>(oxshmem::n_pes());
    const uint32_t me = static_cast<uint32_t>(oxshmem::my_pe());
    for (uint32_t round = first; round < first + count; ++round) {
        if (round % n == me) {
            dawdle(8 + round % 32); // the straggler of this round
        }
        if (!sync) {
            // Every lane tells some peers; delivered at the end of the barrier.
            for (uint32_t pe = S::rank(); pe < n; pe += S::size()) {
                oxshmem::p(flags + me, round, static_cast<int>(pe));
            }
            oxshmem::barrier_all(S{});
            // A peer may be one barrier ahead.
            for (uint32_t pe = 0; pe < n; ++pe) {
                const uint32_t seen = peek_acquire(flags + pe);
                EXPECT(report, seen == round || seen == round + 1);
            }
        } else {
            if (S::rank() == 0) {
                store<order::relaxed, reach::system>(own, round);
            }
            oxshmem::sync_all(S{});
            for (uint32_t pe = S::rank(); pe < n; pe += S::size()) {
                const uint32_t seen = oxshmem::g(own, static_cast<int>(pe));
                EXPECT(report, seen == round || seen == round + 1);
            }
        }
        S::sync();
    }
}

} // namespace

// Puts `n` words that hold `value`, with nothing else of this PE under way when it ends: what went
// before is complete, and so is the put here, since its words are more than travel in the queue.
OXSHMEM_KERNEL(put_alone, uint64_t *dst, uint64_t *src, uint32_t n, uint64_t value, uint32_t pe) {
    oxshmem::quiet();
    for (uint32_t i = 0; i < n; ++i) {
        src[i] = value;
    }
    oxshmem::put(oxshmem::thread, dst, src, n, static_cast<int>(pe));
}

// Barrier rounds `first` to `first + count`, the first of them at least 1. `flags`: n_pes words,
// `own`: one.
OXSHMEM_KERNEL(barrier_rounds, uint32_t *flags, uint32_t *own, uint32_t first, uint32_t count, uint32_t scope, uint32_t sync,
               Report *report) {
    if (scope == 0) {
        rounds<oxshmem::thread_scope>(flags, own, first, count, sync != 0, report);
    } else if (scope == 1) {
        rounds<oxshmem::warp_scope>(flags, own, first, count, sync != 0, report);
    } else {
        rounds<oxshmem::block_scope>(flags, own, first, count, sync != 0, report);
    }
}

// After quiet, what any thread of the block has put is at the peers: they hand it back. `data`:
// n_pes x threads words.
OXSHMEM_KERNEL(quiet_rounds, uint32_t *data, uint32_t rounds, Report *report) {
    const uint32_t n = static_cast<uint32_t>(oxshmem::n_pes());
    const uint32_t me = static_cast<uint32_t>(oxshmem::my_pe());
    for (uint32_t round = 1; round <= rounds; ++round) {
        for (uint32_t pe = 0; pe < n; ++pe) {
            oxshmem::p(data + me * block_threads() + thread_rank(), round * 1000 + thread_rank(), static_cast<int>(pe));
        }
        oxshmem::quiet(oxshmem::block);
        for (uint32_t pe = 0; pe < n; ++pe) {
            // Another thread's word.
            const uint32_t other = (thread_rank() + round) % block_threads();
            EXPECT_EQ(report, oxshmem::g(data + me * block_threads() + other, static_cast<int>(pe)), round * 1000 + other);
        }
        sync_block();
    }
}

// After a fence, puts arrive after those before it: the receiver sees `second` only if it sees
// `first`. Two blocks: one puts, one looks.
OXSHMEM_KERNEL(fence_rounds, uint64_t *first, uint64_t *second, uint64_t rounds, Report *report) {
    const int next = (oxshmem::my_pe() + 1) % oxshmem::n_pes();
    if (block_rank() == 0) {
        for (uint64_t round = 1; round <= rounds; ++round) {
            oxshmem::p(first, round, next);
            oxshmem::fence();
            oxshmem::p(second, round, next);
        }
    } else {
        for (uint64_t seen = 0; seen < rounds;) {
            seen = peek_acquire(second);
            EXPECT(report, peek(first) >= seen);
            pause();
        }
    }
}

// `reachable`: bit i says whether the host calls PE i load/store reachable. Each PE stores its
// number through the pointers.
OXSHMEM_KERNEL(pointers, int *data, uint64_t reachable, Report *report) {
    const int me = oxshmem::my_pe();
    for (int pe = 0; pe < oxshmem::n_pes(); ++pe) {
        int *at = oxshmem::ptr(data + me, pe);
        EXPECT_EQ(report, at != nullptr, (reachable >> pe & 1) != 0);
        if (at != nullptr) {
            store<order::relaxed, reach::system>(at, me + 1);
        }
        int on_stack = 0;
        EXPECT(report, oxshmem::ptr(&on_stack, pe) == nullptr);
    }
    EXPECT(report, oxshmem::ptr(data, me) == data);
    EXPECT(report, oxshmem::ptr(data, -1) == nullptr);
    EXPECT(report, oxshmem::ptr(data, oxshmem::n_pes()) == nullptr);
    oxshmem::barrier_all();
    for (int pe = 0; pe < oxshmem::n_pes(); ++pe) {
        EXPECT_EQ(report, data[pe], (reachable >> pe & 1) != 0 ? pe + 1 : 0);
    }
}
