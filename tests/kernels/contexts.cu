// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Contexts of every kind, each used by one block of a grid. Run by pe/contexts.rs.
#include "conformance.h"

#include <oxshmem/batch.h>
#include <oxshmem/typed_context.h>

namespace {

using namespace conformance;

// Mirrored in pe/contexts.rs.
constexpr uint32_t kWords = 512; // of each block's part of a buffer

// Where each operation writes in a block's part.
constexpr uint32_t kPuts = 64, kOne = 192, kStrided = 256, kSignalled = 320, kUsed = 384;
constexpr uint32_t kLocal = 40; // words that are not registered

OXSHMEM_DEVICE uint64_t word_of(int from, uint32_t block, uint32_t i) {
    return mix(static_cast<uint64_t>(from) << 32 | block << 16 | i);
}

// What member `from` leaves in a word of its block's part: strided words have gaps, of zeros.
OXSHMEM_DEVICE uint64_t wanted(int from, uint32_t block, uint32_t i) {
    const bool gap = (i >= kOne + kLocal && i < kStrided) || (i >= kStrided && i < kSignalled && i % 2 != 0);
    return gap ? 0 : word_of(from, block, i);
}

template <class Scope>
OXSHMEM_DEVICE void exchange(oxshmem::Context context, uint64_t *to, const uint64_t *from, uint64_t *back, uint64_t *counter,
                             uint64_t *signal, int peer, int me, Report *report) {
    const uint32_t b = block_rank();
    for (uint32_t i = Scope::rank(); i < kPuts; i += Scope::size()) {
        oxshmem::p(context, to + i, word_of(me, b, i), peer);
    }
    Scope::sync();
    oxshmem::put_nbi(context, Scope{}, to + kPuts, from + kPuts, kOne - kPuts, peer);
    Scope::sync();
    if (Scope::rank() == Scope::size() / 2) {
        uint64_t local[kLocal];
        for (uint32_t i = 0; i < kLocal; ++i) {
            local[i] = word_of(me, b, kOne + i);
        }
        oxshmem::put(context, oxshmem::thread, to + kOne, local, kLocal, peer);
    }
    Scope::sync();
    oxshmem::iput(context, Scope{}, to + kStrided, from + kStrided, 2, 2, (kSignalled - kStrided) / 2, peer);
    oxshmem::atomic_add(context, counter, 2, peer);
    oxshmem::atomic_fetch_inc(context, counter, peer);
    Scope::sync();
    oxshmem::fence(context);
    Scope::sync();
    oxshmem::put_signal_nbi(context, Scope{}, to + kSignalled, from + kSignalled, kUsed - kSignalled, signal, 1,
                            oxshmem::SIGNAL_ADD, peer);
    oxshmem::quiet(context, Scope{});

    // Everything is there, so it can be read again.
    for (uint32_t i = Scope::rank(); i < kUsed; i += Scope::size()) {
        EXPECT_EQ(report, oxshmem::g(context, to + i, peer), wanted(me, b, i));
    }
    EXPECT_EQ(report, oxshmem::atomic_fetch(context, counter, peer), 3 * Scope::size());
    Scope::sync();
    oxshmem::get(context, Scope{}, back, to, kUsed / 2, peer);
    oxshmem::get_nbi(context, Scope{}, back + kUsed / 2, to + kUsed / 2, kUsed / 2, peer);
    oxshmem::quiet(context, Scope{});
    for (uint32_t i = Scope::rank(); i < kUsed; i += Scope::size()) {
        EXPECT_EQ(report, peek(back + i), wanted(me, b, i));
    }
    Scope::sync();
    oxshmem::iget(context, Scope{}, back, to + 1, 1, 3, 32, peer);
    for (uint32_t i = Scope::rank(); i < 32; i += Scope::size()) {
        EXPECT_EQ(report, peek(back + i), wanted(me, b, 1 + 3 * i));
    }
}

} // namespace

// Each block sends through its context to member `peer`, by the widest scope that the context is
// for. `batched`: without a doorbell for each put.
OXSHMEM_KERNEL(context_exchange, const oxshmem::Context *contexts, uint64_t *inbox, const uint64_t *outbox, uint64_t *back,
               uint64_t *counters, uint64_t *signals, int peer, int me, int use_batches, Report *report) {
    const uint32_t b = block_rank();
    oxshmem::Context context = read(contexts + b);
    if (use_batches != 0) {
        context = oxshmem::batched(context);
    }
    uint64_t *const to = inbox + b * kWords, *const home = back + b * kWords;
    const uint64_t *const from = outbox + b * kWords;
    if ((context.how & oxshmem::abi::kContextAlone) != 0) {
        if (thread_rank() == 0) {
            exchange<oxshmem::thread_scope>(context, to, from, home, counters + b, signals + b, peer, me, report);
        }
    } else if ((context.how & oxshmem::abi::kContextWarp) != 0) {
        if (thread_rank() < 32) {
            exchange<oxshmem::warp_scope>(context, to, from, home, counters + b, signals + b, peer, me, report);
        }
    } else {
        exchange<oxshmem::block_scope>(context, to, from, home, counters + b, signals + b, peer, me, report);
    }
}

// What this PE sends.
OXSHMEM_KERNEL(context_fill, uint64_t *outbox, int me) {
    for (uint32_t i = thread_rank(); i < kWords; i += block_threads()) {
        outbox[block_rank() * kWords + i] = word_of(me, block_rank(), i);
    }
}

// What member `from` has sent by context_exchange, by `lanes` lanes of each block.
OXSHMEM_KERNEL(context_check, const uint64_t *inbox, const uint64_t *counters, const uint64_t *signals, int from,
               uint32_t lanes, Report *report) {
    for (uint32_t i = thread_rank(); i < kUsed; i += block_threads()) {
        EXPECT_EQ(report, peek(inbox + block_rank() * kWords + i), wanted(from, block_rank(), i));
    }
    EXPECT_EQ(report, peek(counters + block_rank()), uint64_t{3} * lanes);
    EXPECT_EQ(report, peek(signals + block_rank()), uint64_t{1});
}

// Puts `n` words, one after another, of which every `each` share a doorbell.
OXSHMEM_KERNEL(context_batches, oxshmem::Context context, uint64_t *dst, uint32_t n, uint32_t each, int peer) {
    const oxshmem::Context batch = oxshmem::batched(context);
    for (uint32_t i = 0; i < n; ++i) {
        // No put is next to the one before it.
        oxshmem::p(batch, dst + i * 7 % n, word_of(0, 0, i * 7 % n), peer);
        if (i % each == each - 1) {
            oxshmem::flush(batch);
        }
    }
    oxshmem::quiet(batch);
}

OXSHMEM_KERNEL(context_batches_out, const uint64_t *dst, uint32_t n, Report *report) {
    for (uint32_t i = thread_rank(); i < n; i += block_threads()) {
        EXPECT_EQ(report, peek(dst + i), word_of(0, 0, i));
    }
}

// Leaves a batch, and waits for what a blocking operation on it brings: that operation rings for
// all.
OXSHMEM_KERNEL(context_unflushed, oxshmem::Context context, uint64_t *dst, int peer, Report *report) {
    const oxshmem::Context batch = oxshmem::batched(context);
    oxshmem::p(batch, dst, uint64_t{11}, peer);
    oxshmem::p(batch, dst + 8, uint64_t{22}, peer);
    EXPECT_EQ(report, oxshmem::g(batch, dst, peer), uint64_t{11});
    oxshmem::p(batch, dst, uint64_t{33}, peer);
    EXPECT_EQ(report, oxshmem::atomic_fetch_add(batch, dst + 8, uint64_t{1}, peer), uint64_t{22});
    EXPECT_EQ(report, oxshmem::g(batch, dst, peer), uint64_t{33});
}

// All threads of the grid put through one context.
OXSHMEM_KERNEL(context_crowd, oxshmem::Context context, uint64_t *dst, uint32_t each, int peer) {
    for (uint32_t i = 0; i < each; ++i) {
        oxshmem::p(context, dst + global_rank(), static_cast<uint64_t>(i) + 1, peer);
    }
}

OXSHMEM_KERNEL(context_put, oxshmem::Context context, uint64_t *dst, int peer) {
    oxshmem::p(context, dst, uint64_t{1}, peer);
    oxshmem::quiet(context);
}

// Puts `n` words, and waits for nothing.
// Puts to addresses that are in no heap, which follow each other.
OXSHMEM_KERNEL(context_stray, oxshmem::Context context, int peer) {
    oxshmem::p(context, reinterpret_cast<uint64_t *>(uint64_t{1} << 60) + thread_rank(), uint64_t{1}, peer);
}

OXSHMEM_KERNEL(context_unquiet, oxshmem::Context context, uint64_t *dst, uint32_t n, int peer) {
    for (uint32_t i = 0; i < n; ++i) {
        oxshmem::p(context, dst + i, uint64_t{i} + 1, peer);
    }
}

// Each named p, g, put and get, and the named atomics of each type, by one thread: `cells` at
// `peer` are a word for each call.
OXSHMEM_KERNEL(context_names, oxshmem_ctx_t context, uint64_t *cells, int peer, Report *report) {
    uint64_t *cell = cells;
#define VALUE(name, T)                                                                                                         \
    oxshmem_ctx_##name##_p(context, reinterpret_cast<T *>(cell), static_cast<T>(21), peer);                                    \
    EXPECT_EQ(report, oxshmem_ctx_##name##_g(context, reinterpret_cast<T *>(cell), peer), static_cast<T>(21));                 \
    oxshmem_ctx_##name##_put(context, reinterpret_cast<T *>(cell), reinterpret_cast<const T *>(cell + 1), 1, peer);            \
    oxshmem_ctx_##name##_get(context, reinterpret_cast<T *>(cell + 2), reinterpret_cast<const T *>(cell), 1, peer);            \
    EXPECT_EQ(report, read(reinterpret_cast<T *>(cell + 2)), read(reinterpret_cast<T *>(cell + 1)));                           \
    cell += 3;
    OXSHMEM_FOR_EACH_RMA_TYPE(VALUE)
#undef VALUE
#define COUNTER(name, T)                                                                                                       \
    oxshmem_ctx_##name##_atomic_set(context, reinterpret_cast<T *>(cell), 5, peer);                                            \
    oxshmem_ctx_##name##_atomic_inc(context, reinterpret_cast<T *>(cell), peer);                                               \
    EXPECT_EQ(report, oxshmem_ctx_##name##_atomic_fetch_add(context, reinterpret_cast<T *>(cell), 2, peer),                    \
              static_cast<T>(6));                                                                                              \
    EXPECT_EQ(report, oxshmem_ctx_##name##_atomic_compare_swap(context, reinterpret_cast<T *>(cell), 8, 1, peer),              \
              static_cast<T>(8));                                                                                              \
    EXPECT_EQ(report, oxshmem_ctx_##name##_atomic_swap(context, reinterpret_cast<T *>(cell), 3, peer), static_cast<T>(1));     \
    EXPECT_EQ(report, oxshmem_ctx_##name##_atomic_fetch(context, reinterpret_cast<T *>(cell), peer), static_cast<T>(3));       \
    ++cell;
    OXSHMEM_FOR_EACH_STANDARD_ATOMIC_TYPE(COUNTER)
#undef COUNTER
    const oxshmem_ctx_t batch = oxshmemx_ctx_batched(context);
    oxshmem_ctx_putmem_nbi(batch, cell, cells, 8, peer);
    oxshmemx_ctx_flush(batch);
    oxshmem_ctx_fence(context);
    oxshmemx_ctx_signal_op(context, cell + 1, 7, oxshmem::SIGNAL_SET, peer);
    oxshmem_ctx_quiet(context);
    EXPECT_EQ(report, oxshmem_ctx_uint64_g(context, cell + 1, peer), uint64_t{7});
}

// Batches: adjacent words that share work requests, words that do not, arrays, a fence between, and
// more than the queue holds.
OXSHMEM_KERNEL(context_scopes, oxshmem::Context context, uint64_t *dst, const uint64_t *src, uint32_t n, int peer) {
    {
        oxshmem::Batch batch(context, peer);
        for (uint32_t i = 0; i < n; ++i) {
            batch.p(dst + i, word_of(1, 0, i));
        }
        batch.fence();
        for (uint32_t i = 0; i < n; i += 2) {
            batch.p(dst + i, word_of(0, 0, i));
            batch.p(reinterpret_cast<uint32_t *>(dst + i + 1), static_cast<uint32_t>(word_of(0, 0, i + 1)));
            batch.p(reinterpret_cast<uint32_t *>(dst + i + 1) + 1, static_cast<uint32_t>(word_of(0, 0, i + 1) >> 32));
            if (i % 64 == 62) {
                batch.flush();
            }
        }
        for (uint32_t i = 0; i < n; i += 8) {
            batch.put_nbi(dst + n + i, src + i, 8);
        }
        // Not registered, and not whole.
        const uint64_t own[2] = {word_of(0, 0, 2 * n), word_of(0, 0, 2 * n + 1)};
        batch.put_nbi(dst + 2 * n, own, 2);
        batch.p(dst + 2 * n + 2, uint64_t{5});
    }
    oxshmem::quiet(context);
}

// A batch, and a put beside it to the same PE. Launch it with one thread.
OXSHMEM_KERNEL(context_beside_batch, oxshmem::Context context, uint64_t *dst, int peer) {
    oxshmem::Batch batch(context, peer);
    batch.p(dst, uint64_t{1});
    oxshmem::p(context, dst + 8, uint64_t{2}, peer);
    batch.p(dst + 16, uint64_t{3});
}

OXSHMEM_KERNEL(context_scopes_out, const uint64_t *dst, uint32_t n, Report *report) {
    for (uint32_t i = 0; i < 2 * n + 2; ++i) {
        EXPECT_EQ(report, peek(dst + i), word_of(0, 0, i));
    }
    EXPECT_EQ(report, peek(dst + 2 * n + 2), uint64_t{5});
}
