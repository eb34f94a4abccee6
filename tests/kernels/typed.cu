// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Every name of typed.h is called once with values that tell it from every other call. One kernel
// fills the sources, one calls, one checks; the host puts barriers between them. Called by one
// block, whose last warp is not full.
#include <oxshmem/port/port.h>

// More than a thousand calls: if each were a copy of its operation, compiling them would take the
// CUDA compiler minutes. So what is long is declared beforehand as a function of its own.
#ifdef __CUDACC__
#undef OXSHMEM_DEVICE
#define OXSHMEM_DEVICE inline __device__
#define OUTLINED inline __device__ __noinline__

namespace oxshmem {
enum class Compare : int;
namespace detail {
enum class SignalOp : int;
struct AtomicRequest;
template <class T> struct Undeduced;
template <class Scope> OUTLINED void put_by(void *, const void *, uint64_t, int, bool);
template <class Scope> OUTLINED void get_by(void *, const void *, uint64_t, int, bool);
template <class Scope> OUTLINED void put_signal_by(void *, const void *, uint64_t, uint64_t *, uint64_t, SignalOp, int, bool);
template <bool Fetch, bool Changes, class T, class Local> OUTLINED T atomic(T *, int, const AtomicRequest &, Local);
template <class Done> OUTLINED bool wait_for(abi::Op, const void *, Done);
} // namespace detail
template <class T> OUTLINED void p(T *, typename detail::Undeduced<T>::type, int);
template <class T> OUTLINED T g(const T *, int);
template <class Scope, class T> OUTLINED void iput(Scope, T *, const T *, ptrdiff_t, ptrdiff_t, size_t, int);
template <class Scope, class T> OUTLINED void iget(Scope, T *, const T *, ptrdiff_t, ptrdiff_t, size_t, int);
} // namespace oxshmem
#undef OUTLINED
#endif

#include <oxshmem/typed.h>

#include "conformance.h"

namespace {

using namespace conformance;
using oxshmem::SignalOp;

constexpr uint32_t kElements = 5;
constexpr uint32_t kStride = 2;      // of the strided forms
constexpr uint32_t kSlotBytes = 256; // up to 10 elements of 16 bytes
enum Slot : uint32_t {
    kSource,
    kStridedSource,
    kPut,
    kPutNbi,
    kPutSignal,
    kPutSignalNbi,
    kIput,
    kGet,
    kGetNbi,
    kIget,
    kScalar,
    kSignals,
    kSlots,
};

// One call site per type name and scope has a zone of kSlots slots.
template <class T> OXSHMEM_DEVICE T *slot(unsigned char *arena, uint32_t zone, Slot which) {
    return reinterpret_cast<T *>(arena + (static_cast<uint64_t>(zone) * kSlots + which) * kSlotBytes);
}

template <class T> OXSHMEM_DEVICE T value(int pe, uint32_t zone, uint32_t i) {
    return make<T>(mix((static_cast<uint64_t>(pe) * 1000 + zone) * 16 + i));
}

template <class T> OXSHMEM_NOINLINE void fill(unsigned char *arena, uint32_t zone) {
    for (uint32_t i = 0; i < kElements; ++i) {
        slot<T>(arena, zone, kSource)[i] = value<T>(oxshmem::my_pe(), zone, i);
        slot<T>(arena, zone, kStridedSource)[i * kStride] = value<T>(oxshmem::my_pe(), zone, i);
    }
}

struct Fill {
    unsigned char *arena;

    template <class T, class S, class Calls> OXSHMEM_DEVICE void site(uint32_t zone, S) const {
        if (thread_rank() == 0) {
            fill<T>(arena, zone);
        }
    }
};

// Only counts.
struct Nothing {
    template <class T, class S, class Calls> OXSHMEM_DEVICE void site(uint32_t, S) const {}
};

struct Call {
    unsigned char *arena;

    template <class T, class S, class Calls> OXSHMEM_DEVICE void site(uint32_t zone, S) const {
        const int to = (oxshmem::my_pe() + 1) % oxshmem::n_pes();
        const auto at = [&](Slot which) { return slot<T>(arena, zone, which); };
        // The first group of the scope calls.
        if (thread_rank() < S::size()) {
            uint64_t *signals = slot<uint64_t>(arena, zone, kSignals);
            Calls::put(at(kPut), at(kSource), kElements, to);
            Calls::put_nbi(at(kPutNbi), at(kSource), kElements, to);
            Calls::put_signal(at(kPutSignal), at(kSource), kElements, signals, zone + 1, oxshmem::SIGNAL_SET, to);
            Calls::put_signal_nbi(at(kPutSignalNbi), at(kSource), kElements, signals + 1, zone + 2, oxshmem::SIGNAL_ADD, to);
            Calls::iput(at(kIput), at(kStridedSource), 1, kStride, kElements, to);
            Calls::get(at(kGet), at(kSource), kElements, to);
            Calls::get_nbi(at(kGetNbi), at(kSource), kElements, to);
            Calls::iget(at(kIget), at(kStridedSource), kStride, kStride, kElements, to);
        }
    }
};

template <class T>
OXSHMEM_NOINLINE void holds(unsigned char *arena, Report *report, uint32_t zone, Slot which, uint32_t stride, int pe) {
    for (uint32_t i = 0; i < kElements; ++i) {
        EXPECT(report, same(slot<T>(arena, zone, which)[i * stride], value<T>(pe, zone, i)));
    }
}

template <class T> OXSHMEM_NOINLINE void check(unsigned char *arena, Report *report, uint32_t zone) {
    const int n = oxshmem::n_pes();
    const int from = (oxshmem::my_pe() + n - 1) % n;
    const int to = (oxshmem::my_pe() + 1) % n;
    for (Slot which : {kPut, kPutNbi, kPutSignal, kPutSignalNbi, kIput}) {
        holds<T>(arena, report, zone, which, 1, from);
    }
    holds<T>(arena, report, zone, kGet, 1, to);
    holds<T>(arena, report, zone, kGetNbi, 1, to);
    holds<T>(arena, report, zone, kIget, kStride, to);
    const uint64_t *signals = slot<uint64_t>(arena, zone, kSignals);
    EXPECT_EQ(report, signals[0], uint64_t{zone + 1});
    EXPECT_EQ(report, signals[1], uint64_t{zone + 2});
}

struct Check {
    unsigned char *arena;
    Report *report;

    template <class T, class S, class Calls> OXSHMEM_DEVICE void site(uint32_t zone, S) const {
        if (thread_rank() == 0) {
            check<T>(arena, report, zone);
        }
    }
};

// The calls of one type name and scope, as one type.
#define SITE(prefix, suffix, scope, T, PUT, GET, IPUT, IGET)                                                                   \
    {                                                                                                                          \
        struct Calls {                                                                                                         \
            static OXSHMEM_DEVICE void put(T *dst, const T *src, size_t n, int pe) { prefix##PUT##suffix(dst, src, n, pe); }   \
            static OXSHMEM_DEVICE void get(T *dst, const T *src, size_t n, int pe) { prefix##GET##suffix(dst, src, n, pe); }   \
            static OXSHMEM_DEVICE void put_nbi(T *dst, const T *src, size_t n, int pe) {                                       \
                prefix##PUT##_nbi##suffix(dst, src, n, pe);                                                                    \
            }                                                                                                                  \
            static OXSHMEM_DEVICE void get_nbi(T *dst, const T *src, size_t n, int pe) {                                       \
                prefix##GET##_nbi##suffix(dst, src, n, pe);                                                                    \
            }                                                                                                                  \
            static OXSHMEM_DEVICE void put_signal(T *dst, const T *src, size_t n, uint64_t *signal, uint64_t value,            \
                                                  SignalOp op, int pe) {                                                       \
                prefix##PUT##_signal##suffix(dst, src, n, signal, value, op, pe);                                              \
            }                                                                                                                  \
            static OXSHMEM_DEVICE void put_signal_nbi(T *dst, const T *src, size_t n, uint64_t *signal, uint64_t value,        \
                                                      SignalOp op, int pe) {                                                   \
                prefix##PUT##_signal_nbi##suffix(dst, src, n, signal, value, op, pe);                                          \
            }                                                                                                                  \
            static OXSHMEM_DEVICE void iput(T *dst, const T *src, ptrdiff_t to, ptrdiff_t from, size_t n, int pe) {            \
                prefix##IPUT##suffix(dst, src, to, from, n, pe);                                                               \
            }                                                                                                                  \
            static OXSHMEM_DEVICE void iget(T *dst, const T *src, ptrdiff_t to, ptrdiff_t from, size_t n, int pe) {            \
                prefix##IGET##suffix(dst, src, to, from, n, pe);                                                               \
            }                                                                                                                  \
        };                                                                                                                     \
        phase.template site<T, std::decay_t<decltype(scope)>, Calls>(zone++, scope);                                           \
    }

#define TYPED_SITES(name, T) OXSHMEM_FOR_EACH_NARROW_SCOPE(SITE, T, name##_put, name##_get, name##_iput, name##_iget)
#define SIZED_SITES(bits, T) OXSHMEM_FOR_EACH_NARROW_SCOPE(SITE, T, put##bits, get##bits, iput##bits, iget##bits)

template <class Phase> OXSHMEM_DEVICE uint32_t all_sites(const Phase &phase) {
    uint32_t zone = 0;
    OXSHMEM_FOR_EACH_RMA_TYPE(TYPED_SITES)
    OXSHMEM_FOR_EACH_NARROW_FLOAT_TYPE(TYPED_SITES)
    OXSHMEM_FOR_EACH_SIZE(SIZED_SITES)
    return zone;
}

// putmem, getmem: the zones after those.
#define MEM_SITE(prefix, suffix, scope, ...)                                                                                   \
    {                                                                                                                          \
        struct Calls {                                                                                                         \
            static OXSHMEM_DEVICE void put(uint8_t *dst, const uint8_t *src, size_t n, int pe) {                               \
                prefix##putmem##suffix(dst, src, n, pe);                                                                       \
            }                                                                                                                  \
            static OXSHMEM_DEVICE void get(uint8_t *dst, const uint8_t *src, size_t n, int pe) {                               \
                prefix##getmem##suffix(dst, src, n, pe);                                                                       \
            }                                                                                                                  \
            static OXSHMEM_DEVICE void put_nbi(uint8_t *dst, const uint8_t *src, size_t n, int pe) {                           \
                prefix##putmem_nbi##suffix(dst, src, n, pe);                                                                   \
            }                                                                                                                  \
            static OXSHMEM_DEVICE void get_nbi(uint8_t *dst, const uint8_t *src, size_t n, int pe) {                           \
                prefix##getmem_nbi##suffix(dst, src, n, pe);                                                                   \
            }                                                                                                                  \
            static OXSHMEM_DEVICE void put_signal(uint8_t *dst, const uint8_t *src, size_t n, uint64_t *signal,                \
                                                  uint64_t value, SignalOp op, int pe) {                                       \
                prefix##putmem_signal##suffix(dst, src, n, signal, value, op, pe);                                             \
            }                                                                                                                  \
            static OXSHMEM_DEVICE void put_signal_nbi(uint8_t *dst, const uint8_t *src, size_t n, uint64_t *signal,            \
                                                      uint64_t value, SignalOp op, int pe) {                                   \
                prefix##putmem_signal_nbi##suffix(dst, src, n, signal, value, op, pe);                                         \
            }                                                                                                                  \
            static OXSHMEM_DEVICE void iput(uint8_t *dst, const uint8_t *src, ptrdiff_t to, ptrdiff_t from, size_t n,          \
                                            int pe) {                                                                          \
                oxshmem::iput(scope, dst, src, to, from, n, pe);                                                               \
            }                                                                                                                  \
            static OXSHMEM_DEVICE void iget(uint8_t *dst, const uint8_t *src, ptrdiff_t to, ptrdiff_t from, size_t n,          \
                                            int pe) {                                                                          \
                oxshmem::iget(scope, dst, src, to, from, n, pe);                                                               \
            }                                                                                                                  \
        };                                                                                                                     \
        phase.template site<uint8_t, std::decay_t<decltype(scope)>, Calls>(zone++, scope);                                     \
    }

template <class Phase> OXSHMEM_DEVICE void mem_sites(const Phase &phase, uint32_t zone) {
    OXSHMEM_FOR_EACH_NARROW_SCOPE(MEM_SITE, )
}

// Scalars: element 0 of a slot of each type's first zone goes by p, and comes back by g.
template <class T, class P, class G>
OXSHMEM_DEVICE void scalar_site(unsigned char *arena, Report *report, uint32_t zone, P p, G g) {
    const int to = (oxshmem::my_pe() + 1) % oxshmem::n_pes();
    T *at = slot<T>(arena, zone, kScalar);
    p(at, value<T>(oxshmem::my_pe(), zone, 9), to);
    EXPECT(report, same(g(slot<T>(arena, zone, kSource) + 1, to), value<T>(to, zone, 1)));
    oxshmem::quiet();
    EXPECT(report, same(g(at, to), value<T>(oxshmem::my_pe(), zone, 9)));
}

// `word` at `pe` is used by the caller alone.
#define EXTENDED_ATOMICS(name, T)                                                                                              \
    oxshmem_##name##_atomic_set(reinterpret_cast<T *>(word), make<T>(20), pe);                                                 \
    EXPECT_EQ(report, oxshmem_##name##_atomic_fetch(reinterpret_cast<const T *>(word), pe), make<T>(20));                      \
    EXPECT_EQ(report, oxshmem_##name##_atomic_swap(reinterpret_cast<T *>(word), make<T>(7), pe), make<T>(20));                 \
    EXPECT_EQ(report, oxshmem_##name##_atomic_fetch(reinterpret_cast<const T *>(word), pe), make<T>(7));                       \
    ++word;

#define STANDARD_ATOMICS(name, T)                                                                                              \
    {                                                                                                                          \
        using Word = T;                                                                                                        \
        T *at = reinterpret_cast<T *>(word);                                                                                   \
        EXTENDED_ATOMICS(name, T)                                                                                              \
        EXPECT_EQ(report, oxshmem_##name##_atomic_compare_swap(at, Word{7}, Word{9}, pe), Word{7});                            \
        EXPECT_EQ(report, oxshmem_##name##_atomic_compare_swap(at, Word{7}, Word{1}, pe), Word{9});                            \
        oxshmem_##name##_atomic_add(at, Word{3}, pe);                                                                          \
        EXPECT_EQ(report, oxshmem_##name##_atomic_fetch_add(at, Word{2}, pe), Word{12});                                       \
        oxshmem_##name##_atomic_inc(at, pe);                                                                                   \
        EXPECT_EQ(report, oxshmem_##name##_atomic_fetch_inc(at, pe), Word{15});                                                \
        EXPECT_EQ(report, oxshmem_##name##_atomic_fetch(at, pe), Word{16});                                                    \
    }

#define BITWISE_ATOMICS(name, T)                                                                                               \
    {                                                                                                                          \
        using Word = T;                                                                                                        \
        T *at = reinterpret_cast<T *>(word);                                                                                   \
        oxshmem_##name##_atomic_set(at, Word{0x3c}, pe);                                                                       \
        oxshmem_##name##_atomic_and(at, Word{0x1f}, pe);                                                                       \
        EXPECT_EQ(report, oxshmem_##name##_atomic_fetch_and(at, Word{0x18}, pe), Word{0x1c});                                  \
        oxshmem_##name##_atomic_or(at, Word{0x03}, pe);                                                                        \
        EXPECT_EQ(report, oxshmem_##name##_atomic_fetch_or(at, Word{0x40}, pe), Word{0x1b});                                   \
        oxshmem_##name##_atomic_xor(at, Word{0x5a}, pe);                                                                       \
        EXPECT_EQ(report, oxshmem_##name##_atomic_fetch_xor(at, Word{0x0f}, pe), Word{0x01});                                  \
        EXPECT_EQ(report, oxshmem_##name##_atomic_fetch(at, pe), Word{0x0e});                                                  \
        ++word;                                                                                                                \
    }

// Own variables, already as waited for.
#define WAIT_FORMS(name, T)                                                                                                    \
    {                                                                                                                          \
        using Word = T;                                                                                                        \
        T *own = reinterpret_cast<T *>(word);                                                                                  \
        const T wanted[3] = {Word{4}, Word{5}, Word{6}};                                                                       \
        const int status[3] = {0, 1, 0};                                                                                       \
        size_t indices[3] = {9, 9, 9};                                                                                         \
        for (int i = 0; i < 3; ++i) {                                                                                          \
            oxshmem_##name##_p(own + i, wanted[i], me);                                                                        \
        }                                                                                                                      \
        oxshmem_##name##_wait_until(own, oxshmem::CMP_EQ, Word{4});                                                            \
        EXPECT_EQ(report, oxshmem_##name##_test(own, oxshmem::CMP_LT, Word{4}), 0);                                            \
        EXPECT_EQ(report, oxshmem_##name##_test(own, oxshmem::CMP_LE, Word{4}), 1);                                            \
        oxshmem_##name##_wait_until_all(own, 3, nullptr, oxshmem::CMP_GE, Word{4});                                            \
        oxshmem_##name##_wait_until_all_vector(own, 3, nullptr, oxshmem::CMP_EQ, wanted);                                      \
        EXPECT_EQ(report, oxshmem_##name##_wait_until_any(own, 3, nullptr, oxshmem::CMP_EQ, Word{6}), size_t{2});              \
        /* The first or the last; the one between is left out. */                                                              \
        EXPECT_EQ(report, oxshmem_##name##_wait_until_any_vector(own, 3, status, oxshmem::CMP_EQ, wanted) % 2, size_t{0});     \
        EXPECT_EQ(report, oxshmem_##name##_wait_until_some(own, 3, indices, status, oxshmem::CMP_GT, Word{3}), size_t{2});     \
        EXPECT_EQ(report, indices[1], size_t{2});                                                                              \
        EXPECT_EQ(report, oxshmem_##name##_wait_until_some_vector(own, 3, indices, status, oxshmem::CMP_EQ, wanted),           \
                  size_t{2});                                                                                                  \
        EXPECT_EQ(report, oxshmem_##name##_test_all(own, 3, nullptr, oxshmem::CMP_GT, Word{4}), 0);                            \
        EXPECT_EQ(report, oxshmem_##name##_test_all_vector(own, 3, nullptr, oxshmem::CMP_EQ, wanted), 1);                      \
        EXPECT_EQ(report, oxshmem_##name##_test_any(own, 3, status, oxshmem::CMP_EQ, Word{5}), SIZE_MAX);                      \
        EXPECT_EQ(report, oxshmem_##name##_test_any_vector(own, 3, nullptr, oxshmem::CMP_NE, wanted), SIZE_MAX);               \
        EXPECT_EQ(report, oxshmem_##name##_test_some(own, 3, indices, nullptr, oxshmem::CMP_LT, Word{6}), size_t{2});          \
        EXPECT_EQ(report, oxshmem_##name##_test_some_vector(own, 3, indices, nullptr, oxshmem::CMP_NE, wanted), size_t{0});    \
    }

} // namespace

OXSHMEM_KERNEL(typed_fill, unsigned char *arena) {
    mem_sites(Fill{arena}, all_sites(Fill{arena}));
}

OXSHMEM_KERNEL(typed_call, unsigned char *arena) {
    mem_sites(Call{arena}, all_sites(Call{arena}));
}

OXSHMEM_KERNEL(typed_check, unsigned char *arena, Report *report) {
    mem_sites(Check{arena, report}, all_sites(Check{arena, report}));
}

// The zones that the kernels above use are kSlots * kSlotBytes bytes each.
OXSHMEM_KERNEL(typed_bytes, uint64_t *bytes) {
    const uint32_t sites = all_sites(Nothing{}) + 3;
    *bytes = static_cast<uint64_t>(sites) * kSlots * kSlotBytes;
}

// One thread.
OXSHMEM_KERNEL(typed_scalars, unsigned char *arena, Report *report) {
    uint32_t zone = 0;
#define SCALARS(name, T)                                                                                                       \
    scalar_site<T>(                                                                                                            \
        arena, report, zone, [](T *dst, T v, int pe) { oxshmem_##name##_p(dst, v, pe); },                                      \
        [](const T *src, int pe) { return oxshmem_##name##_g(src, pe); });                                                     \
    zone += 3;
    OXSHMEM_FOR_EACH_RMA_TYPE(SCALARS)
}

// One thread; `words` are zero.
OXSHMEM_KERNEL(typed_atomics, uint64_t *words, Report *report) {
    const int pe = (oxshmem::my_pe() + 1) % oxshmem::n_pes();
    uint64_t *word = words;
    OXSHMEM_FOR_EACH_FLOATING_ATOMIC_TYPE(EXTENDED_ATOMICS)
    OXSHMEM_FOR_EACH_STANDARD_ATOMIC_TYPE(STANDARD_ATOMICS)
    OXSHMEM_FOR_EACH_BITWISE_ATOMIC_TYPE(BITWISE_ATOMICS)
}

// One thread.
OXSHMEM_KERNEL(typed_waits, uint64_t *word, Report *report) {
    const int me = oxshmem_my_pe();
    OXSHMEM_FOR_EACH_WAIT_TYPE(WAIT_FORMS)
}

// The names without a type. One block; `data` and `signals` are zero.
OXSHMEM_KERNEL(typed_others, int *data, uint64_t *signals, Report *report) {
    const int me = oxshmem_my_pe();
    const int n = oxshmem_n_pes();
    const int next = (me + 1) % n;
    const int previous = (me + n - 1) % n;
    EXPECT_EQ(report, me, oxshmem::my_pe());
    EXPECT_EQ(report, n, oxshmem::n_pes());
    EXPECT_EQ(report, oxshmem_ptr(data, me), static_cast<void *>(data));
    if (thread_rank() == 0) {
        oxshmem_int_p(data, me + 1, next);
        oxshmem_fence();
        oxshmem_signal_op(signals, 3, oxshmem::SIGNAL_ADD, next);
        EXPECT_EQ(report, oxshmem_signal_wait_until(signals, oxshmem::CMP_EQ, 3), uint64_t{3});
        EXPECT_EQ(report, oxshmem_signal_fetch(signals), uint64_t{3});
        EXPECT_EQ(report, data[0], previous + 1);
        oxshmem_quiet();
        oxshmem_barrier_all();
        // Sizes take any type of theirs; C programs know comparisons and updates as numbers
        // (host.h).
        const float sent = 0.25f;
        float arrived;
        oxshmem_put32(data, &sent, 1, next);
        oxshmem_fence();
        oxshmem_signal_op(signals, 4, 10, next);
        EXPECT_EQ(report, oxshmem_signal_wait_until(signals, 0, 7), uint64_t{7});
        memcpy(&arrived, data, sizeof(arrived));
        EXPECT_EQ(report, arrived, sent);
        oxshmem_sync_all();
    }
    if (thread_rank() < 32) {
        oxshmemx_quiet_warp();
        oxshmemx_barrier_all_warp();
        oxshmemx_sync_all_warp();
    }
    sync_block();
    oxshmemx_quiet_block();
    oxshmemx_barrier_all_block();
    oxshmemx_sync_all_block();
}
