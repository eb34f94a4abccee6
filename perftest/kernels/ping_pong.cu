// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Two PEs take turns. Both run the same kernel; the one with `serve` begins. Round i carries the
// signal `base + i + 1`, so signals only grow and nothing is reset. `times` gets the nanoseconds of
// each round trip.

#include "common.h"

OXSHMEM_KERNEL(signal_ping_pong, uint64_t *signal, uint64_t base, uint64_t iters, int peer, int serve, uint64_t *times) {
    for (uint64_t i = 0; i < iters; ++i) {
        const uint64_t value = base + i + 1;
        const uint64_t from = oxshmem::port::clock_ns();
        if (serve != 0) {
            oxshmem::signal_op(signal, value, oxshmem::SIGNAL_SET, peer);
        }
        if (oxshmem::signal_wait_until(signal, oxshmem::CMP_GE, value) < value) {
            return; // the wait ended with an error, which is recorded
        }
        if (serve == 0) {
            oxshmem::signal_op(signal, value, oxshmem::SIGNAL_SET, peer);
        }
        times[i] = oxshmem::port::clock_ns() - from;
    }
}

namespace perftest {

// Both PEs send the same data. `late` counts the rounds in which the signal was seen before the
// last byte that it stands for.
template <class Scope>
OXSHMEM_DEVICE void put_signal_ping_pong(Scope scope, char *dst, const char *src, uint64_t bytes, uint64_t *signal,
                                         uint64_t base, uint64_t first, uint64_t iters, int peer, int serve, uint64_t *times,
                                         uint64_t *late) {
    for (uint64_t i = 0; i < iters; ++i) {
        const uint64_t value = base + i + 1;
        const char *from = src + shift(first + i);
        const uint64_t start = port::clock_ns();
        if (serve != 0) {
            putmem_signal_nbi(scope, dst, from, bytes, signal, value, SIGNAL_SET, peer);
        }
        if (Scope::rank() == 0) {
            if (signal_wait_until(signal, CMP_GE, value) < value) {
                return; // as above; the scope's other threads wait for no signal
            }
            if (port::load<port::order::relaxed, port::reach::system>(dst + bytes - 1) != from[bytes - 1]) {
                *late += 1;
            }
        }
        Scope::sync();
        if (serve == 0) {
            putmem_signal_nbi(scope, dst, from, bytes, signal, value, SIGNAL_SET, peer);
        }
        if (Scope::rank() == 0) {
            times[i] = port::clock_ns() - start;
        }
    }
    quiet(scope);
}

} // namespace perftest

#define PERFTEST_PUT_SIGNAL(scope)                                                                                             \
    OXSHMEM_KERNEL(put_signal_ping_pong_##scope, char *dst, const char *src, uint64_t bytes, uint64_t *signal, uint64_t base,  \
                   uint64_t first, uint64_t iters, int peer, int serve, uint64_t *times, uint64_t *late) {                     \
        perftest::put_signal_ping_pong(oxshmem::scope, dst, src, bytes, signal, base, first, iters, peer, serve, times, late); \
    }
PERFTEST_PUT_SIGNAL(thread)
PERFTEST_PUT_SIGNAL(warp)
PERFTEST_PUT_SIGNAL(block)
#undef PERFTEST_PUT_SIGNAL
