// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Signals: data is there when its signal is. Launched with two blocks; block 0 sends, block 1
// receives.
#include "conformance.h"

namespace {

using namespace conformance;

OXSHMEM_DEVICE unsigned char byte_of(int from, int to, uint32_t round, uint64_t i) {
    return static_cast<unsigned char>(mix((static_cast<uint64_t>(from) * 64 + static_cast<uint64_t>(to)) * 64 + round) >>
                                      (i % 8 * 8)) ^
           static_cast<unsigned char>(i / 8);
}

// Waits for `wanted` from every PE, in any order, and compares what it announces.
OXSHMEM_DEVICE void receive(const unsigned char *in, uint64_t bytes, const uint64_t *signals, uint32_t round, uint64_t wanted,
                            Report *report) {
    for (int i = 1; i <= oxshmem::n_pes(); ++i) {
        const int from = (oxshmem::my_pe() + i) % oxshmem::n_pes();
        // Every thread waits and checks: none may see the signal without the data.
        EXPECT(report, oxshmem::signal_wait_until(signals + from, oxshmem::CMP_GE, wanted) >= wanted);
        const unsigned char *data = in + static_cast<uint64_t>(from) * bytes;
        for (uint64_t k = thread_rank(); k < bytes; k += block_threads()) {
            EXPECT_EQ(report, data[k], byte_of(from, oxshmem::my_pe(), round, k));
        }
    }
}

template <class S>
OXSHMEM_DEVICE void send(unsigned char *dst, const unsigned char *src, uint64_t bytes, uint64_t *signal, uint64_t value,
                         oxshmem::SignalOp op, int pe, bool nbi) {
    if (thread_rank() >= S::size()) {
        return;
    }
    if (nbi) {
        oxshmem::putmem_signal_nbi(S{}, dst, src, bytes, signal, value, op, pe);
    } else {
        oxshmem::putmem_signal(S{}, dst, src, bytes, signal, value, op, pe);
    }
}

} // namespace

// `in`: `rounds` x n_pes x `bytes`; `out` the same; `signals`: n_pes words, 0. Scope 0 thread, 1
// warp, 2 block. With `elsewhere`, the data leaves from shared memory (`bytes` of it).
OXSHMEM_KERNEL(put_signal_rounds, unsigned char *in, unsigned char *out, uint64_t bytes, uint64_t *signals, uint32_t rounds,
               uint32_t scope, uint32_t nbi, uint32_t add, uint32_t elsewhere, Report *report) {
    OXSHMEM_DYNAMIC_SHARED(unsigned char, shared);
    const int n = oxshmem::n_pes();
    const int me = oxshmem::my_pe();
    const uint64_t round_bytes = static_cast<uint64_t>(n) * bytes;
    for (uint32_t round = 0; round < rounds; ++round) {
        if (block_rank() == 1) {
            receive(in + round * round_bytes, bytes, signals, round, round + 1, report);
            continue;
        }
        for (int i = 0; i < n; ++i) {
            const int to = (me + round + i) % n;
            unsigned char *data = elsewhere ? shared : out + round * round_bytes + static_cast<uint64_t>(to) * bytes;
            sync_block();
            for (uint64_t k = thread_rank(); k < bytes; k += block_threads()) {
                data[k] = byte_of(me, to, round, k);
            }
            sync_block();
            unsigned char *dst = in + round * round_bytes + static_cast<uint64_t>(me) * bytes;
            const auto op = add ? oxshmem::SIGNAL_ADD : oxshmem::SIGNAL_SET;
            const uint64_t value = add ? 1 : round + 1;
            if (scope == 0) {
                send<oxshmem::thread_scope>(dst, data, bytes, signals + me, value, op, to, nbi != 0);
            } else if (scope == 1) {
                send<oxshmem::warp_scope>(dst, data, bytes, signals + me, value, op, to, nbi != 0);
            } else {
                send<oxshmem::block_scope>(dst, data, bytes, signals + me, value, op, to, nbi != 0);
            }
            if (elsewhere && nbi) {
                oxshmem::quiet(oxshmem::block);
            }
        }
    }
}

// A signal follows the puts of its block: all threads put, the block meets, fences, and one thread
// signals.
OXSHMEM_KERNEL(signal_behind_puts, unsigned char *in, unsigned char *out, uint64_t bytes, uint64_t *signals, uint32_t rounds,
               uint32_t form, Report *report) {
    const int n = oxshmem::n_pes();
    const int me = oxshmem::my_pe();
    const uint64_t round_bytes = static_cast<uint64_t>(n) * bytes;
    for (uint32_t round = 0; round < rounds; ++round) {
        if (block_rank() == 1) {
            receive(in + round * round_bytes, bytes, signals, round, round + 1, report);
            continue;
        }
        for (int i = 0; i < n; ++i) {
            const int to = (me + i) % n;
            unsigned char *dst = in + round * round_bytes + static_cast<uint64_t>(me) * bytes;
            unsigned char *data = out + round * round_bytes + static_cast<uint64_t>(to) * bytes;
            if (form == 0) {
                for (uint64_t k = thread_rank(); k < bytes; k += block_threads()) {
                    oxshmem::p(dst + k, byte_of(me, to, round, k), to);
                }
            } else {
                for (uint64_t k = thread_rank(); k < bytes; k += block_threads()) {
                    data[k] = byte_of(me, to, round, k);
                }
                sync_block();
                oxshmem::putmem_nbi(oxshmem::block, dst, data, bytes, to);
            }
            oxshmem::fence();
            sync_block();
            if (thread_rank() == 0) {
                oxshmem::signal_op(signals + me, 1, oxshmem::SIGNAL_ADD, to);
            }
        }
    }
}

// The previous PE makes each comparison come true in turn; the answer tells it to go on. `signals`:
// 6 words that just miss their comparisons, and one for the answers.
OXSHMEM_KERNEL(signal_comparisons, uint64_t *signals, Report *report) {
    using namespace oxshmem;
    struct Rung {
        Compare cmp;
        uint64_t against, sent;
    };
    const Rung rungs[6] = {
        {CMP_EQ, 3, 3},   {CMP_NE, 0, ~0ull}, {CMP_GT, 1ull << 63, (1ull << 63) + 1},
        {CMP_LE, 50, 50}, {CMP_LT, 50, 49},   {CMP_GE, 7, 7},
    };
    const int next = (my_pe() + 1) % n_pes();
    const int previous = (my_pe() + n_pes() - 1) % n_pes();
    if (block_rank() == 0) {
        for (uint64_t i = 0; i < 6; ++i) {
            EXPECT(report, signal_wait_until(signals + 6, CMP_EQ, i) == i); // the next PE has passed i rungs
            dawdle(50);
            signal_op(signals + i, rungs[i].sent, SIGNAL_SET, next);
        }
    } else {
        for (uint64_t i = 0; i < 6; ++i) {
            EXPECT_EQ(report, test(signals + i, rungs[i].cmp, rungs[i].against), 0);
            signal_op(signals + 6, i, SIGNAL_SET, previous);
            EXPECT_EQ(report, signal_wait_until(signals + i, rungs[i].cmp, rungs[i].against), rungs[i].sent);
            EXPECT_EQ(report, signal_fetch(signals + i), rungs[i].sent);
        }
    }
}

// All threads of all PEs add to every PE's signal.
OXSHMEM_KERNEL(signal_sums, uint64_t *signal, uint32_t times, Report *report) {
    for (uint32_t i = 0; i < times; ++i) {
        for (int pe = 0; pe < oxshmem::n_pes(); ++pe) {
            oxshmem::signal_op(signal, (1ull << 40) + 1, oxshmem::SIGNAL_ADD, pe);
        }
    }
    const uint64_t all = ((1ull << 40) + 1) * times * grid_threads() * static_cast<uint64_t>(oxshmem::n_pes());
    EXPECT_EQ(report, oxshmem::signal_wait_until(signal, oxshmem::CMP_EQ, all), all);
}
