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

// Counts in `late` the words and the last bytes of the data at `dst` that are not those at `from`;
// both are aligned to words. All threads of the scope call it.
template <class Scope> OXSHMEM_DEVICE void count_late(const char *dst, const char *from, uint64_t bytes, uint64_t *late) {
    const uint64_t words = bytes / sizeof(uint64_t), tail = words * sizeof(uint64_t);
    const uint64_t *const there = reinterpret_cast<const uint64_t *>(dst), *const sent =
                                                                               reinterpret_cast<const uint64_t *>(from);
    uint64_t wrong = 0;
    for (uint64_t i = Scope::rank(); i < words; i += Scope::size()) {
        wrong += port::load<port::order::relaxed, port::reach::system>(there + i) != sent[i];
    }
    for (uint64_t i = tail + Scope::rank(); i < bytes; i += Scope::size()) {
        wrong += port::load<port::order::relaxed, port::reach::system>(dst + i) != from[i];
    }
    if (wrong != 0) {
        port::add_to<port::order::relaxed, port::reach::device>(late, wrong);
    }
}

// Both PEs send the same data. With `check` each round compares all of it as soon as its signal was
// seen; what is not there yet is counted in `late`.
template <class Scope>
OXSHMEM_DEVICE void put_signal_ping_pong(Scope scope, char *dst, const char *src, uint64_t bytes, uint64_t *signal,
                                         uint64_t base, uint64_t first, uint64_t iters, int peer, int serve, uint64_t *times,
                                         uint64_t *late, int check) {
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
        }
        Scope::sync();
        if (check != 0) {
            count_late<Scope>(dst, from, bytes, late);
            Scope::sync();
        }
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
                   uint64_t first, uint64_t iters, int peer, int serve, uint64_t *times, uint64_t *late, int check) {          \
        perftest::put_signal_ping_pong(oxshmem::scope, dst, src, bytes, signal, base, first, iters, peer, serve, times, late,  \
                                       check);                                                                                 \
    }
PERFTEST_PUT_SIGNAL(thread)
PERFTEST_PUT_SIGNAL(warp)
PERFTEST_PUT_SIGNAL(block)
#undef PERFTEST_PUT_SIGNAL
