// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Kernels that post through contexts of their own. The host has created as many as the row says,
// each for one thread, warp or CTA. A part of kernels.h.
#pragma once

#include <oxshmem/batch.h>

namespace compare {

// The calling thread puts its part of each message. `batch` puts share a doorbell.
COMPARE_DEVICE void context_put(const Run &run, uint64_t batch) {
    const oxshmem::Context context = run.contexts[grid_rank()];
    const oxshmem::Context posting = batch > 1 ? oxshmem::batched(context) : context;
    const uint64_t part = run.bytes / groups(thread), at = group(thread) * part;
    const auto iterate = [&](uint64_t first, uint64_t last) {
        for (uint64_t i = first; i < last; ++i) {
            oxshmem::putmem_nbi(posting, thread, run.dst + away(run, i) + at, run.src + shift(i) + at, part, run.pe);
            if (batch > 1 && i % batch == batch - 1) {
                oxshmem::flush(posting);
            }
        }
    };
    timed_loops(run, iterate, [&] { oxshmem::quiet(context); });
}

// The same through a scope object, which joins adjacent puts until it rings.
COMPARE_DEVICE void batch_put(const Run &run, uint64_t batch) {
    const oxshmem::Context context = run.contexts[grid_rank()];
    const uint64_t part = run.bytes / groups(thread), at = group(thread) * part;
    const auto iterate = [&](uint64_t first, uint64_t last) {
        oxshmem::Batch puts(context, run.pe);
        for (uint64_t i = first; i < last; ++i) {
            puts.putmem_nbi(run.dst + away(run, i) + at, run.src + shift(i) + at, part);
            if (i % batch == batch - 1) {
                puts.flush();
            }
        }
    };
    timed_loops(run, iterate, [&] { oxshmem::quiet(context); });
}

COMPARE_DEVICE void context_p_quiet(const Run &run) {
    const oxshmem::Context context = run.contexts[grid_rank()];
    const auto iterate = [&](uint64_t first, uint64_t last) {
        for (uint64_t i = first; i < last; ++i) {
            oxshmem::p(context, word_away(run, run.dst, i), value(run.base, i, 0), run.pe);
            oxshmem::quiet(context);
        }
    };
    timed_loops(run, iterate, [] {});
}

// As p_bw, each warp in a context of its own.
COMPARE_DEVICE void context_p_warp(const Run &run) {
    const oxshmem::Context context = run.contexts[group(warp)];
    uint64_t *dst = reinterpret_cast<uint64_t *>(run.dst);
    const uint64_t elements = run.bytes / sizeof(uint64_t), threads = grid_threads();
    const auto iterate = [&](uint64_t first, uint64_t last) {
        for (uint64_t i = first; i < last; ++i) {
            for (uint64_t e = grid_rank(); e < elements; e += threads) {
                oxshmem::p(context, dst + e * run.stride, value(run.base, i, e), run.pe);
            }
        }
    };
    timed_loops(run, iterate, [&] {
        oxshmem::quiet(context, warp);
        __syncthreads();
    });
}

// What the null card does by itself: as context_p_warp, but no request is written. One lane of each
// warp rings for as many requests as its queue holds, and waits until the card has completed them.
// For the null card alone, which does not read what it completes.
COMPARE_DEVICE void null_card(const Run &run) {
    using namespace oxshmem::detail;
    const oxshmem::Context context = run.contexts[group(warp)];
    const bool rings = threadIdx.x % 32 == 0 && context.qps != 0;
    if (rings) {
        // Then there is an account of the queue.
        oxshmem::p(context, run.dst, char{}, run.pe);
        oxshmem::quiet(context);
    }
    const auto iterate = [&](uint64_t first, uint64_t last) {
        if (!rings) {
            return;
        }
        Qp &qp = qp_of_member(context, static_cast<uint32_t>(run.pe));
        const uint64_t depth = uint64_t{1} << qp.depth_log2, each = inline_blocks(32 * sizeof(uint64_t)), most = depth / each;
        uint64_t end = account_of(qp).reserved;
        while (first < last) {
            const uint64_t now = last - first < most ? last - first : most;
            first += now;
            end += now * each;
            ring_alone(qp, bell_of(qp), end);
            if (wait_alone(qp, {end, end - now * each + depth, 0}, oxshmem::detail::Op::quiet) != Outcome::complete) {
                return;
            }
        }
    };
    timed_loops(run, iterate, [] { __syncthreads(); });
}

// As put_signal_rate, each CTA in a context of its own: what an all-to-all posts.
COMPARE_DEVICE void context_put_signal(const Run &run) {
    const oxshmem::Context context = run.contexts[blockIdx.x];
    const uint64_t part = run.bytes / gridDim.x, at = blockIdx.x * part;
    const auto iterate = [&](uint64_t first, uint64_t last) {
        for (uint64_t i = first; i < last; ++i) {
            oxshmem::putmem_signal_nbi(context, block, run.dst + away(run, i) + at, run.src + shift(i) + at, part,
                                       run.signals + blockIdx.x, run.base + i + 1, oxshmem::SIGNAL_SET, run.pe);
        }
    };
    timed_loops(run, iterate, [&] { oxshmem::quiet(context, block); });
}

} // namespace compare
