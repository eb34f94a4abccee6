// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// The port layer for NVIDIA GPUs. This file alone contains inline PTX. See port.h for what each
// name promises.
//
// PTX ISA 8.3, "Memory Consistency Model": .relaxed, .acquire and .release operations with a scope
// are morally strong and synchronise between threads of that scope; fence.acq_rel orders everything
// before it with everything after it.
#pragma once

#include <oxshmem/abi.h>

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>

#include <cstring>
#endif

#define OXSHMEM_DEVICE __device__ __forceinline__
#define OXSHMEM_INLINE OXSHMEM_DEVICE
#define OXSHMEM_UNROLL _Pragma("unroll")
#define OXSHMEM_NO_UNROLL _Pragma("unroll 1")
// Relocatable functions have at most as many registers as a kernel may have whose blocks are to
// have 1024 threads. In a program that is compiled as a whole ptxas ignores the attribute, and
// warns of it. `used` keeps the compiler from leaving parameters out that are the same in all
// calls: a function that it changes so loses the attribute.
#if defined(__CUDACC_RDC__) && defined(__local_maxnreg__)
#define OXSHMEM_FEW_REGISTERS __local_maxnreg__(64) __attribute__((used))
#else
#define OXSHMEM_FEW_REGISTERS
#endif
#define OXSHMEM_NOINLINE static __device__ __noinline__ OXSHMEM_FEW_REGISTERS
#define OXSHMEM_OUTLINE static __device__ __noinline__ OXSHMEM_FEW_REGISTERS
#ifdef __CUDACC_RDC__
#define OXSHMEM_LINKED_OUTLINE OXSHMEM_OUTLINE
#else
#define OXSHMEM_LINKED_OUTLINE OXSHMEM_DEVICE
#endif
// Any block that the hardware takes can be launched: the bound keeps the registers of a thread low
// enough. Not told that one block of a multiprocessor is enough, ptxas was seen to spill registers
// rather than take all that the bound leaves.
#define OXSHMEM_KERNEL(name, ...) extern "C" __global__ void __launch_bounds__(1024, 1) name(__VA_ARGS__)
#define OXSHMEM_BOUNDED_KERNEL(threads, name, ...) extern "C" __global__ void __launch_bounds__(threads, 1) name(__VA_ARGS__)
#define OXSHMEM_SHARED(type, name, ...) __shared__ type name __VA_ARGS__
#define OXSHMEM_DYNAMIC_SHARED(type, name)                                                                                     \
    extern __shared__ __align__(16) unsigned char oxshmem_dynamic_shared[];                                                    \
    type *const name = reinterpret_cast<type *>(oxshmem_dynamic_shared)

#if __CUDA_ARCH__ >= 900
#define OXSHMEM_SYNCS_GRID_DEPENDENCY extern "C" __device__ unsigned char oxshmem_syncs_grid_dependency = 1
#else
#define OXSHMEM_SYNCS_GRID_DEPENDENCY static_assert(true)
#endif

// A name of the device library, detail/library.h.
#define OXSHMEM_LIBRARY_NAME_(name, version) oxshmem_library_##name##_v##version
#define OXSHMEM_LIBRARY_NAME(name, version) OXSHMEM_LIBRARY_NAME_(name, version)
#define OXSHMEM_LIBRARY(name) OXSHMEM_LIBRARY_NAME(name, OXSHMEM_ABI_VERSION)

// The state symbol of this module. It is born with what the module was built for, which the runtime
// checks before it fills the symbol. A module that is loaded through the driver API exports it
// under this name; a program of several CUDA-runtime translation units keeps one per unit. What is
// linked with the device library has the library's.
#define OXSHMEM_STATE_AS_BUILT                                                                                                 \
    { oxshmem::abi::kMagic, oxshmem::abi::kAbiVersion, sizeof(oxshmem::abi::State) }
#if defined(OXSHMEM_DEVICE_LIBRARY)
#ifndef __CUDACC_RDC__
#error "OXSHMEM_DEVICE_LIBRARY needs --relocatable-device-code=true, and the device library to link with"
#endif
extern "C" __constant__ oxshmem::abi::State OXSHMEM_LIBRARY(state);
#define oxshmem_state OXSHMEM_LIBRARY(state)
#elif defined(OXSHMEM_MODULE_NAME) || defined(__CUDACC_RTC__)
extern "C" __constant__ oxshmem::abi::State oxshmem_state;
__constant__ oxshmem::abi::State oxshmem_state = OXSHMEM_STATE_AS_BUILT;
#else
static __constant__ oxshmem::abi::State oxshmem_state = OXSHMEM_STATE_AS_BUILT;
#include <oxshmem/port/unit.h>
#ifdef __CUDACC_RDC__
// Relocatable code has the symbol under a name of its own. Where a program loads a module of it,
// the runtime finds this kernel, by a part of its name, which is mangled too.
static __global__ void __attribute__((used)) oxshmem_state_of_unit(const oxshmem::abi::State **to) {
    *to = &oxshmem_state;
}
#endif
#endif
#undef OXSHMEM_STATE_AS_BUILT

namespace oxshmem::port {

enum class order { relaxed, acquire, release, acq_rel };
enum class reach { block, device, system };

// Adjacent lanes should touch adjacent addresses. Whether p and g refuse words that are not
// aligned. The check costs a GPU an instruction for each of them.
constexpr bool kChecksWords = false;
// Whether use of a private context from two places at once is looked for.
constexpr bool kChecksContexts = false;
// How often a short wait looks before it becomes one with a deadline.
constexpr uint32_t kLooks = 64;
constexpr bool kCoalesced = true;
constexpr bool kGridsRelease = true;
constexpr uint32_t kEagerLooks = 32;
constexpr uint64_t kLongShare = 4 << 20;
// Whether code is relocatable: functions that are not inlined keep registers for their callers.
#ifdef __CUDACC_RDC__
constexpr bool kRelocatable = true;
#else
constexpr bool kRelocatable = false;
#endif
constexpr uint32_t kWholeWarp = 0xffffffff;

OXSHMEM_DEVICE const abi::State &state() {
    return oxshmem_state;
}

namespace detail {

template <class To, class From> OXSHMEM_DEVICE To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof(To));
    return to;
}

template <size_t N> struct word;
template <> struct word<1> { using type = uint32_t; };
template <> struct word<2> { using type = uint16_t; };
template <> struct word<4> { using type = uint32_t; };
template <> struct word<8> { using type = uint64_t; };

template <class T> OXSHMEM_DEVICE auto to_word(T value) {
    if constexpr (sizeof(T) == 1) {
        return static_cast<uint32_t>(bit_cast<uint8_t>(value));
    } else {
        return bit_cast<typename word<sizeof(T)>::type>(value);
    }
}

template <class T> OXSHMEM_DEVICE T from_word(typename word<sizeof(T)>::type value) {
    if constexpr (sizeof(T) == 1) {
        return bit_cast<T>(static_cast<uint8_t>(value));
    } else {
        return bit_cast<T>(value);
    }
}

// The operand of an instruction with this reach: an address of global memory, or a generic one.
template <reach R> OXSHMEM_DEVICE uint64_t operand(const void *p) {
    return R == reach::block ? reinterpret_cast<uint64_t>(p) : __cvta_generic_to_global(p);
}

} // namespace detail

// One macro for each shape of instruction, expanded for every semantic x scope x width. What
// threads of several blocks share lies in global memory, and the instructions say so: for a generic
// address the compiler adds a test for shared memory to every atomic, with a loop that emulates it
// there, and waits for the answer of atomics that have none.
#define OXSHMEM_PTX_LOAD(sem, sc, S, space, R)                                                                                 \
    if constexpr (O == order::sem && R == reach::S) {                                                                          \
        if constexpr (sizeof(T) == 1)                                                                                          \
            asm volatile("ld." #sem "." #sc space ".u8 %0, [%1];" : "=r"(out) : "l"(at) : "memory");                           \
        else if constexpr (sizeof(T) == 2)                                                                                     \
            asm volatile("ld." #sem "." #sc space ".u16 %0, [%1];" : "=h"(out) : "l"(at) : "memory");                          \
        else if constexpr (sizeof(T) == 4)                                                                                     \
            asm volatile("ld." #sem "." #sc space ".u32 %0, [%1];" : "=r"(out) : "l"(at) : "memory");                          \
        else                                                                                                                   \
            asm volatile("ld." #sem "." #sc space ".u64 %0, [%1];" : "=l"(out) : "l"(at) : "memory");                          \
    }

#define OXSHMEM_PTX_STORE(sem, sc, S, space, R)                                                                                \
    if constexpr (O == order::sem && R == reach::S) {                                                                          \
        if constexpr (sizeof(T) == 1)                                                                                          \
            asm volatile("st." #sem "." #sc space ".u8 [%0], %1;" ::"l"(at), "r"(in) : "memory");                              \
        else if constexpr (sizeof(T) == 2)                                                                                     \
            asm volatile("st." #sem "." #sc space ".u16 [%0], %1;" ::"l"(at), "h"(in) : "memory");                             \
        else if constexpr (sizeof(T) == 4)                                                                                     \
            asm volatile("st." #sem "." #sc space ".u32 [%0], %1;" ::"l"(at), "r"(in) : "memory");                             \
        else                                                                                                                   \
            asm volatile("st." #sem "." #sc space ".u64 [%0], %1;" ::"l"(at), "l"(in) : "memory");                             \
    }

#define OXSHMEM_PTX_RMW(sem, sc, S, space, op, t32, t64)                                                                       \
    if constexpr (O == order::sem && R == reach::S) {                                                                          \
        if constexpr (sizeof(T) == 4)                                                                                          \
            asm volatile("atom." #sem "." #sc space "." op "." t32 " %0, [%1], %2;"                                            \
                         : "=r"(out)                                                                                           \
                         : "l"(at), "r"(in)                                                                                    \
                         : "memory");                                                                                          \
        else                                                                                                                   \
            asm volatile("atom." #sem "." #sc space "." op "." t64 " %0, [%1], %2;"                                            \
                         : "=l"(out)                                                                                           \
                         : "l"(at), "l"(in)                                                                                    \
                         : "memory");                                                                                          \
    }

#define OXSHMEM_PTX_CAS(sem, sc, S, space, R)                                                                                  \
    if constexpr (O == order::sem && R == reach::S) {                                                                          \
        if constexpr (sizeof(T) == 4)                                                                                          \
            asm volatile("atom." #sem "." #sc space ".cas.b32 %0, [%1], %2, %3;"                                               \
                         : "=r"(out)                                                                                           \
                         : "l"(at), "r"(cmp), "r"(in)                                                                          \
                         : "memory");                                                                                          \
        else                                                                                                                   \
            asm volatile("atom." #sem "." #sc space ".cas.b64 %0, [%1], %2, %3;"                                               \
                         : "=l"(out)                                                                                           \
                         : "l"(at), "l"(cmp), "l"(in)                                                                          \
                         : "memory");                                                                                          \
    }

#define OXSHMEM_PTX_SCOPES(M, sem, ...)                                                                                        \
    M(sem, cta, block, "", __VA_ARGS__)                                                                                        \
    M(sem, gpu, device, ".global", __VA_ARGS__) M(sem, sys, system, ".global", __VA_ARGS__)

template <order O, reach R, class T> OXSHMEM_DEVICE T load(const T *p) {
    static_assert(O == order::relaxed || O == order::acquire);
    const uint64_t at = detail::operand<R>(p);
    typename detail::word<sizeof(T)>::type out;
    OXSHMEM_PTX_SCOPES(OXSHMEM_PTX_LOAD, relaxed, R)
    OXSHMEM_PTX_SCOPES(OXSHMEM_PTX_LOAD, acquire, R)
    return detail::from_word<T>(out);
}

// If a load's value is not used, ptxas keeps only its ordering (CCTL.IVALL).
template <reach R, class T> OXSHMEM_DEVICE void acquire(const T *p) {
    load<order::acquire, R>(p);
}

template <order O, reach R, class T> OXSHMEM_DEVICE void store(T *p, T value) {
    static_assert(O == order::relaxed || O == order::release);
    const uint64_t at = detail::operand<R>(p);
    const auto in = detail::to_word(value);
    OXSHMEM_PTX_SCOPES(OXSHMEM_PTX_STORE, relaxed, R)
    OXSHMEM_PTX_SCOPES(OXSHMEM_PTX_STORE, release, R)
}

#define OXSHMEM_PTX_DEFINE_RMW(name, op, t32, t64)                                                                             \
    template <order O, reach R, class T> OXSHMEM_DEVICE T name(T *p, T value) {                                                \
        static_assert(sizeof(T) == 4 || sizeof(T) == 8);                                                                       \
        const uint64_t at = detail::operand<R>(p);                                                                             \
        const auto in = detail::to_word(value);                                                                                \
        typename detail::word<sizeof(T)>::type out;                                                                            \
        OXSHMEM_PTX_SCOPES(OXSHMEM_PTX_RMW, relaxed, op, t32, t64)                                                             \
        OXSHMEM_PTX_SCOPES(OXSHMEM_PTX_RMW, acquire, op, t32, t64)                                                             \
        OXSHMEM_PTX_SCOPES(OXSHMEM_PTX_RMW, release, op, t32, t64)                                                             \
        OXSHMEM_PTX_SCOPES(OXSHMEM_PTX_RMW, acq_rel, op, t32, t64)                                                             \
        return detail::from_word<T>(out);                                                                                      \
    }

OXSHMEM_PTX_DEFINE_RMW(fetch_add, "add", "u32", "u64")
OXSHMEM_PTX_DEFINE_RMW(fetch_or, "or", "b32", "b64")
OXSHMEM_PTX_DEFINE_RMW(fetch_and, "and", "b32", "b64")
OXSHMEM_PTX_DEFINE_RMW(fetch_xor, "xor", "b32", "b64")
OXSHMEM_PTX_DEFINE_RMW(fetch_max, "max", "u32", "u64") // of unsigned values
OXSHMEM_PTX_DEFINE_RMW(exchange, "exch", "b32", "b64")

#define OXSHMEM_PTX_RED(sem, sc, S, space, op, t32, t64)                                                                       \
    if constexpr (O == order::sem && R == reach::S) {                                                                          \
        if constexpr (sizeof(T) == 4)                                                                                          \
            asm volatile("red." #sem "." #sc space "." op "." t32 " [%0], %1;" ::"l"(at), "r"(in) : "memory");                 \
        else                                                                                                                   \
            asm volatile("red." #sem "." #sc space "." op "." t64 " [%0], %1;" ::"l"(at), "l"(in) : "memory");                 \
    }

#define OXSHMEM_PTX_DEFINE_RED(name, op, t32, t64)                                                                             \
    template <order O, reach R, class T> OXSHMEM_DEVICE void name(T *p, T value) {                                             \
        static_assert(sizeof(T) == 4 || sizeof(T) == 8);                                                                       \
        static_assert(O == order::relaxed || O == order::release);                                                             \
        const uint64_t at = detail::operand<R>(p);                                                                             \
        const auto in = detail::to_word(value);                                                                                \
        OXSHMEM_PTX_SCOPES(OXSHMEM_PTX_RED, relaxed, op, t32, t64)                                                             \
        OXSHMEM_PTX_SCOPES(OXSHMEM_PTX_RED, release, op, t32, t64)                                                             \
    }

OXSHMEM_PTX_DEFINE_RED(add_to, "add", "u32", "u64")
OXSHMEM_PTX_DEFINE_RED(raise_to, "max", "u32", "u64")

template <order O, reach R, class T> OXSHMEM_DEVICE T compare_exchange(T *p, T expected, T desired) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8);
    const uint64_t at = detail::operand<R>(p);
    const auto cmp = detail::to_word(expected);
    const auto in = detail::to_word(desired);
    typename detail::word<sizeof(T)>::type out;
    OXSHMEM_PTX_SCOPES(OXSHMEM_PTX_CAS, relaxed, R)
    OXSHMEM_PTX_SCOPES(OXSHMEM_PTX_CAS, acquire, R)
    OXSHMEM_PTX_SCOPES(OXSHMEM_PTX_CAS, release, R)
    OXSHMEM_PTX_SCOPES(OXSHMEM_PTX_CAS, acq_rel, R)
    return detail::from_word<T>(out);
}

#undef OXSHMEM_PTX_LOAD
#undef OXSHMEM_PTX_STORE
#undef OXSHMEM_PTX_RMW
#undef OXSHMEM_PTX_CAS
#undef OXSHMEM_PTX_SCOPES
#undef OXSHMEM_PTX_DEFINE_RMW
#undef OXSHMEM_PTX_RED
#undef OXSHMEM_PTX_DEFINE_RED

template <order O, reach R> OXSHMEM_DEVICE void fence() {
    static_assert(O == order::acq_rel || O == order::release);
#if __CUDA_ARCH__ >= 900
    // PTX ISA 8.6. Unlike the other it leaves the L1 cache as it is.
    if constexpr (O == order::release && R == reach::device) {
        asm volatile("fence.release.gpu;" ::: "memory");
        return;
    } else if constexpr (O == order::release && R == reach::system) {
        asm volatile("fence.release.sys;" ::: "memory");
        return;
    }
#endif
    if constexpr (R == reach::block) {
        asm volatile("fence.acq_rel.cta;" ::: "memory");
    } else if constexpr (R == reach::device) {
        asm volatile("fence.acq_rel.gpu;" ::: "memory");
    } else {
        asm volatile("fence.acq_rel.sys;" ::: "memory");
    }
}

OXSHMEM_DEVICE void mmio_store(uint64_t *reg, uint64_t value) {
    asm volatile("st.mmio.relaxed.sys.global.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(reg)), "l"(value) : "memory");
}

template <class T> OXSHMEM_DEVICE T read(const T *p) {
    return *p;
}
template <class T> OXSHMEM_DEVICE void write(T *p, T value) {
    *p = value;
}
OXSHMEM_DEVICE void copy_bytes(void *dst, const void *src, uint64_t bytes) {
    memcpy(dst, src, bytes);
}

OXSHMEM_DEVICE void probe(const void *, uint64_t) {}

struct alignas(16) vec16 {
    uint32_t x, y, z, w;
};

OXSHMEM_DEVICE vec16 load_vec(const void *p) {
    return *static_cast<const vec16 *>(p);
}
OXSHMEM_DEVICE void store_vec(void *p, vec16 v) {
    *static_cast<vec16 *>(p) = v;
}

constexpr uint32_t kSectorBytes = 32;

template <uint32_t kSectors, uint32_t kApart> OXSHMEM_DEVICE void touch(const void *p, uint32_t bytes) {
    uint32_t found[kSectors], all = 0;
    OXSHMEM_UNROLL
    for (uint32_t i = 0; i < kSectors; ++i) {
        const uint32_t offset = i * kApart * kSectorBytes < bytes ? i * kApart * kSectorBytes : bytes - 1;
        asm volatile("ld.u8 %0, [%1];" : "=r"(found[i]) : "l"(static_cast<const char *>(p) + offset) : "memory");
    }
    OXSHMEM_UNROLL
    for (uint32_t i = 0; i < kSectors; ++i) {
        all |= found[i];
    }
    // The compiler would remove loads whose values are not used. (prefetch.global.L1 is slower than
    // not to prefetch, on an H200.)
    asm volatile("{ .reg .pred p; setp.eq.u32 p, %0, 1; @p nanosleep.u32 0; }" ::"r"(all));
}

struct pair64 {
    uint64_t first, second;
};

template <order O, reach R> OXSHMEM_DEVICE pair64 load_pair(const uint64_t *p) {
    static_assert(R == reach::system || (R == reach::device && O == order::relaxed));
    const uint64_t at = detail::operand<R>(p);
    pair64 v;
    if constexpr (R == reach::device) {
        asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(v.first), "=l"(v.second) : "l"(at) : "memory");
    } else if constexpr (O == order::acquire) {
        asm volatile("ld.acquire.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(v.first), "=l"(v.second) : "l"(at) : "memory");
    } else {
        asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(v.first), "=l"(v.second) : "l"(at) : "memory");
    }
    return v;
}

template <order O, reach R> OXSHMEM_DEVICE vec16 load_four(const uint32_t *p) {
    static_assert(R == reach::device && O == order::relaxed);
    const uint64_t at = detail::operand<R>(p);
    vec16 v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at)
                 : "memory");
    return v;
}

OXSHMEM_DEVICE void store_pair(uint64_t *p, uint64_t first, uint64_t second) {
    asm volatile("st.relaxed.sys.v2.u64 [%0], {%1, %2};" ::"l"(p), "l"(first), "l"(second) : "memory");
}

template <class T> OXSHMEM_DEVICE void forget(T &value) {
    static_assert(sizeof(T) == 4);
    asm volatile("" : "+r"(value));
}

OXSHMEM_DEVICE void through_memory(void *p) {
    asm volatile("" ::"l"(p) : "memory");
}

OXSHMEM_DEVICE void wake_host() {}

OXSHMEM_DEVICE void watch_atomic(uint64_t, uint32_t, int, bool) {}

OXSHMEM_DEVICE void pause() {}

// The limit of a sleep is 1 ms (CUDA C++ Programming Guide, "Nanosleep function"); this stays far
// below it.
OXSHMEM_DEVICE void back_off(uint32_t tries) {
    __nanosleep(64u << (tries < 6 ? tries : 6));
}

OXSHMEM_DEVICE uint64_t clock_ns() {
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

OXSHMEM_DEVICE uint32_t lane_id() {
    uint32_t lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

OXSHMEM_DEVICE uint32_t thread_rank() {
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
OXSHMEM_DEVICE uint32_t block_threads() {
    return blockDim.x * blockDim.y * blockDim.z;
}
OXSHMEM_DEVICE uint32_t block_rank() {
    return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
}
OXSHMEM_DEVICE uint32_t grid_blocks() {
    return gridDim.x * gridDim.y * gridDim.z;
}
OXSHMEM_DEVICE void grid_dependency_sync() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

OXSHMEM_DEVICE uint32_t active_mask() {
    return __activemask();
}

// Lanes work together as a whole warp, or each alone. Where groups of lanes with different masks
// meet at a vote, a shuffle or a match, ptxas of CUDA 13.0 (sm_90) was seen to give each the values
// of others, so no warp operation here has a mask that only the running program knows.
OXSHMEM_DEVICE uint32_t converged(uint64_t key) {
    const uint32_t alone = 1u << lane_id();
    if (active_mask() != kWholeWarp) {
        return alone;
    }
    int all;
    __match_all_sync(kWholeWarp, static_cast<unsigned long long>(key), &all);
    return all != 0 ? kWholeWarp : alone;
}
OXSHMEM_DEVICE bool is_single() {
    return active_mask() != kWholeWarp;
}
OXSHMEM_DEVICE uint32_t ballot(uint32_t mask, bool predicate) {
    return mask == kWholeWarp ? __ballot_sync(kWholeWarp, predicate) : predicate ? mask : 0;
}
template <class T> OXSHMEM_DEVICE T shfl(uint32_t mask, T value, uint32_t source_lane) {
    if (mask == kWholeWarp) {
        // The shuffle instruction moves 32 bits.
        constexpr size_t kWords = (sizeof(T) + 3) / 4;
        uint32_t words[kWords] = {};
        memcpy(words, &value, sizeof(T));
        OXSHMEM_UNROLL
        for (size_t i = 0; i < kWords; ++i) {
            words[i] = __shfl_sync(kWholeWarp, words[i], source_lane);
        }
        memcpy(&value, words, sizeof(T));
    }
    return value;
}
OXSHMEM_DEVICE uint32_t match_any(uint32_t mask, uint64_t value) {
    return mask == kWholeWarp ? __match_any_sync(kWholeWarp, static_cast<unsigned long long>(value)) : mask;
}
OXSHMEM_DEVICE uint32_t run_starts(uint32_t mask, uint64_t value, uint32_t step) {
    const uint32_t lane = lane_id();
    const uint64_t before = shfl(mask, value, lane == 0 ? 0 : lane - 1);
    return ballot(mask, mask != kWholeWarp || lane == 0 || value != before + step);
}
OXSHMEM_DEVICE void sync_warp(uint32_t mask) {
    if (mask == kWholeWarp) {
        __syncwarp();
    }
}
OXSHMEM_DEVICE void sync_block() {
    __syncthreads();
}
OXSHMEM_DEVICE void sync_warps(uint32_t barrier, uint32_t threads) {
    // Barriers count whole warps.
    asm volatile("barrier.sync %0, %1;" ::"r"(barrier), "r"((threads + 31) & ~31u) : "memory");
}
OXSHMEM_DEVICE bool sync_block_any(bool predicate) {
    return __syncthreads_or(predicate ? 1 : 0) != 0;
}

OXSHMEM_DEVICE uint32_t count_ones(uint32_t bits) {
    return __popc(bits);
}
OXSHMEM_DEVICE uint32_t lowest_bit(uint32_t bits) {
    return __ffs(static_cast<int>(bits)) - 1;
}
OXSHMEM_DEVICE uint32_t lowest_bit(uint64_t bits) {
    return __ffsll(static_cast<long long>(bits)) - 1;
}
OXSHMEM_DEVICE uint32_t leading_zeros(uint32_t bits) {
    return __clz(static_cast<int>(bits));
}
OXSHMEM_DEVICE uint32_t byte_swap(uint32_t v) {
    return __byte_perm(v, 0, 0x0123);
}
OXSHMEM_DEVICE uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector) {
    return __byte_perm(a, b, selector);
}
OXSHMEM_DEVICE uint64_t byte_swap(uint64_t v) {
    return static_cast<uint64_t>(byte_swap(static_cast<uint32_t>(v))) << 32 | byte_swap(static_cast<uint32_t>(v >> 32));
}

OXSHMEM_DEVICE float lesser(float a, float b) {
    asm("min.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
    return a;
}
OXSHMEM_DEVICE float greater(float a, float b) {
    asm("max.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
    return a;
}
OXSHMEM_DEVICE double lesser(double a, double b) {
    asm("min.f64 %0, %0, %1;" : "+d"(a) : "d"(b));
    return a;
}
OXSHMEM_DEVICE double greater(double a, double b) {
    asm("max.f64 %0, %0, %1;" : "+d"(a) : "d"(b));
    return a;
}

OXSHMEM_DEVICE float half_to_float(uint16_t bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
OXSHMEM_DEVICE uint16_t float_to_half(float value) {
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
OXSHMEM_DEVICE uint32_t to_halves(float low, float high) {
    uint32_t bits;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}
OXSHMEM_DEVICE uint32_t to_bfloat16s(float low, float high) {
    uint32_t bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

OXSHMEM_DEVICE uint3 block_index() {
    return blockIdx;
}
OXSHMEM_DEVICE uint3 thread_index() {
    return threadIdx;
}

} // namespace oxshmem::port
