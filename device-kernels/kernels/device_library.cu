// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// The device library: what kernels call that are compiled with OXSHMEM_DEVICE_LIBRARY. The headers'
// own functions under the names that detail/library.h declares, and the state of the module that it
// is linked into.
#define oxshmem_state OXSHMEM_LIBRARY(state)

#include <oxshmem/detail/library.h>

#include <oxshmem/rma.h>

using namespace oxshmem::detail;

// What the functions below have in common, for the default context and for a QP of another one.
namespace {

template <class C, class T> __device__ void store_word(C context, T *dst, T value, int pe) {
    if constexpr (kOfContext<C>) {
        if (!is_direct(pe) && p_for_itself(context, dst, value, pe)) {
            return;
        }
    }
    network_p(context, dst, value, pe);
}

template <class C> __device__ void store_value(C context, void *dst, uint64_t value, uint32_t bytes, int pe) {
    switch (bytes) {
    case 1:
        return store_word(context, static_cast<uint8_t *>(dst), static_cast<uint8_t>(value), pe);
    case 2:
        return store_word(context, static_cast<uint16_t *>(dst), static_cast<uint16_t>(value), pe);
    case 4:
        return store_word(context, static_cast<uint32_t *>(dst), static_cast<uint32_t>(value), pe);
    default:
        return store_word(context, static_cast<uint64_t *>(dst), value, pe);
    }
}

template <class C> __device__ uint64_t load_value(C context, const void *src, uint32_t bytes, int pe) {
    switch (bytes) {
    case 1:
        return network_g(context, static_cast<const uint8_t *>(src), pe);
    case 2:
        return network_g(context, static_cast<const uint16_t *>(src), pe);
    case 4:
        return network_g(context, static_cast<const uint32_t *>(src), pe);
    default:
        return network_g(context, static_cast<const uint64_t *>(src), pe);
    }
}

template <class C> __device__ uint64_t put_bytes(C context, void *dst, const void *src, uint64_t bytes, int pe) {
    return is_one_transfer(dst, src, bytes, pe) ? network_transfer(context, dst, src, bytes, pe)
                                                : network_put(context, dst, src, bytes, pe);
}

template <class C> __device__ void stage(C context, CopyBy lanes, void *dst, const void *src, uint64_t bytes, int pe, Use use) {
    switch (lanes) {
    case CopyBy::thread:
        staged_put<oxshmem::thread_scope>(context, dst, src, bytes, pe, use);
        return;
    case CopyBy::warp:
        staged_put<oxshmem::warp_scope>(context, dst, src, bytes, pe, use);
        return;
    case CopyBy::block:
        staged_put<oxshmem::block_scope>(context, dst, src, bytes, pe, use);
    }
}

template <class C> __device__ uint64_t fetch_word(C context, void *target, AtomicRequest request, int pe) {
    return request.width == 4 ? network_fetch_atomic(context, static_cast<uint32_t *>(target), request, pe)
                              : network_fetch_atomic(context, static_cast<uint64_t *>(target), request, pe);
}

} // namespace

extern "C" {

__device__ void OXSHMEM_LIBRARY(raise_unmet)(Op op, const void *variable, uint64_t wanted, uint32_t how, uint32_t n) {
    raise_unmet(op, variable, wanted, how, n);
}
__device__ void OXSHMEM_LIBRARY(raise)(ErrorCode code, Op op, int pe, int team, uint64_t address, uint64_t length) {
    raise(code, op, {pe, team}, address, length);
}
__device__ Verdict OXSHMEM_LIBRARY(check_deadline)(WaitClock &clock, uint32_t progress, uint32_t ends_on) {
    return check_deadline(clock, progress, ends_on);
}

__device__ void OXSHMEM_LIBRARY(copy_by_thread)(void *dst, const void *src, uint64_t bytes) {
    copy<oxshmem::thread_scope>(dst, src, bytes);
}
__device__ void OXSHMEM_LIBRARY(copy_by_warp)(void *dst, const void *src, uint64_t bytes) {
    copy<oxshmem::warp_scope>(dst, src, bytes);
}
__device__ void OXSHMEM_LIBRARY(copy_by_block)(void *dst, const void *src, uint64_t bytes) {
    copy<oxshmem::block_scope>(dst, src, bytes);
}

__device__ void OXSHMEM_LIBRARY(p)(void *dst, uint64_t value, uint32_t bytes, int pe) {
    store_value(DefaultContext{}, dst, value, bytes, pe);
}
__device__ uint64_t OXSHMEM_LIBRARY(g)(const void *src, uint32_t bytes, int pe) {
    return load_value(DefaultContext{}, src, bytes, pe);
}
__device__ uint64_t OXSHMEM_LIBRARY(put)(void *dst, const void *src, uint64_t bytes, int pe) {
    return put_bytes(DefaultContext{}, dst, src, bytes, pe);
}
__device__ uint64_t OXSHMEM_LIBRARY(get)(void *dst, const void *src, uint64_t bytes, int pe, Op op) {
    return network_get(DefaultContext{}, dst, src, bytes, pe, op);
}
__device__ void OXSHMEM_LIBRARY(atomic)(void *target, AtomicRequest request, int pe) {
    network_atomic(DefaultContext{}, target, request, pe);
}
__device__ uint64_t OXSHMEM_LIBRARY(fetch_atomic)(void *target, AtomicRequest request, int pe) {
    return fetch_word(DefaultContext{}, target, request, pe);
}
__device__ void OXSHMEM_LIBRARY(signal)(uint64_t *signal, uint64_t value, SignalOp op, int pe) {
    network_signal(DefaultContext{}, signal, value, op, pe);
}
__device__ uint64_t OXSHMEM_LIBRARY(put_signal)(void *dst, const void *src, uint64_t bytes, uint64_t *signal, uint64_t value,
                                                SignalOp op, int pe) {
    return network_put_signal(DefaultContext{}, dst, src, bytes, signal, value, op, pe);
}
__device__ void OXSHMEM_LIBRARY(staged_put)(CopyBy lanes, void *dst, const void *src, uint64_t bytes, int pe, Use use) {
    stage(DefaultContext{}, lanes, dst, src, bytes, pe, use);
}
__device__ void OXSHMEM_LIBRARY(fence)() {
    network_fence();
}
__device__ void OXSHMEM_LIBRARY(wait)(uint64_t end, int pe, Op op) {
    network_wait(DefaultContext{}, end, pe, op);
}
__device__ void OXSHMEM_LIBRARY(complete)(int pe, Op op) {
    network_complete(pe, op);
}
__device__ void OXSHMEM_LIBRARY(quiet)(uint32_t rank, uint32_t size) {
    network_quiet(rank, size);
}

__device__ void OXSHMEM_LIBRARY(context_p)(ContextQp queue, void *dst, uint64_t value, uint32_t bytes, int pe) {
    store_value(queue, dst, value, bytes, pe);
}
__device__ uint64_t OXSHMEM_LIBRARY(context_g)(ContextQp queue, const void *src, uint32_t bytes, int pe) {
    return load_value(queue, src, bytes, pe);
}
__device__ uint64_t OXSHMEM_LIBRARY(context_put)(ContextQp queue, void *dst, const void *src, uint64_t bytes, int pe) {
    return put_bytes(queue, dst, src, bytes, pe);
}
__device__ uint64_t OXSHMEM_LIBRARY(context_get)(ContextQp queue, void *dst, const void *src, uint64_t bytes, int pe, Op op) {
    return network_get(queue, dst, src, bytes, pe, op);
}
__device__ void OXSHMEM_LIBRARY(context_atomic)(ContextQp queue, void *target, AtomicRequest request, int pe) {
    network_atomic(queue, target, request, pe);
}
__device__ uint64_t OXSHMEM_LIBRARY(context_fetch_atomic)(ContextQp queue, void *target, AtomicRequest request, int pe) {
    return fetch_word(queue, target, request, pe);
}
__device__ void OXSHMEM_LIBRARY(context_signal)(ContextQp queue, uint64_t *signal, uint64_t value, SignalOp op, int pe) {
    network_signal(queue, signal, value, op, pe);
}
__device__ uint64_t OXSHMEM_LIBRARY(context_put_signal)(ContextQp queue, void *dst, const void *src, uint64_t bytes,
                                                        uint64_t *signal, uint64_t value, SignalOp op, int pe) {
    return network_put_signal(queue, dst, src, bytes, signal, value, op, pe);
}
__device__ void OXSHMEM_LIBRARY(context_staged_put)(ContextQp queue, CopyBy lanes, void *dst, const void *src, uint64_t bytes,
                                                    int pe, Use use) {
    stage(queue, lanes, dst, src, bytes, pe, use);
}
__device__ void OXSHMEM_LIBRARY(context_wait)(ContextQp queue, uint64_t end, int pe, Op op) {
    network_wait(queue, end, pe, op);
}
__device__ void OXSHMEM_LIBRARY(context_flush)(const oxshmem::abi::Context &context) {
    if (!flush_one(context)) {
        context_flush(context);
    }
}
__device__ void OXSHMEM_LIBRARY(context_quiet)(const oxshmem::abi::Context &context, uint32_t rank, uint32_t size) {
    if (size != 1 || !quiet_one(context)) {
        context_quiet(context, rank, size);
    }
}
__device__ void OXSHMEM_LIBRARY(context_fence)(const oxshmem::abi::Context &context) {
    context_fence(context);
}

} // extern "C"
