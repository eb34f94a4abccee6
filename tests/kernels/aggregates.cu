// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Aggregating contexts. Run by pe/aggregates.rs.
#include "conformance.h"

#include <oxshmem/aggregate.h>

namespace {

using namespace conformance;

// Mirrored in pe/aggregates.rs.
constexpr uint32_t kBytes = 700;  // of a put that takes several records
constexpr uint32_t kRounds = 100; // stores to one word, one after another

// What a member has for each other one: the part of member `from` is written by it alone.
struct alignas(128) Part {
    uint64_t last; // of kRounds values
    uint64_t word;
    uint32_t half;
    uint16_t quarter;
    uint8_t byte;
    uint8_t unaligned[kBytes + 5];
    uint64_t tail[4]; // put with the signal
    uint64_t flag;    // what follows a fence
    uint64_t signal;
};

// Words that all members change.
struct Shared {
    uint64_t sum, bits, mask, toggled;
    uint32_t half_sum, half_toggled;
};

OXSHMEM_DEVICE uint64_t value(int from, int to, uint32_t turn, uint32_t what) {
    return mix(static_cast<uint64_t>(from) << 48 | static_cast<uint64_t>(to) << 32 | static_cast<uint64_t>(turn) << 16 | what);
}
OXSHMEM_DEVICE uint8_t byte_of(int from, int to, uint32_t turn, uint32_t i) {
    return static_cast<uint8_t>(value(from, to, turn, 100) + i * 7);
}

} // namespace

// Fills what is put.
OXSHMEM_KERNEL(aggregate_fill, uint8_t *source, int me, int peer, uint32_t turn) {
    for (uint32_t i = thread_rank(); i < kBytes; i += block_threads()) {
        source[i] = byte_of(me, peer, turn, i);
    }
}

// Sends everything to one member, by one block.
OXSHMEM_KERNEL(aggregate_send, oxshmem::aggregate::Context context, Part *parts, Shared *shared, const uint8_t *source,
               uint64_t *tail, int me, int peer, uint32_t turn) {
    Part *const part = parts + me;
    const uint32_t t = thread_rank();
    if (t == 0) {
        // One word by many stores: the last one counts.
        for (uint32_t i = 0; i < kRounds; ++i) {
            oxshmem::p(context, &part->last, value(me, peer, turn, i), peer);
        }
        oxshmem::p(context, &part->word, value(me, peer, turn, 101), peer);
        oxshmem::p(context, &part->half, static_cast<uint32_t>(value(me, peer, turn, 102)), peer);
        oxshmem::p(context, &part->quarter, static_cast<uint16_t>(value(me, peer, turn, 103)), peer);
        oxshmem::p(context, &part->byte, static_cast<uint8_t>(value(me, peer, turn, 104)), peer);
        for (uint32_t i = 0; i < 4; ++i) {
            tail[i] = value(me, peer, turn, 200 + i);
        }
    }
    sync_block();
    oxshmem::put(context, oxshmem::block, part->unaligned + 3, source, size_t{kBytes}, peer);
    oxshmem::put(context, oxshmem::block, part->unaligned, source, size_t{0}, peer);
    oxshmem::atomic_add(context, &shared->sum, t + 1, peer);
    oxshmem::atomic_inc(context, &shared->half_sum, peer);
    oxshmem::atomic_or(context, &shared->bits, uint64_t{1} << t % 64, peer);
    oxshmem::atomic_and(context, &shared->mask, ~(uint64_t{1} << t % 64), peer);
    oxshmem::atomic_xor(context, &shared->toggled, uint64_t{1} << t % 64, peer);
    oxshmem::atomic_xor(context, &shared->half_toggled, 1u << t % 32, peer);
    sync_block();
    if (t < 32) {
        oxshmem::put_signal_nbi(context, oxshmem::warp, part->tail, tail, 4, &part->signal, 1, oxshmem::SIGNAL_ADD, peer);
    }
    sync_block();
    if (t == 0) {
        oxshmem::fence(context);
        oxshmem::p(context, &part->flag, uint64_t{turn} + 1, peer);
        oxshmem::flush(context);
    }
}

// Waits for what a member sends, and checks all that precedes the fence.
OXSHMEM_KERNEL(aggregate_receive, const Part *parts, int me, int from, uint32_t turn, Report *report) {
    const Part *const part = parts + from;
    if (thread_rank() == 0) {
        oxshmem::signal_wait_until(&part->signal, oxshmem::Compare::ge, uint64_t{turn} + 1);
        for (uint32_t i = 0; i < 4; ++i) {
            EXPECT_EQ(report, peek(part->tail + i), value(from, me, turn, 200 + i));
        }
        oxshmem::wait_until(&part->flag, oxshmem::Compare::ge, uint64_t{turn} + 1);
    }
    sync_block();
    EXPECT_EQ(report, peek(&part->last), value(from, me, turn, kRounds - 1));
    EXPECT_EQ(report, peek(&part->word), value(from, me, turn, 101));
    EXPECT_EQ(report, peek(&part->half), static_cast<uint32_t>(value(from, me, turn, 102)));
    EXPECT_EQ(report, peek(&part->quarter), static_cast<uint16_t>(value(from, me, turn, 103)));
    EXPECT_EQ(report, peek(&part->byte), static_cast<uint8_t>(value(from, me, turn, 104)));
    for (uint32_t i = thread_rank(); i < kBytes; i += block_threads()) {
        EXPECT_EQ(report, peek(part->unaligned + 3 + i), byte_of(from, me, turn, i));
    }
    EXPECT_EQ(report, peek(part->unaligned + 2), uint8_t{0});
    EXPECT_EQ(report, peek(part->unaligned + 3 + kBytes), uint8_t{0});
}

// After quiet, every store is there: reads it back by an ordinary get.
OXSHMEM_KERNEL(aggregate_complete, oxshmem::aggregate::Context context, uint64_t *words, uint32_t n, int me, int members,
               const int *pes, Report *report) {
    for (uint32_t i = thread_rank(); i < n; i += block_threads()) {
        for (int peer = 0; peer < members; ++peer) {
            oxshmem::p(context, words + static_cast<uint32_t>(me) * n + i, value(me, peer, i, 300), peer);
        }
    }
    oxshmem::quiet(context, oxshmem::block);
    for (uint32_t i = thread_rank(); i < n; i += block_threads()) {
        for (int peer = 0; peer < members; ++peer) {
            const uint64_t *const word = words + static_cast<uint32_t>(me) * n + i;
            EXPECT_EQ(report, oxshmem::g(word, pes[peer]), value(me, peer, i, 300));
        }
    }
}

// Puts `n` words to a member, and waits for nothing.
OXSHMEM_KERNEL(aggregate_put_words, oxshmem::aggregate::Context context, uint64_t *words, uint32_t n, int pe) {
    for (uint32_t i = thread_rank(); i < n; i += block_threads()) {
        oxshmem::p(context, words + i, uint64_t{i} + 1, pe);
    }
}

OXSHMEM_KERNEL(aggregate_quiet, oxshmem::aggregate::Context context) {
    oxshmem::quiet(context);
}

OXSHMEM_KERNEL(aggregate_await, const uint64_t *word, uint64_t wanted) {
    oxshmem::wait_until(word, oxshmem::Compare::eq, wanted);
}

// Adds `n` times by each thread, to words of a member in turn, and completes that. All blocks stay
// until all PEs have come so far, so the grid occupies the device while the services of this PE
// have work of others. `met`: two words of this PE's heap, 0.
OXSHMEM_KERNEL(aggregate_occupy, oxshmem::aggregate::Context context, uint64_t *words, uint32_t n_words, uint32_t n,
               uint64_t *met, int peer) {
    const uint32_t mine = block_rank() * block_threads() + thread_rank();
    for (uint32_t i = 0; i < n; ++i) {
        oxshmem::atomic_add(context, words + (mine + i * 31) % n_words, uint64_t{1}, peer);
    }
    oxshmem::quiet(context, oxshmem::block);
    if (thread_rank() == 0) {
        fetch_add<order::release, reach::system>(met, uint64_t{1});
    }
    if (block_rank() == 0) {
        if (thread_rank() == 0) {
            oxshmem::wait_until(met, oxshmem::Compare::eq, uint64_t{grid_blocks()});
        }
        sync_block();
        oxshmem::barrier_all(oxshmem::block);
        if (thread_rank() == 0) {
            store<order::release, reach::system>(met + 1, uint64_t{1});
        }
    } else if (thread_rank() == 0) {
        oxshmem::wait_until(met + 1, oxshmem::Compare::eq, uint64_t{1});
    }
}
