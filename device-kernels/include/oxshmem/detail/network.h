// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// The operations over the network, as the rest of the device API calls them: each by one lane, or
// by lanes that combine where they converge. Either compiled with the kernel, or the device
// library's.
#pragma once

#ifndef OXSHMEM_DEVICE_LIBRARY
#include "ibgda/contexts.h"
#else
#include "staged.h"

namespace oxshmem::detail {

// Everything is left to the library.
OXSHMEM_DEVICE constexpr bool is_one_transfer(const void *, const void *, uint64_t, int) {
    return false;
}
template <class C> OXSHMEM_DEVICE constexpr bool put_for_itself(C, const void *, const void *, uint64_t, int) {
    return false;
}
template <class T> OXSHMEM_DEVICE constexpr bool p_for_itself(ContextQp, const T *, T, int) {
    return false;
}
OXSHMEM_DEVICE constexpr bool flush_one(const abi::Context &) {
    return false;
}
OXSHMEM_DEVICE constexpr bool quiet_one(const abi::Context &) {
    return false;
}
OXSHMEM_DEVICE constexpr uint64_t used_before_fence() {
    return 0;
}
OXSHMEM_DEVICE constexpr bool quiet_soon(uint64_t) {
    return false;
}

OXSHMEM_DEVICE uint64_t network_put(DefaultContext, void *dst, const void *src, uint64_t bytes, int pe) {
    return OXSHMEM_LIBRARY(put)(dst, src, bytes, pe);
}
OXSHMEM_DEVICE uint64_t network_put(ContextQp queue, void *dst, const void *src, uint64_t bytes, int pe) {
    return OXSHMEM_LIBRARY(context_put)(queue, dst, src, bytes, pe);
}
template <class C> OXSHMEM_DEVICE uint64_t network_transfer(C context, void *dst, const void *src, uint64_t bytes, int pe) {
    return network_put(context, dst, src, bytes, pe);
}
template <class T> OXSHMEM_DEVICE void network_p(DefaultContext, T *dst, T value, int pe) {
    OXSHMEM_LIBRARY(p)(dst, to_bits(value), sizeof(T), pe);
}
template <class T> OXSHMEM_DEVICE void network_p(ContextQp queue, T *dst, T value, int pe) {
    OXSHMEM_LIBRARY(context_p)(queue, dst, to_bits(value), sizeof(T), pe);
}
template <class T> OXSHMEM_DEVICE T network_g(DefaultContext, const T *src, int pe) {
    return from_bits<T>(OXSHMEM_LIBRARY(g)(src, sizeof(T), pe));
}
template <class T> OXSHMEM_DEVICE T network_g(ContextQp queue, const T *src, int pe) {
    return from_bits<T>(OXSHMEM_LIBRARY(context_g)(queue, src, sizeof(T), pe));
}
OXSHMEM_DEVICE uint64_t network_get(DefaultContext, void *dst, const void *src, uint64_t bytes, int pe, Op op) {
    return OXSHMEM_LIBRARY(get)(dst, src, bytes, pe, op);
}
OXSHMEM_DEVICE uint64_t network_get(ContextQp queue, void *dst, const void *src, uint64_t bytes, int pe, Op op) {
    return OXSHMEM_LIBRARY(context_get)(queue, dst, src, bytes, pe, op);
}
OXSHMEM_DEVICE void network_atomic(DefaultContext, void *target, AtomicRequest request, int pe) {
    OXSHMEM_LIBRARY(atomic)(target, request, pe);
}
OXSHMEM_DEVICE void network_atomic(ContextQp queue, void *target, AtomicRequest request, int pe) {
    OXSHMEM_LIBRARY(context_atomic)(queue, target, request, pe);
}
template <class T> OXSHMEM_DEVICE T network_fetch_atomic(DefaultContext, T *target, AtomicRequest request, int pe) {
    return from_bits<T>(OXSHMEM_LIBRARY(fetch_atomic)(target, request, pe));
}
template <class T> OXSHMEM_DEVICE T network_fetch_atomic(ContextQp queue, T *target, AtomicRequest request, int pe) {
    return from_bits<T>(OXSHMEM_LIBRARY(context_fetch_atomic)(queue, target, request, pe));
}
OXSHMEM_DEVICE void network_signal(DefaultContext, uint64_t *signal, uint64_t value, SignalOp op, int pe) {
    OXSHMEM_LIBRARY(signal)(signal, value, op, pe);
}
OXSHMEM_DEVICE void network_signal(ContextQp queue, uint64_t *signal, uint64_t value, SignalOp op, int pe) {
    OXSHMEM_LIBRARY(context_signal)(queue, signal, value, op, pe);
}
OXSHMEM_DEVICE uint64_t network_put_signal(DefaultContext, void *dst, const void *src, uint64_t bytes, uint64_t *signal,
                                           uint64_t value, SignalOp op, int pe) {
    return OXSHMEM_LIBRARY(put_signal)(dst, src, bytes, signal, value, op, pe);
}
OXSHMEM_DEVICE uint64_t network_put_signal(ContextQp queue, void *dst, const void *src, uint64_t bytes, uint64_t *signal,
                                           uint64_t value, SignalOp op, int pe) {
    return OXSHMEM_LIBRARY(context_put_signal)(queue, dst, src, bytes, signal, value, op, pe);
}
// What the library is told of a scope.
template <class Scope>
constexpr CopyBy kCopyBy = Scope::kLanes == 1     ? CopyBy::thread
                           : Scope::kSeveralWarps ? CopyBy::block
                                                  : CopyBy::warp;
template <class Scope>
OXSHMEM_DEVICE void staged_put(DefaultContext, void *dst, const void *src, uint64_t bytes, int pe, Use use) {
    OXSHMEM_LIBRARY(staged_put)(kCopyBy<Scope>, dst, src, bytes, pe, use);
}
template <class Scope>
OXSHMEM_DEVICE void staged_put(ContextQp queue, void *dst, const void *src, uint64_t bytes, int pe, Use use) {
    OXSHMEM_LIBRARY(context_staged_put)(queue, kCopyBy<Scope>, dst, src, bytes, pe, use);
}
OXSHMEM_DEVICE void network_wait(DefaultContext, uint64_t end, int pe, Op op) {
    OXSHMEM_LIBRARY(wait)(end, pe, op);
}
OXSHMEM_DEVICE void network_wait(ContextQp queue, uint64_t end, int pe, Op op) {
    OXSHMEM_LIBRARY(context_wait)(queue, end, pe, op);
}
OXSHMEM_DEVICE void network_fence() {
    OXSHMEM_LIBRARY(fence)();
}
OXSHMEM_DEVICE void network_complete(int pe, Op op) {
    OXSHMEM_LIBRARY(complete)(pe, op);
}
OXSHMEM_DEVICE void network_quiet(uint32_t rank, uint32_t size) {
    OXSHMEM_LIBRARY(quiet)(rank, size);
}
OXSHMEM_DEVICE void context_flush(const abi::Context &context) {
    OXSHMEM_LIBRARY(context_flush)(context);
}
OXSHMEM_DEVICE void context_quiet(const abi::Context &context, uint32_t rank, uint32_t size) {
    OXSHMEM_LIBRARY(context_quiet)(context, rank, size);
}
OXSHMEM_DEVICE void context_fence(const abi::Context &context) {
    OXSHMEM_LIBRARY(context_fence)(context);
}

} // namespace oxshmem::detail
#endif

namespace oxshmem::detail {

// As network_quiet, by one lane alone.
OXSHMEM_LAZY OXSHMEM_DEVICE void network_quiet() {
    network_quiet(0, 1);
}

} // namespace oxshmem::detail
