// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// The functions of the device library (kernels/device_library.cu): what a kernel calls that was
// compiled with OXSHMEM_DEVICE_LIBRARY. Their names carry the version of the ABI, which a change of
// any of them raises.
#pragma once

#include <oxshmem/port/port.h>

namespace oxshmem::detail {

using abi::ErrorCode;
using abi::Op;
enum class SignalOp : int;
enum class Verdict : uint32_t;
struct AtomicRequest;
struct ContextQp;
struct WaitClock;
enum class Use : uint32_t;

// The lanes that copy what is staged.
enum class CopyBy : uint32_t { thread, warp, block };

extern "C" {
// Errors and deadlines: error.h.
__device__ void OXSHMEM_LIBRARY(raise_unmet)(Op op, const void *variable, uint64_t wanted, uint32_t how, uint32_t n);
__device__ void OXSHMEM_LIBRARY(raise)(ErrorCode code, Op op, int pe, int team, uint64_t address, uint64_t length);
__device__ Verdict OXSHMEM_LIBRARY(check_deadline)(WaitClock &clock, uint32_t progress, uint32_t ends_on);

// Copies by load and store, by all lanes of a scope: copy.h.
__device__ void OXSHMEM_LIBRARY(copy_by_thread)(void *dst, const void *src, uint64_t bytes);
__device__ void OXSHMEM_LIBRARY(copy_by_warp)(void *dst, const void *src, uint64_t bytes);
__device__ void OXSHMEM_LIBRARY(copy_by_block)(void *dst, const void *src, uint64_t bytes);

// Operations over the network: ibgda/operations.h. A value of 1, 2, 4 or 8 bytes is a word, zero
// above its size.
__device__ void OXSHMEM_LIBRARY(p)(void *dst, uint64_t value, uint32_t bytes, int pe);
__device__ uint64_t OXSHMEM_LIBRARY(g)(const void *src, uint32_t bytes, int pe);
__device__ uint64_t OXSHMEM_LIBRARY(put)(void *dst, const void *src, uint64_t bytes, int pe);
__device__ uint64_t OXSHMEM_LIBRARY(get)(void *dst, const void *src, uint64_t bytes, int pe, Op op);
__device__ void OXSHMEM_LIBRARY(atomic)(void *target, AtomicRequest request, int pe);
__device__ uint64_t OXSHMEM_LIBRARY(fetch_atomic)(void *target, AtomicRequest request, int pe);
__device__ void OXSHMEM_LIBRARY(signal)(uint64_t *signal, uint64_t value, SignalOp op, int pe);
__device__ uint64_t OXSHMEM_LIBRARY(put_signal)(void *dst, const void *src, uint64_t bytes, uint64_t *signal, uint64_t value,
                                                SignalOp op, int pe);
__device__ void OXSHMEM_LIBRARY(staged_put)(CopyBy lanes, void *dst, const void *src, uint64_t bytes, int pe, Use use);
__device__ void OXSHMEM_LIBRARY(fence)();
__device__ void OXSHMEM_LIBRARY(wait)(uint64_t end, int pe, Op op);
__device__ void OXSHMEM_LIBRARY(complete)(int pe, Op op);
__device__ void OXSHMEM_LIBRARY(quiet)(uint32_t rank, uint32_t size);

// The same through contexts.
__device__ void OXSHMEM_LIBRARY(context_p)(ContextQp queue, void *dst, uint64_t value, uint32_t bytes, int pe);
__device__ uint64_t OXSHMEM_LIBRARY(context_g)(ContextQp queue, const void *src, uint32_t bytes, int pe);
__device__ uint64_t OXSHMEM_LIBRARY(context_put)(ContextQp queue, void *dst, const void *src, uint64_t bytes, int pe);
__device__ uint64_t OXSHMEM_LIBRARY(context_get)(ContextQp queue, void *dst, const void *src, uint64_t bytes, int pe, Op op);
__device__ void OXSHMEM_LIBRARY(context_atomic)(ContextQp queue, void *target, AtomicRequest request, int pe);
__device__ uint64_t OXSHMEM_LIBRARY(context_fetch_atomic)(ContextQp queue, void *target, AtomicRequest request, int pe);
__device__ void OXSHMEM_LIBRARY(context_signal)(ContextQp queue, uint64_t *signal, uint64_t value, SignalOp op, int pe);
__device__ uint64_t OXSHMEM_LIBRARY(context_put_signal)(ContextQp queue, void *dst, const void *src, uint64_t bytes,
                                                        uint64_t *signal, uint64_t value, SignalOp op, int pe);
__device__ void OXSHMEM_LIBRARY(context_staged_put)(ContextQp queue, CopyBy lanes, void *dst, const void *src, uint64_t bytes,
                                                    int pe, Use use);
__device__ void OXSHMEM_LIBRARY(context_wait)(ContextQp queue, uint64_t end, int pe, Op op);
__device__ void OXSHMEM_LIBRARY(context_flush)(const abi::Context &context);
__device__ void OXSHMEM_LIBRARY(context_quiet)(const abi::Context &context, uint32_t rank, uint32_t size);
__device__ void OXSHMEM_LIBRARY(context_fence)(const abi::Context &context);
}

} // namespace oxshmem::detail
