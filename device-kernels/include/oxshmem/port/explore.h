// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// The port layer of the schedule explorer (docs/explorer.md). port.h documents what each name
// means. Here every access to memory that another thread, the HCA or the proxy can touch calls the
// explorer, which decides what runs before it, and which value a load returns. Such memory lies in
// one range of addresses that is not accessible, so an access that bypasses the port layer faults,
// and the explorer reports it. All other memory (locals, parameters) is accessed directly.
#pragma once

#ifdef __CUDACC__
#error "oxshmem/port/explore.h is for the schedule explorer; include oxshmem/port/port.h"
#endif

#include <oxshmem/abi.h>
#include <oxshmem/port/numbers.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

struct uint3 {
    unsigned x, y, z;
};

// ---------------------------------------------------------------------------------------------------------------------------
// The interface between device code and the explorer. explore/src/interface.rs mirrors these
// structures.
// ---------------------------------------------------------------------------------------------------------------------------

extern "C" {

// The device thread that runs on this thread of the operating system.
struct oxshmem_explore_thread {
    uint64_t shared_base, shared_bytes; // the range whose accesses are steps
    const oxshmem::abi::State *state;   // of the thread's PE
    uint32_t lane, lanes;               // in the warp, which is the block
    uint32_t block, blocks;             // of the PE's grid
    void *block_shared;                 // static shared memory of the block
};

struct oxshmem_explore_hooks {
    uint64_t (*load)(uint64_t address, uint32_t bytes, uint32_t order, uint32_t reach);
    uint64_t (*load_second)(uint64_t address, uint32_t bytes, uint32_t order, uint32_t reach); // the second load of a pair
    void (*store)(uint64_t address, uint32_t bytes, uint64_t value, uint32_t order, uint32_t reach);
    uint64_t (*update)(uint32_t kind, uint64_t address, uint32_t bytes, uint64_t operand, uint64_t expected, uint32_t order,
                       uint32_t reach);
    void (*fence)(uint32_t order, uint32_t reach);
    void (*mmio)(uint64_t address, uint64_t value);
    void (*pause)(uint64_t site);
    uint64_t (*clock)();
    uint32_t (*converged)(uint64_t site, uint64_t key);
    uint64_t (*warp)(uint32_t kind, uint32_t mask, uint64_t value, uint32_t source);
    uint64_t (*sync_block)(uint32_t predicate);
    void (*note)(uint32_t kind, uint64_t a, uint64_t b, uint64_t c, uint64_t d); // what a program says about itself
};

} // extern "C"

// Set by the explorer when it loads the module, and whenever it switches threads.
extern const oxshmem_explore_hooks *oxshmem_explore_calls __attribute__((visibility("hidden")));
extern __thread oxshmem_explore_thread *oxshmem_explore_current
    __attribute__((visibility("hidden"), tls_model("initial-exec")));

namespace oxshmem::port {

enum class order { relaxed, acquire, release, acq_rel };
enum class reach { block, device, system };

namespace detail {

enum class update_op : uint32_t {
    exchange = 0,
    compare = 1,
    add = 2,
    bit_and = 3,
    bit_or = 4,
    bit_xor = 5,
    umax = 6,
    smax = 7
};
enum class warp_op : uint32_t { sync = 0, ballot = 1, shfl = 2, match_any = 3, run_starts = 4 };

template <size_t Bytes> struct word;
template <> struct word<1> { using type = uint8_t; };
template <> struct word<2> { using type = uint16_t; };
template <> struct word<4> { using type = uint32_t; };
template <> struct word<8> { using type = uint64_t; };
template <class T> using raw_t = typename word<sizeof(T)>::type;

inline bool is_shared(const void *p) {
    const oxshmem_explore_thread *self = oxshmem_explore_current;
    return reinterpret_cast<uint64_t>(p) - self->shared_base < self->shared_bytes;
}

// One access of an aligned word of 1, 2, 4 or 8 bytes.
template <class W> inline W load_word(const void *p, order o, reach r) {
    if (is_shared(p)) {
        return static_cast<W>(oxshmem_explore_calls->load(reinterpret_cast<uint64_t>(p), sizeof(W), static_cast<uint32_t>(o),
                                                          static_cast<uint32_t>(r)));
    }
    W value;
    std::memcpy(&value, p, sizeof(W));
    return value;
}

template <class W> inline void store_word(void *p, W value, order o, reach r) {
    if (is_shared(p)) {
        oxshmem_explore_calls->store(reinterpret_cast<uint64_t>(p), sizeof(W), value, static_cast<uint32_t>(o),
                                     static_cast<uint32_t>(r));
        return;
    }
    std::memcpy(p, &value, sizeof(W));
}

template <order O, reach R, class T> inline T update(update_op kind, T *p, T operand, T expected) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "atomics take 4 or 8 bytes");
    using W = raw_t<T>;
    const uint64_t old =
        oxshmem_explore_calls->update(static_cast<uint32_t>(kind), reinterpret_cast<uint64_t>(p), sizeof(T), bits<W>(operand),
                                      bits<W>(expected), static_cast<uint32_t>(O), static_cast<uint32_t>(R));
    return bits<T>(static_cast<W>(old));
}

inline uint64_t warp(warp_op kind, uint32_t mask, uint64_t value, uint32_t source) {
    return oxshmem_explore_calls->warp(static_cast<uint32_t>(kind), mask, value, source);
}

// Identifies this place in the program, a different one for every place the compiler inlines it to.
inline __attribute__((always_inline)) uint64_t site() {
    uint64_t here;
#if defined(__x86_64__)
    asm volatile("leaq 0(%%rip), %0" : "=r"(here));
#elif defined(__aarch64__)
    asm volatile("adr %0, ." : "=r"(here));
#else
#error "the schedule explorer supports x86_64 and aarch64"
#endif
    return here;
}

} // namespace detail

// ---------------------------------------------------------------------------------------------------------------------------
// Memory
// ---------------------------------------------------------------------------------------------------------------------------

template <order O, reach R, class T> inline T load(const T *p) {
    static_assert(O == order::relaxed || O == order::acquire, "a load is relaxed or acquire");
    return detail::bits<T>(detail::load_word<detail::raw_t<T>>(p, O, R));
}

template <reach R, class T> inline void acquire(const T *) {
    oxshmem_explore_calls->fence(static_cast<uint32_t>(order::acquire), static_cast<uint32_t>(R));
}

template <order O, reach R, class T> inline void store(T *p, std::common_type_t<T> value) {
    static_assert(O == order::relaxed || O == order::release, "a store is relaxed or release");
    detail::store_word(p, detail::bits<detail::raw_t<T>>(value), O, R);
}

template <order O, reach R, class T> inline T exchange(T *p, std::common_type_t<T> value) {
    return detail::update<O, R, T>(detail::update_op::exchange, p, value, value);
}

template <order O, reach R, class T>
inline T compare_exchange(T *p, std::common_type_t<T> expected, std::common_type_t<T> desired) {
    return detail::update<O, R, T>(detail::update_op::compare, p, desired, expected);
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
        return detail::update<O, R, T>(detail::update_op::add, p, value, T{});
    }
}

template <order O, reach R, class T> inline T fetch_sub(T *p, std::common_type_t<T> value) {
    return detail::update<O, R, T>(detail::update_op::add, p, static_cast<T>(T{} - value), T{});
}
template <order O, reach R, class T> inline T fetch_and(T *p, std::common_type_t<T> value) {
    return detail::update<O, R, T>(detail::update_op::bit_and, p, value, T{});
}
template <order O, reach R, class T> inline T fetch_or(T *p, std::common_type_t<T> value) {
    return detail::update<O, R, T>(detail::update_op::bit_or, p, value, T{});
}
template <order O, reach R, class T> inline T fetch_xor(T *p, std::common_type_t<T> value) {
    return detail::update<O, R, T>(detail::update_op::bit_xor, p, value, T{});
}
template <order O, reach R, class T> inline T fetch_max(T *p, std::common_type_t<T> value) {
    static_assert(std::is_integral_v<T>);
    return detail::update<O, R, T>(std::is_signed_v<T> ? detail::update_op::smax : detail::update_op::umax, p, value, T{});
}
template <order O, reach R, class T> inline void add_to(T *p, std::common_type_t<T> value) {
    fetch_add<O, R>(p, value);
}
template <order O, reach R, class T> inline void raise_to(T *p, std::common_type_t<T> value) {
    fetch_max<O, R>(p, value);
}

template <order O, reach R> inline void fence() {
    oxshmem_explore_calls->fence(static_cast<uint32_t>(O), static_cast<uint32_t>(R));
}

inline void mmio_store(uint64_t *reg, uint64_t value) {
    oxshmem_explore_calls->mmio(reinterpret_cast<uint64_t>(reg), value);
}

namespace detail {

// The largest power of two, up to 8, that divides both addresses and is at most `left`.
inline uint64_t step_of(const void *a, const void *b, uint64_t left) {
    const uint64_t both = reinterpret_cast<uint64_t>(a) | reinterpret_cast<uint64_t>(b);
    uint64_t step = 8;
    while (both % step != 0 || step > left) {
        step /= 2;
    }
    return step;
}

template <class W> inline void copy_word(void *dst, const void *src) {
    store_word<W>(dst, load_word<W>(src, order::relaxed, reach::block), order::relaxed, reach::block);
}

} // namespace detail

inline void copy_bytes(void *dst, const void *src, uint64_t bytes) {
    char *to = static_cast<char *>(dst);
    const char *from = static_cast<const char *>(src);
    while (bytes != 0) {
        const uint64_t step = detail::step_of(to, from, bytes);
        switch (step) {
        case 8:
            detail::copy_word<uint64_t>(to, from);
            break;
        case 4:
            detail::copy_word<uint32_t>(to, from);
            break;
        case 2:
            detail::copy_word<uint16_t>(to, from);
            break;
        default:
            detail::copy_word<uint8_t>(to, from);
            break;
        }
        to += step, from += step, bytes -= step;
    }
}

template <class T> inline T read(const T *p) {
    static_assert(std::is_trivially_copyable_v<T>);
    alignas(alignof(T)) unsigned char bytes[sizeof(T)];
    copy_bytes(bytes, p, sizeof(T));
    T value;
    __builtin_memcpy(static_cast<void *>(&value), bytes, sizeof(T));
    return value;
}

template <class T> inline void write(T *p, std::common_type_t<T> value) {
    copy_bytes(p, &value, sizeof(T));
}

struct alignas(16) vec16 {
    uint32_t x, y, z, w;
};

inline vec16 load_vec(const void *p) {
    vec16 value;
    copy_bytes(&value, p, sizeof(value));
    return value;
}

inline void store_vec(void *p, vec16 value) {
    copy_bytes(p, &value, sizeof(value));
}

inline void probe(const void *, uint64_t) {}

template <class T> inline void forget(T &) {}

inline void through_memory(void *p) {
    asm volatile("" ::"r"(p) : "memory");
}

constexpr uint32_t kSectorBytes = 64;

template <uint32_t, uint32_t> inline void touch(const void *, uint32_t) {}

struct pair64 {
    uint64_t first, second;
};

template <order O, reach R> inline pair64 load_pair(const uint64_t *p) {
    const uint64_t first = load<O, R>(p);
    return {first, detail::is_shared(p)
                       ? oxshmem_explore_calls->load_second(reinterpret_cast<uint64_t>(p + 1), sizeof(uint64_t),
                                                            static_cast<uint32_t>(O), static_cast<uint32_t>(R))
                       : p[1]};
}

template <order O, reach R> inline vec16 load_four(const uint32_t *p) {
    return {load<O, R>(p), load<O, R>(p + 1), load<O, R>(p + 2), load<O, R>(p + 3)};
}

inline void store_pair(uint64_t *p, uint64_t first, uint64_t second) {
    store<order::relaxed, reach::system>(p, first);
    store<order::relaxed, reach::system>(p + 1, second);
}

inline void wake_host() {}

inline void watch_atomic(uint64_t, uint32_t, int, bool) {}

inline const abi::State &state() {
    return *oxshmem_explore_current->state;
}

// ---------------------------------------------------------------------------------------------------------------------------
// Time and position
// ---------------------------------------------------------------------------------------------------------------------------

inline __attribute__((always_inline)) void pause() {
    oxshmem_explore_calls->pause(detail::site());
}

inline void back_off(uint32_t) {}

// Deadlines pass when the explorer decides so, in programs that allow it. Everywhere else time
// stands still, and the explorer notices by itself that nothing can change any more.
inline uint64_t clock_ns() {
    return oxshmem_explore_calls->clock();
}

inline uint32_t lane_id() {
    return oxshmem_explore_current->lane;
}
inline uint32_t thread_rank() {
    return oxshmem_explore_current->lane;
}
inline uint32_t block_threads() {
    return oxshmem_explore_current->lanes;
}
inline uint32_t block_rank() {
    return oxshmem_explore_current->block;
}
inline uint32_t grid_blocks() {
    return oxshmem_explore_current->blocks;
}
inline uint3 block_index() {
    return {oxshmem_explore_current->block, 0, 0};
}
inline uint3 thread_index() {
    return {oxshmem_explore_current->lane, 0, 0};
}

// ---------------------------------------------------------------------------------------------------------------------------
// Bits
// ---------------------------------------------------------------------------------------------------------------------------

// Whether p and g refuse words that are not aligned. The check costs a GPU an instruction for each
// of them.
constexpr bool kChecksWords = true;
// Whether use of a private context from two places at once is looked for.
constexpr bool kChecksContexts = false;
// How often a short wait looks before it becomes one with a deadline.
constexpr uint32_t kLooks = 2;
constexpr bool kCoalesced = true;
constexpr bool kGridsRelease = false;
constexpr uint32_t kEagerLooks = 1;
constexpr uint64_t kLongShare = 16;
constexpr bool kRelocatable = false;

// All lanes of a warp, which has as many as the program says. A warp of one lane is never together
// with others, so no mask is the whole of it.
struct WholeWarp {
    operator uint32_t() const {
        const uint32_t lanes = oxshmem_explore_current->lanes;
        return lanes == 1 ? ~0u : (1u << lanes) - 1;
    }
};
constexpr WholeWarp kWholeWarp{};

// ---------------------------------------------------------------------------------------------------------------------------
// Warps and blocks
// ---------------------------------------------------------------------------------------------------------------------------

inline __attribute__((always_inline)) uint32_t converged(uint64_t key) {
    return oxshmem_explore_calls->converged(detail::site(), key);
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

// A vote of the whole warp. Lanes that only a wider warp would have vote yes.
inline uint32_t ballot(WholeWarp mask, bool predicate) {
    return ballot(static_cast<uint32_t>(mask), predicate) | ~static_cast<uint32_t>(mask);
}

template <class T> inline T shfl(uint32_t mask, T value, uint32_t source_lane) {
    static_assert(std::is_trivially_copyable_v<T>, "shfl copies bytes");
    for (size_t at = 0; at < sizeof(T); at += sizeof(uint64_t)) {
        const size_t bytes = sizeof(T) - at < sizeof(uint64_t) ? sizeof(T) - at : sizeof(uint64_t);
        uint64_t word = 0;
        std::memcpy(&word, reinterpret_cast<char *>(&value) + at, bytes);
        word = detail::warp(detail::warp_op::shfl, mask, word, source_lane & 31u);
        std::memcpy(reinterpret_cast<char *>(&value) + at, &word, bytes);
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
    oxshmem_explore_calls->sync_block(0);
}
inline bool sync_block_any(bool predicate) {
    return oxshmem_explore_calls->sync_block(predicate ? 1 : 0) != 0;
}

} // namespace oxshmem::port

// ---------------------------------------------------------------------------------------------------------------------------
// Declarations
// ---------------------------------------------------------------------------------------------------------------------------

#define OXSHMEM_DEVICE inline
#define OXSHMEM_INLINE __attribute__((always_inline)) inline
#define OXSHMEM_OUTLINE inline
#define OXSHMEM_LINKED_OUTLINE inline
#define OXSHMEM_UNROLL
#define OXSHMEM_NO_UNROLL
#define OXSHMEM_NOINLINE __attribute__((noinline)) inline
