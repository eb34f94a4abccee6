// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// CUDA's own names for kernels on the `cpu` device: a part of cpu.h. As in CUDA, atomicX are
// relaxed, __threadfence* are sequentially consistent, and the _sync operations follow port.h's
// rules for masks.
#pragma once

#include <cstdio> // printf

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
// clang-format off
#define __shared__ _Pragma("GCC error \"the cpu device has no __shared__: declare shared memory with OXSHMEM_SHARED(type, name, [n]) or OXSHMEM_DYNAMIC_SHARED(type, name), which mean the same on GPUs; see docs/your-own-crate.md\"")
// clang-format on

#define threadIdx (::oxshmem_cpu_current->thread_idx)
#define blockIdx (::oxshmem_cpu_current->block->block_idx)
#define blockDim (::oxshmem_cpu_current->block->block_dim)
#define gridDim (::oxshmem_cpu_current->block->grid_dim)

constexpr int warpSize = 32;

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};

struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) double2 {
    double x, y;
};

inline int2 make_int2(int x, int y) {
    return {x, y};
}
inline int4 make_int4(int x, int y, int z, int w) {
    return {x, y, z, w};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
    return {x, y, z, w};
}
inline float2 make_float2(float x, float y) {
    return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w) {
    return {x, y, z, w};
}
inline double2 make_double2(double x, double y) {
    return {x, y};
}

// Barriers and fences.

inline void __syncthreads() {
    oxshmem_cpu_sync_block(oxshmem_cpu_current, 0);
}

inline int __syncthreads_count(int predicate) {
    return static_cast<int>(oxshmem_cpu_sync_block(oxshmem_cpu_current, predicate != 0) >> 32);
}

inline int __syncthreads_and(int predicate) {
    const uint64_t votes = oxshmem_cpu_sync_block(oxshmem_cpu_current, predicate != 0);
    return static_cast<uint32_t>(votes) == static_cast<uint32_t>(votes >> 32);
}

inline int __syncthreads_or(int predicate) {
    return (oxshmem_cpu_sync_block(oxshmem_cpu_current, predicate != 0) >> 32) != 0;
}

inline void __syncwarp(unsigned mask = 0xffffffffu) {
    oxshmem::port::sync_warp(mask);
}

inline void __threadfence_block() {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
inline void __threadfence() {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
inline void __threadfence_system() {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

// Warp votes, shuffles and match.

inline __attribute__((always_inline)) unsigned __activemask() {
    return oxshmem::port::active_mask();
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
    return oxshmem::port::ballot(mask, predicate != 0);
}
inline int __any_sync(unsigned mask, int predicate) {
    return oxshmem::port::ballot(mask, predicate != 0) != 0;
}
inline int __all_sync(unsigned mask, int predicate) {
    return oxshmem::port::ballot(mask, predicate == 0) == 0;
}

namespace oxshmem::port::detail {

// A shuffle within segments of `width` lanes; a source outside the caller's segment means the
// caller itself.
template <class T> inline T segment_shfl(unsigned mask, T value, int source, int width) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "CUDA shuffles values of 4 or 8 bytes");
    const int lane = static_cast<int>(lane_id());
    const int first = lane & ~(width - 1);
    const bool inside = source >= first && source < first + width;
    return shfl(mask, value, static_cast<uint32_t>(inside ? source : lane));
}

} // namespace oxshmem::port::detail

template <class T> inline T __shfl_sync(unsigned mask, T value, int source, int width = warpSize) {
    const int first = static_cast<int>(oxshmem::port::lane_id()) & ~(width - 1);
    return oxshmem::port::detail::segment_shfl(mask, value, first + (source & (width - 1)), width);
}

template <class T> inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize) {
    return oxshmem::port::detail::segment_shfl(mask, value,
                                               static_cast<int>(oxshmem::port::lane_id()) - static_cast<int>(delta), width);
}

template <class T> inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize) {
    return oxshmem::port::detail::segment_shfl(mask, value,
                                               static_cast<int>(oxshmem::port::lane_id()) + static_cast<int>(delta), width);
}

// Unlike the others, a source in an earlier segment is read: CUDA leaves only later segments alone.
template <class T> inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = warpSize) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "CUDA shuffles values of 4 or 8 bytes");
    const int lane = static_cast<int>(oxshmem::port::lane_id());
    const int source = lane ^ lane_mask;
    const int end = (lane & ~(width - 1)) + width;
    return oxshmem::port::shfl(mask, value, static_cast<uint32_t>(source < end ? source : lane));
}

template <class T> inline unsigned __match_any_sync(unsigned mask, T value) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "CUDA matches values of 4 or 8 bytes");
    return oxshmem::port::match_any(mask, oxshmem::port::detail::bits<oxshmem::port::detail::raw_t<T>>(value));
}

// Atomics, for the types CUDA has them for.

#define OXSHMEM_CUDA_ATOMIC_(name, type, operation)                                                                            \
    inline type name(type *p, type value) {                                                                                    \
        using namespace oxshmem::port;                                                                                         \
        return operation;                                                                                                      \
    }
#define OXSHMEM_CUDA_ATOMICS_(type)                                                                                            \
    OXSHMEM_CUDA_ATOMIC_(atomicExch, type, (exchange<order::relaxed, reach::device>(p, value)))                                \
    OXSHMEM_CUDA_ATOMIC_(atomicMax, type, (fetch_max<order::relaxed, reach::device>(p, value)))                                \
    OXSHMEM_CUDA_ATOMIC_(atomicMin, type, (detail::fetch_update<order::relaxed, reach::device>(p, [value](type old) {          \
                             return value < old ? value : old;                                                                 \
                         })))                                                                                                  \
    OXSHMEM_CUDA_ATOMIC_(atomicAnd, type, (fetch_and<order::relaxed, reach::device>(p, value)))                                \
    OXSHMEM_CUDA_ATOMIC_(atomicOr, type, (fetch_or<order::relaxed, reach::device>(p, value)))                                  \
    OXSHMEM_CUDA_ATOMIC_(atomicXor, type, (fetch_xor<order::relaxed, reach::device>(p, value)))                                \
    OXSHMEM_CUDA_ATOMIC_(atomicAdd, type, (fetch_add<order::relaxed, reach::device>(p, value)))                                \
    inline type atomicCAS(type *p, type expected, type desired) {                                                              \
        using namespace oxshmem::port;                                                                                         \
        return compare_exchange<order::relaxed, reach::device>(p, expected, desired);                                          \
    }

OXSHMEM_CUDA_ATOMICS_(int)
OXSHMEM_CUDA_ATOMICS_(unsigned)
OXSHMEM_CUDA_ATOMICS_(unsigned long long)
OXSHMEM_CUDA_ATOMIC_(atomicAdd, float, (fetch_add<order::relaxed, reach::device>(p, value)))
OXSHMEM_CUDA_ATOMIC_(atomicAdd, double, (fetch_add<order::relaxed, reach::device>(p, value)))
OXSHMEM_CUDA_ATOMIC_(atomicExch, float, (exchange<order::relaxed, reach::device>(p, value)))
OXSHMEM_CUDA_ATOMIC_(atomicSub, int, (fetch_sub<order::relaxed, reach::device>(p, value)))
OXSHMEM_CUDA_ATOMIC_(atomicSub, unsigned, (fetch_sub<order::relaxed, reach::device>(p, value)))

#undef OXSHMEM_CUDA_ATOMICS_
#undef OXSHMEM_CUDA_ATOMIC_

// Time. The clock counts nanoseconds.

inline long long clock64() {
    return static_cast<long long>(oxshmem::port::clock_ns());
}
inline void __nanosleep(unsigned) {
    oxshmem::port::pause();
}

// Arithmetic.

inline int __popc(unsigned v) {
    return __builtin_popcount(v);
}
inline int __popcll(unsigned long long v) {
    return __builtin_popcountll(v);
}
inline int __ffs(int v) {
    return __builtin_ffs(v);
}
inline int __ffsll(long long v) {
    return __builtin_ffsll(v);
}
inline int __clz(int v) {
    return v == 0 ? 32 : __builtin_clz(static_cast<unsigned>(v));
}
inline int __clzll(long long v) {
    return v == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(v));
}
template <class T> inline T __ldg(const T *p) {
    return *p;
}

#define OXSHMEM_CUDA_MIN_MAX_(type)                                                                                            \
    constexpr type min(type a, type b) {                                                                                       \
        return b < a ? b : a;                                                                                                  \
    }                                                                                                                          \
    constexpr type max(type a, type b) {                                                                                       \
        return a < b ? b : a;                                                                                                  \
    }

OXSHMEM_CUDA_MIN_MAX_(int)
OXSHMEM_CUDA_MIN_MAX_(unsigned)
OXSHMEM_CUDA_MIN_MAX_(long)
OXSHMEM_CUDA_MIN_MAX_(unsigned long)
OXSHMEM_CUDA_MIN_MAX_(long long)
OXSHMEM_CUDA_MIN_MAX_(unsigned long long)
OXSHMEM_CUDA_MIN_MAX_(float)
OXSHMEM_CUDA_MIN_MAX_(double)

#undef OXSHMEM_CUDA_MIN_MAX_

// Mixed signs convert to unsigned, as CUDA's do.
constexpr unsigned min(int a, unsigned b) {
    return min(static_cast<unsigned>(a), b);
}
constexpr unsigned min(unsigned a, int b) {
    return min(a, static_cast<unsigned>(b));
}
constexpr unsigned max(int a, unsigned b) {
    return max(static_cast<unsigned>(a), b);
}
constexpr unsigned max(unsigned a, int b) {
    return max(a, static_cast<unsigned>(b));
}
