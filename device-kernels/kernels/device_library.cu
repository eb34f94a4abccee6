// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// The device library: what kernels call that are compiled with OXSHMEM_DEVICE_LIBRARY. The headers'
// own functions under the names that detail/library.h declares, and the state of the module that it
// is linked into.
#define oxshmem_state OXSHMEM_LIBRARY(state)

#include <oxshmem/detail/library.h>

#include <oxshmem/rma.h>

using namespace oxshmem::detail;

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
    switch (bytes) {
    case 1:
        return network_p(static_cast<uint8_t *>(dst), static_cast<uint8_t>(value), pe);
    case 2:
        return network_p(static_cast<uint16_t *>(dst), static_cast<uint16_t>(value), pe);
    case 4:
        return network_p(static_cast<uint32_t *>(dst), static_cast<uint32_t>(value), pe);
    default:
        return network_p(static_cast<uint64_t *>(dst), value, pe);
    }
}
__device__ uint64_t OXSHMEM_LIBRARY(g)(const void *src, uint32_t bytes, int pe) {
    switch (bytes) {
    case 1:
        return network_g(static_cast<const uint8_t *>(src), pe);
    case 2:
        return network_g(static_cast<const uint16_t *>(src), pe);
    case 4:
        return network_g(static_cast<const uint32_t *>(src), pe);
    default:
        return network_g(static_cast<const uint64_t *>(src), pe);
    }
}
__device__ uint64_t OXSHMEM_LIBRARY(put)(void *dst, const void *src, uint64_t bytes, int pe) {
    return is_one_transfer(dst, src, bytes, pe) ? network_transfer(dst, src, bytes, pe) : network_put(dst, src, bytes, pe);
}
__device__ uint64_t OXSHMEM_LIBRARY(get)(void *dst, const void *src, uint64_t bytes, int pe, Op op) {
    return network_get(dst, src, bytes, pe, op);
}
__device__ void OXSHMEM_LIBRARY(atomic)(void *target, AtomicRequest request, int pe) {
    network_atomic(target, request, pe);
}
__device__ uint64_t OXSHMEM_LIBRARY(fetch_atomic)(void *target, AtomicRequest request, int pe) {
    return request.width == 4 ? network_fetch_atomic(static_cast<uint32_t *>(target), request, pe)
                              : network_fetch_atomic(static_cast<uint64_t *>(target), request, pe);
}
__device__ void OXSHMEM_LIBRARY(signal)(uint64_t *signal, uint64_t value, SignalOp op, int pe) {
    network_signal(signal, value, op, pe);
}
__device__ uint64_t OXSHMEM_LIBRARY(put_signal)(void *dst, const void *src, uint64_t bytes, uint64_t *signal, uint64_t value,
                                                SignalOp op, int pe) {
    return network_put_signal(dst, src, bytes, signal, value, op, pe);
}
__device__ void OXSHMEM_LIBRARY(fence)() {
    network_fence();
}
__device__ void OXSHMEM_LIBRARY(wait)(uint64_t end, int pe, Op op) {
    network_wait(end, pe, op);
}
__device__ void OXSHMEM_LIBRARY(complete)(int pe, Op op) {
    network_complete(pe, op);
}
__device__ void OXSHMEM_LIBRARY(quiet)(uint32_t rank, uint32_t size) {
    network_quiet(rank, size);
}

} // extern "C"
