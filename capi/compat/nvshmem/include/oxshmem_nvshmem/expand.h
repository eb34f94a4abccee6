// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// What an entry of the lists (list_*.h) becomes: a declaration for host compilers, functions for
// units with device code, and a definition in libnvshmem_host.
//
//   OXSHMEM_NV_BOTH(result, name, parameters, device, host)   a function of both, with one name
//   OXSHMEM_NV_DEVICE(scope, result, name, parameters, body)  a device function of a scope
//   OXSHMEM_NV_HOST(result, name, parameters, body)           a host function
//
// With OXSHMEM_NV_BITCODE the device functions are all defined, for the device library as bitcode.
//
// Device functions are templates whose parameter has a default that callers leave alone: `S` is the
// scope. So only what a program uses is compiled.
#pragma once

#include "abi.h"

#ifdef OXSHMEM_NV_DEVICE_CODE
// The units of a program find libnvshmem_host, and need no other library.
#ifdef OXSHMEM_NV_HOST_CODE
#define OXSHMEM_UNIT_REGISTER oxshmem_nv_unit_register
#define OXSHMEM_UNIT_UNREGISTER oxshmem_nv_unit_unregister
#endif
#include "oxshmem.h"

namespace oxshmem_nv {

// A pointer as the templates take it: CUDA's 16-bit floating-point types are storage to them.
template <class T> struct native { using type = T; };
template <> struct native<OXSHMEM_NV_HALF> { using type = oxshmem::half; };
template <> struct native<OXSHMEM_NV_BFLOAT16> { using type = oxshmem::bfloat16; };

template <class T> OXSHMEM_DEVICE auto *to_native(T *p) {
    return reinterpret_cast<typename native<T>::type *>(p);
}
template <class T> OXSHMEM_DEVICE auto *to_native(const T *p) {
    return reinterpret_cast<const typename native<T>::type *>(p);
}

OXSHMEM_DEVICE oxshmem::Compare compare(int cmp) {
    return static_cast<oxshmem::Compare>(cmp);
}
OXSHMEM_DEVICE oxshmem::SignalOp signal(int op) {
    return static_cast<oxshmem::SignalOp>(op);
}

// The word of a floating-point number.
template <size_t kBytes> struct word_of { using type = uint32_t; };
template <> struct word_of<8> { using type = uint64_t; };

// Adds by compare and swap until nothing came between. Returns the old value.
template <class Scope, class T> OXSHMEM_DEVICE T fetch_add_floating(Scope, T *target, T value, int pe) {
    using Word = typename word_of<sizeof(T)>::type;
    Word *const word = reinterpret_cast<Word *>(target);
    Word seen = oxshmem::atomic_fetch(word, pe);
    for (;;) {
        T before, after;
        memcpy(&before, &seen, sizeof(T));
        after = before + value;
        Word wanted;
        memcpy(&wanted, &after, sizeof(T));
        const Word found = oxshmem::atomic_compare_swap(word, seen, wanted, pe);
        // After an error every call returns 0, and so the second one ends the loop.
        if (found == seen) {
            return before;
        }
        seen = found;
    }
}

// Changes a binary16 number by compare and swap of the word of 32 bits that it is in, until nothing
// came between. Returns the old number.
template <class T, class Change> OXSHMEM_DEVICE T update_half(const T *target, int pe, Change change) {
    static_assert(sizeof(T) == sizeof(uint16_t), "binary16");
    const uint64_t address = reinterpret_cast<uint64_t>(target);
    // An odd address stays one, and is refused.
    uint32_t *const word = reinterpret_cast<uint32_t *>((address & 1) != 0 ? address : address & ~uint64_t{3});
    const uint32_t shift = (address & 2) != 0 ? 16 : 0;
    uint32_t seen = oxshmem::atomic_fetch(word, pe);
    for (;;) {
        const uint16_t before = static_cast<uint16_t>(seen >> shift), after = change(before);
        const uint32_t wanted = (seen & ~(uint32_t{0xffff} << shift)) | static_cast<uint32_t>(after) << shift;
        // An atomic fetch has seen it whole already.
        const uint32_t found = before == after ? seen : oxshmem::atomic_compare_swap(word, seen, wanted, pe);
        // After an error every call returns 0, and so the second one ends the loop.
        if (found == seen) {
            T old;
            memcpy(&old, &before, sizeof(old));
            return old;
        }
        seen = found;
    }
}
template <class T> OXSHMEM_DEVICE T half_fetch(const T *target, int pe) {
    return update_half(target, pe, [](uint16_t bits) { return bits; });
}
template <class T> OXSHMEM_DEVICE T half_swap(T *target, T value, int pe) {
    uint16_t given;
    memcpy(&given, &value, sizeof(given));
    return update_half(target, pe, [given](uint16_t) { return given; });
}
template <class T> OXSHMEM_DEVICE T half_fetch_add(T *target, T value, int pe) {
    oxshmem::half given;
    memcpy(&given, &value, sizeof(given));
    const float wide = oxshmem::to_float(given);
    // The sum of two of them in 32 bits is rounded once.
    return update_half(target, pe,
                       [wide](uint16_t bits) { return oxshmem::to_half(oxshmem::to_float(oxshmem::half{bits}) + wide).bits; });
}

// The greater value with its place; of equal ones the lower place, so that all members choose the
// same. A value that is no number loses.
struct MaxLoc {
    OXSHMEM_DEVICE oxshmem::port::vec16 operator()(oxshmem::port::vec16 a, oxshmem::port::vec16 b) const {
        double x[2], y[2];
        memcpy(x, &a, sizeof(x));
        memcpy(y, &b, sizeof(y));
        const bool first = x[0] > y[0] || (x[0] == y[0] && x[1] <= y[1]) || y[0] != y[0];
        return first ? a : b;
    }
    // Two numbers of 64 bits. No other name of this layer reduces those, so members that call this
    // together with anything else are told.
    OXSHMEM_DEVICE oxshmem::abi::Type type() const { return oxshmem::abi::Type::complex64; }
    OXSHMEM_DEVICE oxshmem::abi::ReduceOp op() const { return oxshmem::abi::ReduceOp::op_sum; }
};

// Calls `act` with the context that a handle of a queue pair stands for. A handle that stands for
// none is recorded as an error.
template <class Act> OXSHMEM_DEVICE void with_qp(nvshmemx_qp_handle_t handle, Act act) {
    oxshmem::Context context{};
    if (handle == NVSHMEMX_QP_DEFAULT || handle == NVSHMEMX_QP_ANY ||
        oxshmem::numbered_context(static_cast<uint32_t>(handle) - OXSHMEM_NV_QP_FIRST, context)) {
        act(context);
    }
}
// Calls `act` with the contexts of several handles: those of the array, or, without one, the
// default context's and, if `n` says so, all.
template <class Act> OXSHMEM_DEVICE void with_qps(const nvshmemx_qp_handle_t *handles, int n, Act act) {
    if (n == NVSHMEMX_QP_ALL || (handles != nullptr && n > 0 && handles[0] == NVSHMEMX_QP_ALL)) {
        act(oxshmem::Context{});
        oxshmem::for_each_numbered_context(act);
    } else if (handles == nullptr) {
        act(oxshmem::Context{});
    } else {
        for (int i = 0; i < n; ++i) {
            with_qp(handles[i], act);
        }
    }
}
template <class S> OXSHMEM_DEVICE void quiet_qps(const nvshmemx_qp_handle_t *handles, int n) {
    with_qps(handles, n, [](const oxshmem::Context &context) { oxshmem::quiet(context, S{}); });
}

// Completes what was posted by any handle, for calls that take none: they are for all operations.
template <class S> OXSHMEM_DEVICE void quiet_handles() {
    oxshmem::for_each_numbered_context([](const oxshmem::Context &context) { oxshmem::quiet(context, S{}); });
}
template <class S> OXSHMEM_DEVICE void quiet() {
    oxshmem::quiet(S{});
    quiet_handles<S>();
}
template <class S> OXSHMEM_DEVICE int barrier(nvshmem_team_t team) {
    quiet_handles<S>();
    return static_cast<int>(oxshmem::barrier(S{}, team));
}
template <class S> OXSHMEM_DEVICE void barrier_all() {
    quiet_handles<S>();
    oxshmem::barrier_all(S{});
}

// Orders what all blocks of this PE have posted without a handle before what any of them posts
// later. One queue pair to each PE is shared by all blocks and keeps the order that a fence marks
// in it. Blocks that have queue pairs of their own are ordered by completion alone.
OXSHMEM_LAZY OXSHMEM_DEVICE void fence_default() {
    if (oxshmem::port::state().qps_per_pe > 1) {
        oxshmem::quiet();
    } else {
        oxshmem::fence();
    }
}
// Does the same for all operations. Those by handles are ordered by completion.
OXSHMEM_LAZY OXSHMEM_DEVICE void fence() {
    fence_default();
    quiet_handles<oxshmem::thread_scope>();
}

// Does the same for the operations by these handles. A handle has one queue pair to each PE, except
// over IBRC, where it has none of its own.
template <class S> OXSHMEM_DEVICE void fence_qps(const nvshmemx_qp_handle_t *handles, int n) {
    S::sync();
    if (S::rank() == 0) {
        const bool single = handles != nullptr && n == 1 && handles[0] != NVSHMEMX_QP_ALL;
        const bool shared = oxshmem::port::state().network == static_cast<uint32_t>(oxshmem::abi::Network::ibrc);
        with_qps(handles, n, [single, shared](const oxshmem::Context &context) {
            if (shared || context.n_pes == 0) {
                fence_default();
            } else if (single) {
                oxshmem::fence(context);
            } else {
                oxshmem::quiet(context);
            }
        });
    }
    S::sync();
}

// A barrier of a team by four warps of a block, of which the first meets the other PEs. Several
// groups of a block may call it at a time, for teams of their own. In the other warps an error is
// recorded and not returned.
OXSHMEM_LAZY OXSHMEM_DEVICE int barrier_of_warpgroup(nvshmem_team_t team) {
    constexpr uint32_t kThreads = 128, kFirstBarrier = 8; // of 16 that a block has
    const uint32_t group = oxshmem::port::thread_rank() / kThreads;
    const uint32_t left = oxshmem::port::block_threads() - group * kThreads, threads = left < kThreads ? left : kThreads;
    oxshmem::port::sync_warps(kFirstBarrier + group, threads);
    const int failed = oxshmem::port::thread_rank() % kThreads < 32 ? barrier<oxshmem::warp_scope>(team) : 0;
    oxshmem::port::sync_warps(kFirstBarrier + group, threads);
    return failed;
}

// Ends the job: waits of this PE's kernels end, and the host's next call ends the process with this
// status.
OXSHMEM_LAZY OXSHMEM_DEVICE void global_exit(int status) {
    oxshmem::detail::raise(oxshmem::abi::ErrorCode::exit_requested, oxshmem::abi::Op::none, -1, 0,
                           static_cast<uint32_t>(status));
}

// Copies the name of the library, with the 0 at its end.
OXSHMEM_DEVICE void name_of_library(char *to) {
    constexpr const char *kName = OXSHMEM_NV_NAME;
    for (uint32_t i = 0; i < sizeof(OXSHMEM_NV_NAME); ++i) {
        to[i] = kName[i];
    }
}

// The bytes of `n` elements, a number that no heap has if it does not fit.
OXSHMEM_DEVICE size_t bytes(size_t n, size_t element) {
    return n > SIZE_MAX / element ? SIZE_MAX : n * element;
}

} // namespace oxshmem_nv
#endif

namespace oxshmem_nv {

// Whether these are hints of regions.
#ifdef OXSHMEM_NV_DEVICE_CODE
__host__ __device__
#endif
    constexpr bool
    are_hints(uint32_t hints) {
    return (hints & ~static_cast<uint32_t>(NVSHMEMX_REGION_HINT_BATCH_RMA)) == 0;
}

} // namespace oxshmem_nv

// What a function does where the compiler is now.
#if defined(OXSHMEM_NV_DEVICE_CODE) && !defined(OXSHMEM_NV_HOST_CODE)
#define OXSHMEM_NV_CHOOSE(device, host) device
#elif defined(__CUDA_ARCH__)
#define OXSHMEM_NV_CHOOSE(device, host) device
#else
#define OXSHMEM_NV_CHOOSE(device, host) host
#endif

#if defined(OXSHMEM_NV_BITCODE)
// The device library as bitcode has every device function under its name.
#define OXSHMEM_NV_BOTH(result, name, parameters, device, host) OXSHMEM_NV_DEVICE(thread, result, name, parameters, device)
#define OXSHMEM_NV_DEVICE(scope, result, name, parameters, body)                                                               \
    extern "C" __device__ result name parameters {                                                                             \
        using S [[maybe_unused]] = oxshmem::scope##_scope;                                                                     \
        body;                                                                                                                  \
    }
#elif defined(OXSHMEM_NV_DEVICE_CODE)
#define OXSHMEM_NV_BOTH(result, name, parameters, device, host)                                                                \
    template <class S = oxshmem::thread_scope> __host__ __device__ inline result name parameters {                             \
        OXSHMEM_NV_CHOOSE(device, host);                                                                                       \
    }
#define OXSHMEM_NV_DEVICE(scope, result, name, parameters, body)                                                               \
    template <class S = oxshmem::scope##_scope> __device__ inline result name parameters {                                     \
        body;                                                                                                                  \
    }
#elif defined(OXSHMEM_NV_LIBRARY)
#define OXSHMEM_NV_BOTH(result, name, parameters, device, host)                                                                \
    extern "C" result name parameters {                                                                                        \
        host;                                                                                                                  \
    }
#define OXSHMEM_NV_DEVICE(scope, result, name, parameters, body)
#else
#define OXSHMEM_NV_BOTH(result, name, parameters, device, host) extern "C" result name parameters;
#define OXSHMEM_NV_DEVICE(scope, result, name, parameters, body)
#endif

#if defined(OXSHMEM_NV_LIBRARY)
#define OXSHMEM_NV_HOST(result, name, parameters, body)                                                                        \
    extern "C" result name parameters {                                                                                        \
        body;                                                                                                                  \
    }
#elif defined(OXSHMEM_NV_HOST_CODE)
#define OXSHMEM_NV_HOST(result, name, parameters, body) extern "C" result name parameters;
#else
#define OXSHMEM_NV_HOST(result, name, parameters, body)
#endif

// A function of three scopes; the thread's one is the host's too. `rest` is the name without its
// prefix.
#define OXSHMEM_NV_SCOPES(result, rest, parameters, device, host)                                                              \
    OXSHMEM_NV_BOTH(result, nvshmem_##rest, parameters, device, host)                                                          \
    OXSHMEM_NV_WIDE_SCOPES(result, rest, parameters, device)
// The same, which the host does not have.
#define OXSHMEM_NV_DEVICE_SCOPES(result, rest, parameters, device)                                                             \
    OXSHMEM_NV_DEVICE(thread, result, nvshmem_##rest, parameters, device)                                                      \
    OXSHMEM_NV_WIDE_SCOPES(result, rest, parameters, device)
#define OXSHMEM_NV_WIDE_SCOPES(result, rest, parameters, device)                                                               \
    OXSHMEM_NV_DEVICE(warp, result, nvshmemx_##rest##_warp, parameters, device)                                                \
    OXSHMEM_NV_DEVICE(block, result, nvshmemx_##rest##_block, parameters, device)

#ifdef OXSHMEM_NV_HOST_CODE
namespace oxshmem_nv {

// The bytes of `n` elements, a number that no heap has if it does not fit.
inline size_t host_bytes(size_t n, size_t element) {
    return n > SIZE_MAX / element ? SIZE_MAX : n * element;
}

// A value of up to eight bytes as a word, zero above its size.
template <class T> inline uint64_t to_word(T value) {
    uint64_t word = 0;
    __builtin_memcpy(&word, &value, sizeof(T));
    return word;
}
template <class T> inline T from_word(uint64_t word) {
    T value;
    __builtin_memcpy(&value, &word, sizeof(T));
    return value;
}

// Adds by compare and swap until nothing came between. Returns the old value.
template <class T> inline T host_fetch_add_floating(const char *call, T *target, T value, int pe) {
    uint64_t seen = oxshmem_nv_atomic(call, target, 0, sizeof(T), 0, 0, pe);
    for (;;) {
        const T before = from_word<T>(seen);
        const uint64_t found = oxshmem_nv_atomic(call, target, 2, sizeof(T), to_word<T>(before + value), seen, pe);
        if (found == seen) {
            return before;
        }
        seen = found;
    }
}

// The number of a type, an oxshmem_type.
template <class T> struct element {
    static constexpr bool kFloating = T(1) / T(2) != T(0), kSigned = T(-1) < T(0);
    static constexpr int kWidth = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
    static constexpr int kType = kFloating ? (sizeof(T) == 4 ? 8 : 9) : (kSigned ? 0 : 4) + kWidth;
};
template <> struct element<OXSHMEM_NV_HALF> { static constexpr int kType = 12; };
template <> struct element<OXSHMEM_NV_BFLOAT16> { static constexpr int kType = 13; };

} // namespace oxshmem_nv
#endif
