// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Small updates of a table that is spread over all PEs, at places that only the program knows: what
// gups and histogram measure. src/updates/stream.rs has the same places and values.

#include "common.h"

#include <oxshmem/aggregate.h>

namespace perftest {

// What an update does to its word.
enum class Update : uint64_t { put = 0, exclusive_or = 1, increment = 2 };

// Word w of the table is word w / n of PE w % n, of n PEs.
struct Updates {
    uint64_t *table; // symmetric
    uint64_t words;  // of the table
    uint64_t count;  // updates of each PE
    uint64_t seed;
    uint64_t skew; // 0: all words alike; else the first are hit more often
    uint64_t update;
};

// The finalizer of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators).
OXSHMEM_DEVICE uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

// `to` is an aggregating context, or nothing.
template <class... To> OXSHMEM_DEVICE void run_updates(const Updates &u, const To &...to) {
    const uint64_t n = static_cast<uint64_t>(n_pes());
    const uint64_t first = static_cast<uint64_t>(my_pe()) * u.count;
    for (uint64_t i = grid_rank(); i < u.count; i += grid_threads()) {
        const uint64_t random = mix(u.seed ^ mix(first + i));
        const uint64_t shift = u.skew == 0 ? 0 : mix(random) % (u.skew + 1);
        const uint64_t word = random % u.words >> shift;
        uint64_t *const target = u.table + word / n;
        const int pe = static_cast<int>(word % n);
        switch (static_cast<Update>(u.update)) {
        case Update::put:
            p(to..., target, mix(word), pe);
            break;
        case Update::exclusive_or:
            atomic_xor(to..., target, random, pe);
            break;
        case Update::increment:
            atomic_add(to..., target, 1, pe);
            break;
        }
    }
    quiet(to..., block);
}

} // namespace perftest

OXSHMEM_BOUNDED_KERNEL(256, perftest_updates, perftest::Updates u) {
    perftest::run_updates(u);
}

OXSHMEM_BOUNDED_KERNEL(256, perftest_updates_aggregated, perftest::Updates u, oxshmem::aggregate::Context context) {
    perftest::run_updates(u, context);
}
