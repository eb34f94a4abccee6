// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Atomics: values against a model, and contention of all threads of all PEs.
#include "conformance.h"

namespace {

using namespace conformance;

template <class T> struct wide { using type = std::make_unsigned_t<T>; };

// Wrapping arithmetic on T.
template <class T> OXSHMEM_DEVICE T plus(T a, T b) {
    using U = typename wide<T>::type;
    return static_cast<T>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
}

// `steps` random operations on one word that no other thread uses, compared with a model after
// each.
template <class T> OXSHMEM_DEVICE void values(Report *report, T *word, int pe, uint32_t steps, uint64_t seed) {
    using namespace oxshmem;
    using U = typename wide<T>::type;
    constexpr T most = static_cast<T>(static_cast<U>(~U{0}) >> (std::is_signed_v<T> ? 1 : 0));
    T model = most;
    atomic_set(word, model, pe);
    atomic_inc(word, pe); // wraps
    model = plus(model, T{1});
    for (uint32_t i = 0; i < steps; ++i) {
        const uint64_t random = mix(seed + i);
        // Small, negative, and any operand.
        const T operand =
            random % 3 == 0 ? static_cast<T>(random >> 60) : static_cast<T>(random % 3 == 1 ? 0 - (random >> 60) : random);
        switch (random / 3 % 16) {
        case 0:
            atomic_set(word, operand, pe);
            model = operand;
            break;
        case 1:
            EXPECT_EQ(report, atomic_swap(word, operand, pe), model);
            model = operand;
            break;
        case 2:
            EXPECT_EQ(report, atomic_compare_swap(word, model, operand, pe), model);
            model = operand;
            break;
        case 3:
            EXPECT_EQ(report, atomic_compare_swap(word, static_cast<T>(model ^ T{1}), operand, pe), model);
            break;
        case 4:
            // Differs in the highest bit only.
            EXPECT_EQ(
                report,
                atomic_compare_swap(word, static_cast<T>(static_cast<U>(model) ^ (U{1} << (8 * sizeof(T) - 1))), operand, pe),
                model);
            break;
        case 5:
            atomic_add(word, operand, pe);
            model = plus(model, operand);
            break;
        case 6:
            EXPECT_EQ(report, atomic_fetch_add(word, operand, pe), model);
            model = plus(model, operand);
            break;
        case 7:
            atomic_inc(word, pe);
            model = plus(model, T{1});
            break;
        case 8:
            EXPECT_EQ(report, atomic_fetch_inc(word, pe), model);
            model = plus(model, T{1});
            break;
        case 9:
            atomic_and(word, operand, pe);
            model = static_cast<T>(model & operand);
            break;
        case 10:
            EXPECT_EQ(report, atomic_fetch_and(word, operand, pe), model);
            model = static_cast<T>(model & operand);
            break;
        case 11:
            atomic_or(word, operand, pe);
            model = static_cast<T>(model | operand);
            break;
        case 12:
            EXPECT_EQ(report, atomic_fetch_or(word, operand, pe), model);
            model = static_cast<T>(model | operand);
            break;
        case 13:
            atomic_xor(word, operand, pe);
            model = static_cast<T>(model ^ operand);
            break;
        case 14:
            EXPECT_EQ(report, atomic_fetch_xor(word, operand, pe), model);
            model = static_cast<T>(model ^ operand);
            break;
        default:
            // To the edge, for the next addition.
            atomic_set(word, most, pe);
            model = most;
            break;
        }
        EXPECT_EQ(report, atomic_fetch(word, pe), model);
    }
}

template <class T> OXSHMEM_DEVICE void real_values(Report *report, T *word, int pe, uint64_t seed) {
    using namespace oxshmem;
    atomic_set(word, T(-0.0), pe);
    EXPECT_EQ(report, atomic_fetch(word, pe), T(-0.0));
    T model = T(-0.0);
    for (uint32_t i = 0; i < 16; ++i) {
        const T next = static_cast<T>(static_cast<int64_t>(mix(seed + i)) >> 20) / 7;
        EXPECT_EQ(report, atomic_swap(word, next, pe), model);
        EXPECT_EQ(report, atomic_fetch(word, pe), next);
        model = -next;
        atomic_set(word, model, pe);
    }
    EXPECT_EQ(report, atomic_fetch(word, pe), model);
}

// The words that all threads of all PEs fight for, on one PE. Mirrored in pe/atomics.rs.
template <class T> struct Contended { T added, increments, tickets, bits_set, bits_cleared, toggled, swapped, compared; };

// Every thread of every PE does `times` of each on `words` at `home`; `got` is the thread's own
// copy of what it fetched.
template <class T>
OXSHMEM_DEVICE void contend(Contended<T> *words, uint32_t *claims, T *swapped_out, int home, uint32_t times, Report *report) {
    using namespace oxshmem;
    using U = typename wide<T>::type;
    const uint32_t rank = static_cast<uint32_t>(my_pe()) * grid_threads() + global_rank();
    const uint32_t bit = rank % (8 * sizeof(T));
    T out = 0;
    for (uint32_t i = 0; i < times; ++i) {
        if ((rank + i) % 2 == 0) {
            atomic_add(&words->added, T{-3} + T{5}, home);
            atomic_inc(&words->increments, home);
        } else {
            atomic_fetch_add(&words->added, T{2}, home);
            atomic_fetch_inc(&words->increments, home);
        }
        const T ticket = atomic_fetch_inc(&words->tickets, home);
        EXPECT(report, static_cast<U>(ticket) < static_cast<U>(n_pes()) * grid_threads() * times);
        atomic_inc(claims + static_cast<U>(ticket), home);
        // Every bit is set and cleared by several threads.
        atomic_or(&words->bits_set, static_cast<T>(U{1} << bit), home);
        EXPECT(report, (static_cast<U>(atomic_fetch_or(&words->bits_set, T{0}, home)) >> bit & 1) == 1);
        atomic_fetch_and(&words->bits_cleared, static_cast<T>(~(U{1} << bit)), home);
        atomic_and(&words->bits_cleared, static_cast<T>(~(U{1} << bit)), home);
        // Toggled an odd number of times in all by each thread.
        for (int k = 0; k < (i == 0 ? 1 : 2); ++k) {
            atomic_xor(&words->toggled, static_cast<T>(U{1} << bit), home);
        }
        atomic_fetch_xor(&words->toggled, T{0}, home);
        // What was swapped in is swapped out once, or is left.
        out = plus(out, atomic_swap(&words->swapped, static_cast<T>(rank * times + i + 1), home));
        // An increment by compare and swap, which must not be lost.
        T seen = atomic_fetch(&words->compared, home);
        for (;;) {
            const T before = atomic_compare_swap(&words->compared, seen, plus(seen, T{7}), home);
            if (before == seen) {
                break;
            }
            seen = before;
            pause();
        }
    }
    atomic_add(swapped_out, out, home);
}

} // namespace

// `words`: one word of 8 bytes per thread and type. The peers of a thread are all PEs in turn.
OXSHMEM_KERNEL(atomic_values, uint64_t *words, uint32_t steps, uint64_t seed, Report *report) {
    const uint32_t threads = grid_threads();
    const uint32_t n = static_cast<uint32_t>(oxshmem::n_pes());
    // The word at the peer belongs to the caller's PE.
    const uint64_t mine = (static_cast<uint64_t>(oxshmem::my_pe()) * threads + global_rank()) * 6;
    const int pe = static_cast<int>((global_rank() + static_cast<uint32_t>(oxshmem::my_pe())) % n);
    seed += mine << 20;
    // 4-byte operands in the upper half of a word too.
    values(report, reinterpret_cast<int32_t *>(words + mine) + global_rank() % 2, pe, steps, seed);
    values(report, reinterpret_cast<uint32_t *>(words + mine + 1) + 1, pe, steps, seed + 1);
    values(report, reinterpret_cast<int64_t *>(words + mine + 2), pe, steps, seed + 2);
    values(report, words + mine + 3, pe, steps, seed + 3);
    real_values(report, reinterpret_cast<float *>(words + mine + 4) + 1, pe, seed + 4);
    real_values(report, reinterpret_cast<double *>(words + mine + 5), pe, seed + 5);
    // The other half is as it was.
    EXPECT_EQ(report, oxshmem::g(reinterpret_cast<uint32_t *>(words + mine) + (1 - global_rank() % 2), pe), 0u);
    EXPECT_EQ(report, oxshmem::g(reinterpret_cast<uint32_t *>(words + mine + 1), pe), 0u);
    EXPECT_EQ(report, oxshmem::g(reinterpret_cast<uint32_t *>(words + mine + 4), pe), 0u);
}

OXSHMEM_KERNEL(atomic_contention32, Contended<int32_t> *words, uint32_t *claims, int32_t *swapped_out, int home, uint32_t times,
               Report *report) {
    contend(words, claims, swapped_out, home, times, report);
}

OXSHMEM_KERNEL(atomic_contention64, Contended<int64_t> *words, uint32_t *claims, int64_t *swapped_out, int home, uint32_t times,
               Report *report) {
    contend(words, claims, swapped_out, home, times, report);
}

// Every thread changes one word of 8 bytes at `home`, in every way, and the word of 4 bytes after
// it. `in` and `out`: 16 bytes for each thread.
OXSHMEM_KERNEL(mixed_words, uint64_t *words, unsigned char *in, const unsigned char *out, int home, uint32_t times) {
    using namespace oxshmem;
    const uint64_t mine = static_cast<uint64_t>(global_rank()) * 16;
    for (uint32_t i = 0; i < times; ++i) {
        atomic_inc(words, home);
        atomic_fetch_add(words, uint64_t{2}, home);
        signal_op(words, 4, SIGNAL_ADD, home);
        putmem_signal_nbi(thread, in + mine, out + mine, 16, words, 8, SIGNAL_ADD, home);
        atomic_fetch_inc(reinterpret_cast<uint32_t *>(words + 1), home);
    }
    quiet();
}
