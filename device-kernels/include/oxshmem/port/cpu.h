// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// The port layer of the `cpu` device. port.h documents what each name means; here is how a SIMT
// executor (simt/) provides it: every GPU thread is a coroutine, and whatever waits calls into the
// executor, which runs the other threads.
//
// The second half offers the names CUDA itself gives to kernels, so that ordinary kernels compile
// unchanged. `__shared__` is not among them, because a C++ compiler has no storage class for it:
// use OXSHMEM_SHARED and OXSHMEM_DYNAMIC_SHARED.
//
// A thread must not wait (pause, barrier, warp operation) inside a catch handler: the C++ runtime
// keeps the exception being handled per operating system thread, and another GPU thread may run
// there meanwhile.
#pragma once

#ifdef __CUDACC__
#error "oxshmem/port/cpu.h is for the cpu device; include oxshmem/port/port.h"
#endif

#include <oxshmem/abi.h>
#include <oxshmem/port/numbers.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <exception>
#include <type_traits>
#include <utility>

struct uint3 {
    unsigned x, y, z;
};

// ---------------------------------------------------------------------------------------------------------------------------
// The interface between device code and the executor. simt/src/interface.rs mirrors these
// structures.
// ---------------------------------------------------------------------------------------------------------------------------

extern "C" {

struct oxshmem_cpu_block {
    uint3 block_idx, block_dim, grid_dim;
    uint32_t threads;     // in the block
    uint32_t rank;        // of the block in the grid, x fastest
    uint32_t grid_blocks; // in the grid
    uint32_t dynamic_shared_bytes;
    void *dynamic_shared;
    void **shared; // by slot; null until the block first uses it
};

struct oxshmem_cpu_thread {
    uint3 thread_idx;
    uint32_t lane;
    uint32_t rank; // in the block, x fastest
    uint32_t reserved0;
    oxshmem_cpu_block *block;
};

struct oxshmem_cpu_kernel {
    const char *name;
    void (*entry)(void **args); // reads argument i through args[i]
    const uint32_t *arg_sizes;
    uint32_t n_args;
    uint32_t max_threads; // of a block
    const oxshmem_cpu_kernel *next;
};

struct oxshmem_cpu_module {
    uint32_t abi_version; // abi::kAbiVersion
    uint32_t state_bytes; // sizeof(abi::State)
    uint32_t cpu_version; // port::kCpuVersion
    uint32_t reserved0;
    const oxshmem_cpu_kernel *kernels;
};

// The GPU thread that runs on this operating system thread. Coroutines never move between operating
// system threads.
extern __thread oxshmem_cpu_thread *oxshmem_cpu_current __attribute__((tls_model("initial-exec")));

// What the runtime tells device code; all zero until it does.
extern oxshmem::abi::State oxshmem_cpu_state;

void oxshmem_cpu_pause(oxshmem_cpu_thread *self);
uint32_t oxshmem_cpu_converged(oxshmem_cpu_thread *self, const void *site, uint64_t key);
uint64_t oxshmem_cpu_warp_op(oxshmem_cpu_thread *self, uint32_t kind, uint32_t mask, uint64_t value, uint32_t source);
uint64_t oxshmem_cpu_sync_block(oxshmem_cpu_thread *self, uint32_t predicate); // threads | (true predicates << 32)
void *oxshmem_cpu_shared(oxshmem_cpu_thread *self, uint32_t slot, size_t bytes, size_t align);
uint32_t oxshmem_cpu_new_shared_slot();
void oxshmem_cpu_doorbell(oxshmem_cpu_thread *self);
void oxshmem_cpu_atomic(oxshmem_cpu_thread *self, uint64_t offset, uint32_t bytes, int32_t pe, uint32_t by_card);
void oxshmem_cpu_exception(oxshmem_cpu_thread *self, const char *what);
}

namespace oxshmem::port {

// Raised with any change of the structures and functions above.
constexpr uint32_t kCpuVersion = 4;

namespace detail {

enum class warp_op : uint32_t { sync = 0, ballot = 1, shfl = 2, match_any = 3, run_starts = 4 };

inline uint64_t warp(warp_op kind, uint32_t mask, uint64_t value, uint32_t source) {
    return oxshmem_cpu_warp_op(oxshmem_cpu_current, static_cast<uint32_t>(kind), mask, value, source);
}

// Identifies this place in the program, a different one for every place the compiler inlines it to.
inline __attribute__((always_inline)) const void *site() {
    const void *here;
#if defined(__x86_64__)
    asm volatile("leaq 0(%%rip), %0" : "=r"(here));
#elif defined(__aarch64__)
    asm volatile("adr %0, ." : "=r"(here));
#else
#error "the cpu device supports x86_64 and aarch64"
#endif
    return here;
}

} // namespace detail

// ---------------------------------------------------------------------------------------------------------------------------
// Memory
// ---------------------------------------------------------------------------------------------------------------------------

enum class order { relaxed, acquire, release, acq_rel };
enum class reach { block, device, system };

namespace detail {

constexpr int builtin_order(order o) {
    return o == order::relaxed   ? __ATOMIC_RELAXED
           : o == order::acquire ? __ATOMIC_ACQUIRE
           : o == order::release ? __ATOMIC_RELEASE
                                 : __ATOMIC_ACQ_REL;
}

// The order of a compare-and-swap that did not swap, which is a load.
constexpr int builtin_load_order(order o) {
    return o == order::acquire || o == order::acq_rel ? __ATOMIC_ACQUIRE : __ATOMIC_RELAXED;
}

template <size_t Bytes> struct word;
template <> struct word<1> { using type = uint8_t; };
template <> struct word<2> { using type = uint16_t; };
template <> struct word<4> { using type = uint32_t; };
template <> struct word<8> { using type = uint64_t; };

// An integer that may alias any type of the same size.
template <class T> struct word_of {
    static_assert(std::is_trivially_copyable_v<T>, "atomics take what can be copied as a word");
    typedef typename word<sizeof(T)>::type __attribute__((may_alias)) type;
};
template <class T> using word_t = typename word_of<T>::type;
template <class T> using raw_t = typename word<sizeof(T)>::type;

} // namespace detail

template <order O, reach, class T> inline T load(const T *p) {
    static_assert(O == order::relaxed || O == order::acquire, "a load is relaxed or acquire");
    using W = detail::word_t<T>;
    return detail::bits<T>(__atomic_load_n(reinterpret_cast<const W *>(p), detail::builtin_order(O)));
}

template <reach, class T> inline void acquire(const T *) {
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
}

template <order O, reach, class T> inline void store(T *p, std::common_type_t<T> value) {
    static_assert(O == order::relaxed || O == order::release, "a store is relaxed or release");
    using W = detail::word_t<T>;
    __atomic_store_n(reinterpret_cast<W *>(p), detail::bits<detail::raw_t<T>>(value), detail::builtin_order(O));
}

template <order O, reach, class T> inline T exchange(T *p, std::common_type_t<T> value) {
    using W = detail::word_t<T>;
    return detail::bits<T>(
        __atomic_exchange_n(reinterpret_cast<W *>(p), detail::bits<detail::raw_t<T>>(value), detail::builtin_order(O)));
}

template <order O, reach, class T>
inline T compare_exchange(T *p, std::common_type_t<T> expected, std::common_type_t<T> desired) {
    using W = detail::word_t<T>;
    detail::raw_t<T> old = detail::bits<detail::raw_t<T>>(expected);
    __atomic_compare_exchange_n(reinterpret_cast<W *>(p), &old, detail::bits<detail::raw_t<T>>(desired), false,
                                detail::builtin_order(O), detail::builtin_load_order(O));
    return detail::bits<T>(old);
}

template <order O, reach R, class T> inline T fetch_add(T *p, std::common_type_t<T> value) {
    if constexpr (std::is_floating_point_v<T>) {
        T old = load<order::relaxed, R>(p);
        for (;;) {
            const T seen = compare_exchange<O, R>(p, old, static_cast<T>(old + value));
            if (detail::bits<detail::raw_t<T>>(seen) == detail::bits<detail::raw_t<T>>(old)) {
                return old;
            }
            old = seen;
        }
    } else {
        using W = detail::word_t<T>;
        return static_cast<T>(__atomic_fetch_add(reinterpret_cast<W *>(p), static_cast<W>(value), detail::builtin_order(O)));
    }
}

template <order O, reach, class T> inline T fetch_sub(T *p, std::common_type_t<T> value) {
    static_assert(std::is_integral_v<T>);
    using W = detail::word_t<T>;
    return static_cast<T>(__atomic_fetch_sub(reinterpret_cast<W *>(p), static_cast<W>(value), detail::builtin_order(O)));
}

template <order O, reach, class T> inline T fetch_and(T *p, std::common_type_t<T> value) {
    static_assert(std::is_integral_v<T>);
    using W = detail::word_t<T>;
    return static_cast<T>(__atomic_fetch_and(reinterpret_cast<W *>(p), static_cast<W>(value), detail::builtin_order(O)));
}

template <order O, reach, class T> inline T fetch_or(T *p, std::common_type_t<T> value) {
    static_assert(std::is_integral_v<T>);
    using W = detail::word_t<T>;
    return static_cast<T>(__atomic_fetch_or(reinterpret_cast<W *>(p), static_cast<W>(value), detail::builtin_order(O)));
}

template <order O, reach, class T> inline T fetch_xor(T *p, std::common_type_t<T> value) {
    static_assert(std::is_integral_v<T>);
    using W = detail::word_t<T>;
    return static_cast<T>(__atomic_fetch_xor(reinterpret_cast<W *>(p), static_cast<W>(value), detail::builtin_order(O)));
}

namespace detail {

// Replaces the value by `change(old)` atomically and returns the old one.
template <order O, reach R, class T, class F> inline T fetch_update(T *p, F change) {
    T old = load<order::relaxed, R>(p);
    for (;;) {
        const T seen = compare_exchange<O, R>(p, old, change(old));
        if (seen == old) {
            return old;
        }
        old = seen;
    }
}

} // namespace detail

template <order O, reach R, class T> inline T fetch_max(T *p, std::common_type_t<T> value) {
    static_assert(std::is_integral_v<T>);
    return detail::fetch_update<O, R>(p, [value](T old) { return old < value ? value : old; });
}

template <order O, reach R, class T> inline void add_to(T *p, std::common_type_t<T> value) {
    fetch_add<O, R>(p, value);
}

template <order O, reach R, class T> inline void raise_to(T *p, std::common_type_t<T> value) {
    fetch_max<O, R>(p, value);
}

template <order O, reach> inline void fence() {
    __atomic_thread_fence(detail::builtin_order(O));
}

inline void mmio_store(uint64_t *reg, uint64_t value) {
    __atomic_store_n(reg, value, __ATOMIC_RELEASE);
    oxshmem_cpu_doorbell(oxshmem_cpu_current);
}

template <class T> inline T read(const T *p) {
    return *p;
}
template <class T> inline void write(T *p, std::common_type_t<T> value) {
    *p = value;
}
inline void copy_bytes(void *dst, const void *src, uint64_t bytes) {
    std::memcpy(dst, src, bytes);
}

inline void probe(const void *p, uint64_t bytes) {
    if (bytes != 0) {
        static_cast<void>(*static_cast<const volatile char *>(p));
        static_cast<void>(static_cast<const volatile char *>(p)[bytes - 1]);
    }
}

struct alignas(16) vec16 {
    uint32_t x, y, z, w;
};

namespace detail {
typedef uint32_t vec_word __attribute__((vector_size(16), may_alias));
}

inline vec16 load_vec(const void *p) {
    const detail::vec_word v = *static_cast<const volatile detail::vec_word *>(p);
    return {v[0], v[1], v[2], v[3]};
}

inline void store_vec(void *p, vec16 value) {
    *static_cast<volatile detail::vec_word *>(p) = detail::vec_word{value.x, value.y, value.z, value.w};
}

constexpr uint32_t kSectorBytes = 64;

template <uint32_t, uint32_t> inline void touch(const void *, uint32_t) {}

struct pair64 {
    uint64_t first, second;
};

template <order O, reach R> inline pair64 load_pair(const uint64_t *p) {
    return {load<O, R>(p), load<O, R>(p + 1)};
}

template <order O, reach R> inline vec16 load_four(const uint32_t *p) {
    return {load<O, R>(p), load<O, R>(p + 1), load<O, R>(p + 2), load<O, R>(p + 3)};
}

inline void store_pair(uint64_t *p, uint64_t first, uint64_t second) {
    store<order::relaxed, reach::system>(p, first);
    store<order::relaxed, reach::system>(p + 1, second);
}

template <class T> inline void forget(T &) {}

inline void through_memory(void *p) {
    asm volatile("" ::"r"(p) : "memory");
}

inline void wake_host() {
    oxshmem_cpu_doorbell(oxshmem_cpu_current);
}

inline void watch_atomic(uint64_t offset, uint32_t bytes, int pe, bool by_card) {
    oxshmem_cpu_atomic(oxshmem_cpu_current, offset, bytes, pe, by_card ? 1 : 0);
}

inline const abi::State &state() {
    return oxshmem_cpu_state;
}

// ---------------------------------------------------------------------------------------------------------------------------
// Time and position
// ---------------------------------------------------------------------------------------------------------------------------

inline void pause() {
    oxshmem_cpu_pause(oxshmem_cpu_current);
}

inline void back_off(uint32_t) {}

inline uint64_t clock_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

inline uint32_t lane_id() {
    return oxshmem_cpu_current->lane;
}
inline uint32_t thread_rank() {
    return oxshmem_cpu_current->rank;
}
inline uint32_t block_threads() {
    return oxshmem_cpu_current->block->threads;
}
inline uint32_t block_rank() {
    return oxshmem_cpu_current->block->rank;
}
inline uint32_t grid_blocks() {
    return oxshmem_cpu_current->block->grid_blocks;
}
inline void grid_dependency_sync() {}
inline uint3 block_index() {
    return oxshmem_cpu_current->block->block_idx;
}
inline uint3 thread_index() {
    return oxshmem_cpu_current->thread_idx;
}

// ---------------------------------------------------------------------------------------------------------------------------
// Bits
// ---------------------------------------------------------------------------------------------------------------------------

// Whether p and g refuse words that are not aligned. The check costs a GPU an instruction for each
// of them.
constexpr bool kChecksWords = true;
// Whether use of a private context from two places at once is looked for.
constexpr bool kChecksContexts = true;
// How often a short wait looks before it becomes one with a deadline.
constexpr uint32_t kLooks = 64;
constexpr bool kCoalesced = false;
constexpr bool kGridsRelease = false;
constexpr uint32_t kEagerLooks = 0;
constexpr uint64_t kLongShare = 2048;
constexpr bool kRelocatable = false;
constexpr uint32_t kWholeWarp = 0xffffffff;

// ---------------------------------------------------------------------------------------------------------------------------
// Warps and blocks
// ---------------------------------------------------------------------------------------------------------------------------

// The lanes that wait at this very place once no lane of the warp can run on are released together,
// as the converged group.
inline __attribute__((always_inline)) uint32_t converged(uint64_t key) {
    return oxshmem_cpu_converged(oxshmem_cpu_current, detail::site(), key);
}

inline __attribute__((always_inline)) uint32_t active_mask() {
    return converged(0);
}

inline __attribute__((always_inline)) bool is_single() {
    const uint32_t mask = active_mask();
    return (mask & (mask - 1)) == 0;
}

inline uint32_t ballot(uint32_t mask, bool predicate) {
    return static_cast<uint32_t>(detail::warp(detail::warp_op::ballot, mask, predicate, 0));
}

template <class T> inline T shfl(uint32_t mask, T value, uint32_t source_lane) {
    static_assert(std::is_trivially_copyable_v<T>, "shfl copies bytes");
    if constexpr (sizeof(T) <= sizeof(uint64_t)) {
        uint64_t word = 0;
        __builtin_memcpy(&word, &value, sizeof(T));
        word = detail::warp(detail::warp_op::shfl, mask, word, source_lane & 31u);
        __builtin_memcpy(&value, &word, sizeof(T));
    } else {
        for (size_t at = 0; at < sizeof(T); at += sizeof(uint64_t)) {
            const size_t bytes = sizeof(T) - at < sizeof(uint64_t) ? sizeof(T) - at : sizeof(uint64_t);
            uint64_t word = 0;
            std::memcpy(&word, reinterpret_cast<char *>(&value) + at, bytes);
            word = detail::warp(detail::warp_op::shfl, mask, word, source_lane & 31u);
            std::memcpy(reinterpret_cast<char *>(&value) + at, &word, bytes);
        }
    }
    return value;
}

inline uint32_t match_any(uint32_t mask, uint64_t value) {
    return static_cast<uint32_t>(detail::warp(detail::warp_op::match_any, mask, value, 0));
}

inline uint32_t run_starts(uint32_t mask, uint64_t value, uint32_t step) {
    return static_cast<uint32_t>(detail::warp(detail::warp_op::run_starts, mask, value, step));
}

inline void sync_warp(uint32_t mask) {
    detail::warp(detail::warp_op::sync, mask, 0, 0);
}

inline void sync_block() {
    oxshmem_cpu_sync_block(oxshmem_cpu_current, 0);
}
inline bool sync_block_any(bool predicate) {
    return oxshmem_cpu_sync_block(oxshmem_cpu_current, predicate ? 1 : 0) >> 32 != 0;
}

// ---------------------------------------------------------------------------------------------------------------------------
// Declarations
// ---------------------------------------------------------------------------------------------------------------------------

namespace detail {

// One per OXSHMEM_SHARED declaration (and instantiation of the template it is in); numbered before
// main().
template <class Tag> struct shared_slot { static inline const uint32_t id = oxshmem_cpu_new_shared_slot(); };

template <class Tag, class T> inline T &shared() {
    static_assert(std::is_trivially_default_constructible_v<T>, "shared memory is uninitialised");
    oxshmem_cpu_thread *self = oxshmem_cpu_current;
    const uint32_t slot = shared_slot<Tag>::id;
    void *p = self->block->shared[slot];
    if (__builtin_expect(p == nullptr, 0)) {
        p = oxshmem_cpu_shared(self, slot, sizeof(T), alignof(T));
    }
    return *static_cast<T *>(p);
}

// Barriers of some of a block's threads: how many have arrived, and how often all had.
struct warps_barriers {
    uint32_t arrived[16];
    uint32_t rounds[16];
};
struct warps_barriers_tag {};

template <auto Kernel> struct kernel_entry;

template <class... A, void (*Kernel)(A...)> struct kernel_entry<Kernel> {
    static_assert((std::is_trivially_copyable_v<A> && ...), "kernel parameters are copied byte by byte");
    static_assert(((alignof(A) <= 16) && ...), "kernel parameters are aligned to 16 bytes at most");

    static constexpr uint32_t n_args = sizeof...(A);
    static constexpr uint32_t arg_sizes[n_args + 1] = {static_cast<uint32_t>(sizeof(A))..., 0};

    static void entry(void **args) {
        try {
            call(args, std::index_sequence_for<A...>());
        } catch (const std::exception &e) {
            oxshmem_cpu_exception(oxshmem_cpu_current, e.what());
        } catch (...) {
            oxshmem_cpu_exception(oxshmem_cpu_current, "unknown exception");
        }
    }

private:
    template <size_t... I> static void call([[maybe_unused]] void **args, std::index_sequence<I...>) {
        Kernel(*static_cast<std::remove_cv_t<A> *>(args[I])...);
    }
};

struct kernel_registration {
    oxshmem_cpu_kernel kernel;

    template <class Entry>
    kernel_registration(const oxshmem_cpu_kernel *&list, const char *name, uint32_t max_threads, Entry)
        : kernel{name, &Entry::entry, Entry::arg_sizes, Entry::n_args, max_threads, list} {
        list = &kernel;
    }
};

} // namespace detail

// All threads of a block run on one thread of the host, and give way in `pause`.
inline void sync_warps(uint32_t barrier, uint32_t threads) {
    using detail::warps_barriers, detail::warps_barriers_tag;
    const bool first = oxshmem_cpu_current->block->shared[detail::shared_slot<warps_barriers_tag>::id] == nullptr;
    warps_barriers &all = detail::shared<warps_barriers_tag, warps_barriers>();
    if (first) {
        all = {};
    }
    const uint32_t round = all.rounds[barrier];
    if (++all.arrived[barrier] == threads) {
        all.arrived[barrier] = 0;
        ++all.rounds[barrier];
        return;
    }
    while (all.rounds[barrier] == round) {
        pause();
    }
}

} // namespace oxshmem::port

// The kernels of this translation unit, which is one module.
[[maybe_unused]] static const oxshmem_cpu_kernel *oxshmem_cpu_kernel_list = nullptr;

#define OXSHMEM_DEVICE inline
#define OXSHMEM_INLINE __attribute__((always_inline)) inline
#define OXSHMEM_OUTLINE inline
#define OXSHMEM_LINKED_OUTLINE inline
#define OXSHMEM_UNROLL _Pragma("GCC unroll 8")
#define OXSHMEM_NO_UNROLL
#define OXSHMEM_NOINLINE __attribute__((noinline)) inline

#define OXSHMEM_KERNEL(name, ...) OXSHMEM_BOUNDED_KERNEL(1024, name, __VA_ARGS__)
#define OXSHMEM_BOUNDED_KERNEL(threads, name, ...)                                                                             \
    static void name(__VA_ARGS__);                                                                                             \
    static const ::oxshmem::port::detail::kernel_registration name##_registration(                                             \
        ::oxshmem_cpu_kernel_list, #name, threads, ::oxshmem::port::detail::kernel_entry<&name>());                            \
    static void name(__VA_ARGS__)

#define OXSHMEM_SYNCS_GRID_DEPENDENCY static_assert(true)

#define OXSHMEM_SHARED(type, name, ...)                                                                                        \
    struct name##_shared_tag {};                                                                                               \
    using name##_shared_type = type __VA_ARGS__;                                                                               \
    name##_shared_type &name = ::oxshmem::port::detail::shared<name##_shared_tag, name##_shared_type>()

#define OXSHMEM_DYNAMIC_SHARED(type, name) type *const name = static_cast<type *>(::oxshmem_cpu_current->block->dynamic_shared)

#include <oxshmem/port/cpu_cuda_names.h>
