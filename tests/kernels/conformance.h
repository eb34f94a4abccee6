// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// What the conformance kernels share: how they report a wrong value to the host, and the values
// they send.
#pragma once

#include <oxshmem/oxshmem.h>

namespace conformance {

using namespace oxshmem::port;

// The first wrong value of a launch and how many there were. Mirrored in pe/rig.rs.
struct Report {
    uint64_t failures, line, seen, wanted, block, thread;
};

template <class T> OXSHMEM_DEVICE uint64_t bits(T value) {
    static_assert(sizeof(T) <= 8);
    uint64_t word = 0;
    memcpy(&word, &value, sizeof(T));
    return word;
}

OXSHMEM_NOINLINE void expect(Report *report, int line, uint64_t seen, uint64_t wanted) {
    if (seen != wanted && fetch_add<order::relaxed, reach::device>(&report->failures, uint64_t{1}) == 0) {
        report->line = static_cast<uint64_t>(line);
        report->seen = seen;
        report->wanted = wanted;
        report->block = block_rank();
        report->thread = thread_rank();
    }
}

#define EXPECT_EQ(report, seen, wanted)                                                                                        \
    ::conformance::expect(report, __LINE__, ::conformance::bits(seen), ::conformance::bits(wanted))
#define EXPECT(report, condition) ::conformance::expect(report, __LINE__, static_cast<bool>(condition), true)

// A look at a word that peers write to.
template <class T> OXSHMEM_DEVICE T peek(const T *at) {
    return load<order::relaxed, reach::system>(at);
}
template <class T> OXSHMEM_DEVICE T peek_acquire(const T *at) {
    return load<order::acquire, reach::system>(at);
}

// splitmix64, also in pe/rig.rs.
OXSHMEM_DEVICE uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

// A value of T from a number: the number's low bytes, or a number that T represents exactly.
template <class T> OXSHMEM_DEVICE T make(uint64_t number) {
    if constexpr (sizeof(T) == 16) {
        const uint64_t other = mix(number);
        return T{static_cast<uint32_t>(number), static_cast<uint32_t>(number >> 32), static_cast<uint32_t>(other),
                 static_cast<uint32_t>(other >> 32)};
    } else if constexpr (!std::is_arithmetic_v<T>) {
        return T{static_cast<uint16_t>(number)}; // the narrow floating-point types
    } else {
        return static_cast<T>(number);
    }
}
template <> OXSHMEM_DEVICE float make<float>(uint64_t number) {
    return static_cast<float>(number % 100003) / 4;
}
template <> OXSHMEM_DEVICE double make<double>(uint64_t number) {
    return static_cast<double>(number % 1000003) / 4;
}

template <class T> OXSHMEM_DEVICE bool same(const T &a, const T &b) {
    if constexpr (sizeof(T) == 16) {
        return a.x == b.x && a.y == b.y && a.z == b.z && a.w == b.w;
    } else {
        return bits(a) == bits(b);
    }
}

// Lets `passes` scheduling rounds go by.
OXSHMEM_DEVICE void dawdle(uint32_t passes) {
    for (uint32_t i = 0; i < passes; ++i) {
        pause();
    }
}

// The thread's rank in the grid, and how many there are.
OXSHMEM_DEVICE uint32_t global_rank() {
    return block_rank() * block_threads() + thread_rank();
}
OXSHMEM_DEVICE uint32_t grid_threads() {
    return grid_blocks() * block_threads();
}

} // namespace conformance
