// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Atomics on 64-bit words. Word e is changed by one thread only, so the value before each operation
// is known; what an operation fetched is kept and checked (src/atomic.rs applies the same
// operations).

#include "common.h"

namespace perftest {

// Numbered as in src/atomic.rs.
enum class AtomicOp : int {
    inc = 0,
    fetch_inc = 1,
    add = 2,
    fetch_add = 3,
    set = 4,
    swap = 5,
    compare_swap = 6,
    bit_and = 7,
    fetch_and = 8,
    bit_or = 9,
    fetch_or = 10,
    bit_xor = 11,
    fetch_xor = 12,
    fetch = 13,
};

OXSHMEM_DEVICE constexpr bool fetches(AtomicOp op) {
    return op != AtomicOp::inc && op != AtomicOp::add && op != AtomicOp::set && op != AtomicOp::bit_and &&
           op != AtomicOp::bit_or && op != AtomicOp::bit_xor;
}

// `operand` of this operation, `previous` one of the operation before on the same word. Returns 0
// if nothing is fetched.
template <AtomicOp Op>
OXSHMEM_DEVICE uint64_t atomic(uint64_t *target, uint64_t operand, [[maybe_unused]] uint64_t previous, int pe) {
    if constexpr (Op == AtomicOp::inc) {
        atomic_inc(target, pe);
    } else if constexpr (Op == AtomicOp::fetch_inc) {
        return atomic_fetch_inc(target, pe);
    } else if constexpr (Op == AtomicOp::add) {
        atomic_add(target, operand, pe);
    } else if constexpr (Op == AtomicOp::fetch_add) {
        return atomic_fetch_add(target, operand, pe);
    } else if constexpr (Op == AtomicOp::set) {
        atomic_set(target, operand, pe);
    } else if constexpr (Op == AtomicOp::swap) {
        return atomic_swap(target, operand, pe);
    } else if constexpr (Op == AtomicOp::compare_swap) {
        return atomic_compare_swap(target, previous, operand, pe);
    } else if constexpr (Op == AtomicOp::bit_and) {
        atomic_and(target, operand, pe);
    } else if constexpr (Op == AtomicOp::fetch_and) {
        return atomic_fetch_and(target, operand, pe);
    } else if constexpr (Op == AtomicOp::bit_or) {
        atomic_or(target, operand, pe);
    } else if constexpr (Op == AtomicOp::fetch_or) {
        return atomic_fetch_or(target, operand, pe);
    } else if constexpr (Op == AtomicOp::bit_xor) {
        atomic_xor(target, operand, pe);
    } else if constexpr (Op == AtomicOp::fetch_xor) {
        return atomic_fetch_xor(target, operand, pe);
    } else {
        static_assert(Op == AtomicOp::fetch);
        return atomic_fetch(target, pe);
    }
    return 0;
}

OXSHMEM_DEVICE constexpr bool changes_one_bit(AtomicOp op) {
    return op == AtomicOp::bit_and || op == AtomicOp::fetch_and || op == AtomicOp::bit_or || op == AtomicOp::fetch_or;
}

// The first of the words that iteration i changes. A word has 64 bits for and, or to change, so
// each 64 iterations of these have words of their own.
template <AtomicOp Op> OXSHMEM_DEVICE uint64_t place(uint64_t i, uint64_t elements) {
    return changes_one_bit(Op) ? i / 64 * elements : 0;
}

// The operand of iteration i, from 0, on word e.
template <AtomicOp Op> OXSHMEM_DEVICE uint64_t operand(uint64_t seed, uint64_t i, uint64_t e) {
    if constexpr (Op == AtomicOp::bit_and || Op == AtomicOp::fetch_and) {
        return ~(1ull << (i + e) % 64);
    } else if constexpr (Op == AtomicOp::bit_or || Op == AtomicOp::fetch_or) {
        return 1ull << (i + e) % 64;
    } else {
        return word(seed, i + 1, e);
    }
}

struct AtomicRun {
    uint64_t *target;
    uint64_t elements, seed, first, iters;
    int pe;
    uint64_t *out, *fetched;

    template <AtomicOp Op> OXSHMEM_DEVICE void one(uint64_t i, uint64_t e) const {
        [[maybe_unused]] const uint64_t old =
            atomic<Op>(target + place<Op>(i, elements) + e, operand<Op>(seed, i, e), word(seed, i, e), pe);
        if constexpr (fetches(Op)) {
            fetched[i * elements + e] = old;
        }
    }

    template <AtomicOp Op> OXSHMEM_DEVICE void bandwidth() const {
        const uint64_t threads = grid_threads();
        begin(out);
        for (uint64_t i = first; i < first + iters; ++i) {
            for (uint64_t e = grid_rank(); e < elements; e += threads) {
                one<Op>(i, e);
            }
        }
        end(out);
    }

    template <AtomicOp Op> OXSHMEM_DEVICE void latency() const {
        for (uint64_t i = 0; i < iters; ++i) {
            const uint64_t from = port::clock_ns();
            one<Op>(first + i, 0);
            quiet();
            out[i] = port::clock_ns() - from;
        }
    }
};

} // namespace perftest

#define PERFTEST_ATOMIC(what)                                                                                                  \
    OXSHMEM_KERNEL(atomic_##what, int op, uint64_t *target, uint64_t elements, uint64_t seed, uint64_t first, uint64_t iters,  \
                   int pe, uint64_t *out, uint64_t *fetched) {                                                                 \
        using Op = perftest::AtomicOp;                                                                                         \
        const perftest::AtomicRun run{target, elements, seed, first, iters, pe, out, fetched};                                 \
        switch (static_cast<Op>(op)) {                                                                                         \
            PERFTEST_CASE(what, inc)                                                                                           \
            PERFTEST_CASE(what, fetch_inc)                                                                                     \
            PERFTEST_CASE(what, add)                                                                                           \
            PERFTEST_CASE(what, fetch_add)                                                                                     \
            PERFTEST_CASE(what, set)                                                                                           \
            PERFTEST_CASE(what, swap)                                                                                          \
            PERFTEST_CASE(what, compare_swap)                                                                                  \
            PERFTEST_CASE(what, bit_and)                                                                                       \
            PERFTEST_CASE(what, fetch_and)                                                                                     \
            PERFTEST_CASE(what, bit_or)                                                                                        \
            PERFTEST_CASE(what, fetch_or)                                                                                      \
            PERFTEST_CASE(what, bit_xor)                                                                                       \
            PERFTEST_CASE(what, fetch_xor)                                                                                     \
            PERFTEST_CASE(what, fetch)                                                                                         \
        }                                                                                                                      \
    }
#define PERFTEST_CASE(what, name)                                                                                              \
    case Op::name:                                                                                                             \
        run.what<Op::name>();                                                                                                  \
        break;
PERFTEST_ATOMIC(bandwidth)
PERFTEST_ATOMIC(latency)
#undef PERFTEST_CASE
#undef PERFTEST_ATOMIC
