// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// The device operations that are compared, under one set of names: those of OxSHMEM, or with
// COMPARE_NVSHMEM those of NVSHMEM. Each forwards to the one call of the library that does it; what
// the libraries do not differ in is in kernels.h.
//
//   COMPARE_KERNEL_FUNCTION(name, parameters...)                      before kernels
//   COMPARE_APPLICATION_FUNCTION(name, parameters...)                 before those of applications: up to 512 threads a block
//   COMPARE_THREAD_FUNCTION(name, parameters...)                      before those that post by one thread a block, with
//                                                                     contexts: OxSHMEM alone
//   COMPARE_DEVICE                                                    before device functions
//   COMPARE_SHARED(type, name, [N])                                   memory that a block shares
//   thread, warp, block                                               scopes: which threads call together
//   my_pe(), n_pes(), ptr(address, pe)                                as in both libraries
//   put_nbi, get, put_signal_nbi (scope, ...), p, g, signal_set, signal_add, signal_wait, fence, quiet
//   quiet(block)
//   barrier_all(scope), sync_all(scope)
//   alltoall, fcollect, broadcast, sum (scope, ...)                   collectives of all PEs; whether they went well
//   Context                                                           see contexts.h; NVSHMEM has none
//   clock_ns(), pause()                                               the GPU's clock; for the body of a spin loop
#pragma once

#include <cstddef>
#include <cstdint>

#ifndef COMPARE_NVSHMEM

#include <oxshmem/oxshmem.h>

#define COMPARE_KERNEL_FUNCTION(name, ...) OXSHMEM_KERNEL(name, __VA_ARGS__)
#define COMPARE_APPLICATION_FUNCTION(name, ...) OXSHMEM_BOUNDED_KERNEL(512, name, __VA_ARGS__)
#define COMPARE_THREAD_FUNCTION(name, ...) OXSHMEM_BOUNDED_KERNEL(32, name, __VA_ARGS__)
#define COMPARE_DEVICE OXSHMEM_DEVICE
#define COMPARE_SHARED(type, name, ...) OXSHMEM_SHARED(type, name, __VA_ARGS__)
#define COMPARE_UNROLL OXSHMEM_UNROLL

namespace compare {

using oxshmem::Context;

using oxshmem::block;
using oxshmem::block_scope;
using oxshmem::thread;
using oxshmem::thread_scope;
using oxshmem::warp;
using oxshmem::warp_scope;

using oxshmem::barrier_all;
using oxshmem::fence;
using oxshmem::g;
using oxshmem::my_pe;
using oxshmem::n_pes;
using oxshmem::p;
using oxshmem::ptr;
using oxshmem::quiet;
using oxshmem::sync_all;
using oxshmem::port::clock_ns;
using oxshmem::port::pause;

template <class Scope> COMPARE_DEVICE void put_nbi(Scope scope, char *dst, const char *src, size_t bytes, int pe) {
    oxshmem::putmem_nbi(scope, dst, src, bytes, pe);
}
template <class Scope> COMPARE_DEVICE void get(Scope scope, char *dst, const char *src, size_t bytes, int pe) {
    oxshmem::getmem(scope, dst, src, bytes, pe);
}
template <class Scope>
COMPARE_DEVICE void put_signal_nbi(Scope scope, char *dst, const char *src, size_t bytes, uint64_t *signal, uint64_t value,
                                   int pe) {
    oxshmem::putmem_signal_nbi(scope, dst, src, bytes, signal, value, oxshmem::SIGNAL_SET, pe);
}
COMPARE_DEVICE void signal_set(uint64_t *signal, uint64_t value, int pe) {
    oxshmem::signal_op(signal, value, oxshmem::SIGNAL_SET, pe);
}
COMPARE_DEVICE void signal_add(uint64_t *signal, uint64_t value, int pe) {
    oxshmem::signal_op(signal, value, oxshmem::SIGNAL_ADD, pe);
}
template <class Scope> COMPARE_DEVICE bool alltoall(Scope scope, char *dst, const char *src, size_t bytes) {
    return oxshmem::alltoallmem(scope, oxshmem::TEAM_WORLD, dst, src, bytes) == 0;
}
template <class Scope> COMPARE_DEVICE bool fcollect(Scope scope, char *dst, const char *src, size_t bytes) {
    return oxshmem::fcollectmem(scope, oxshmem::TEAM_WORLD, dst, src, bytes) == 0;
}
template <class Scope> COMPARE_DEVICE bool broadcast(Scope scope, char *dst, const char *src, size_t bytes, int root) {
    return oxshmem::broadcastmem(scope, oxshmem::TEAM_WORLD, dst, src, bytes, root) == 0;
}
template <class Scope> COMPARE_DEVICE bool sum(Scope scope, uint64_t *dst, const uint64_t *src, size_t n) {
    return oxshmem::reduce(scope, oxshmem::TEAM_WORLD, oxshmem::op_sum, dst, src, n) == 0;
}
// Whether the signal came: a wait can end with an error, which the library records.
COMPARE_DEVICE bool signal_wait(uint64_t *signal, uint64_t value) {
    return oxshmem::signal_wait_until(signal, oxshmem::CMP_GE, value) >= value;
}

} // namespace compare

#else

#include <nvshmem.h>
#include <nvshmemx.h>

#define COMPARE_KERNEL_FUNCTION(name, ...) extern "C" __global__ void __launch_bounds__(1024) name(__VA_ARGS__)
#define COMPARE_APPLICATION_FUNCTION(name, ...) extern "C" __global__ void __launch_bounds__(512, 1) name(__VA_ARGS__)
#define COMPARE_DEVICE __device__ __forceinline__
#define COMPARE_SHARED(type, name, ...) __shared__ type name __VA_ARGS__
#define COMPARE_UNROLL _Pragma("unroll")

namespace compare {

struct Context {};
struct thread_scope {};
struct warp_scope {};
struct block_scope {};
constexpr thread_scope thread{};
constexpr warp_scope warp{};
constexpr block_scope block{};

COMPARE_DEVICE int my_pe() {
    return nvshmem_my_pe();
}
COMPARE_DEVICE int n_pes() {
    return nvshmem_n_pes();
}
template <class T> COMPARE_DEVICE T *ptr(T *address, int pe) {
    return static_cast<T *>(nvshmem_ptr(address, pe));
}

COMPARE_DEVICE void put_nbi(thread_scope, char *dst, const char *src, size_t bytes, int pe) {
    nvshmem_putmem_nbi(dst, src, bytes, pe);
}
COMPARE_DEVICE void put_nbi(warp_scope, char *dst, const char *src, size_t bytes, int pe) {
    nvshmemx_putmem_nbi_warp(dst, src, bytes, pe);
}
COMPARE_DEVICE void put_nbi(block_scope, char *dst, const char *src, size_t bytes, int pe) {
    nvshmemx_putmem_nbi_block(dst, src, bytes, pe);
}

COMPARE_DEVICE void get(thread_scope, char *dst, const char *src, size_t bytes, int pe) {
    nvshmem_getmem(dst, src, bytes, pe);
}
COMPARE_DEVICE void get(warp_scope, char *dst, const char *src, size_t bytes, int pe) {
    nvshmemx_getmem_warp(dst, src, bytes, pe);
}
COMPARE_DEVICE void get(block_scope, char *dst, const char *src, size_t bytes, int pe) {
    nvshmemx_getmem_block(dst, src, bytes, pe);
}

COMPARE_DEVICE void put_signal_nbi(thread_scope, char *dst, const char *src, size_t bytes, uint64_t *signal, uint64_t value,
                                   int pe) {
    nvshmem_putmem_signal_nbi(dst, src, bytes, signal, value, NVSHMEM_SIGNAL_SET, pe);
}
COMPARE_DEVICE void put_signal_nbi(warp_scope, char *dst, const char *src, size_t bytes, uint64_t *signal, uint64_t value,
                                   int pe) {
    nvshmemx_putmem_signal_nbi_warp(dst, src, bytes, signal, value, NVSHMEM_SIGNAL_SET, pe);
}
COMPARE_DEVICE void put_signal_nbi(block_scope, char *dst, const char *src, size_t bytes, uint64_t *signal, uint64_t value,
                                   int pe) {
    nvshmemx_putmem_signal_nbi_block(dst, src, bytes, signal, value, NVSHMEM_SIGNAL_SET, pe);
}

COMPARE_DEVICE void p(uint64_t *dst, uint64_t value, int pe) {
    nvshmem_uint64_p(dst, value, pe);
}
COMPARE_DEVICE void p(float *dst, float value, int pe) {
    nvshmem_float_p(dst, value, pe);
}
COMPARE_DEVICE uint64_t g(const uint64_t *src, int pe) {
    return nvshmem_uint64_g(src, pe);
}
COMPARE_DEVICE void signal_set(uint64_t *signal, uint64_t value, int pe) {
    nvshmemx_signal_op(signal, value, NVSHMEM_SIGNAL_SET, pe);
}
COMPARE_DEVICE void signal_add(uint64_t *signal, uint64_t value, int pe) {
    nvshmemx_signal_op(signal, value, NVSHMEM_SIGNAL_ADD, pe);
}
COMPARE_DEVICE bool signal_wait(uint64_t *signal, uint64_t value) {
    return nvshmem_signal_wait_until(signal, NVSHMEM_CMP_GE, value) >= value;
}
COMPARE_DEVICE void fence() {
    nvshmem_fence();
}
COMPARE_DEVICE void quiet() {
    nvshmem_quiet();
}
// It has no quiet of a block.
COMPARE_DEVICE void quiet(block_scope) {
    __syncthreads();
    if (threadIdx.x == 0) {
        nvshmem_quiet();
    }
    __syncthreads();
}

COMPARE_DEVICE void barrier_all(thread_scope) {
    nvshmem_barrier_all();
}
COMPARE_DEVICE void barrier_all(block_scope) {
    nvshmemx_barrier_all_block();
}
COMPARE_DEVICE void sync_all(thread_scope) {
    nvshmem_sync_all();
}
COMPARE_DEVICE void sync_all(block_scope) {
    nvshmemx_sync_all_block();
}

COMPARE_DEVICE bool alltoall(thread_scope, char *dst, const char *src, size_t bytes) {
    return nvshmem_alltoallmem(NVSHMEM_TEAM_WORLD, dst, src, bytes) == 0;
}
COMPARE_DEVICE bool alltoall(block_scope, char *dst, const char *src, size_t bytes) {
    return nvshmemx_alltoallmem_block(NVSHMEM_TEAM_WORLD, dst, src, bytes) == 0;
}
COMPARE_DEVICE bool fcollect(block_scope, char *dst, const char *src, size_t bytes) {
    return nvshmemx_fcollectmem_block(NVSHMEM_TEAM_WORLD, dst, src, bytes) == 0;
}
COMPARE_DEVICE bool broadcast(block_scope, char *dst, const char *src, size_t bytes, int root) {
    // nvshmemx_broadcastmem_block of 3.4 takes no root.
    return nvshmemx_char_broadcast_block(NVSHMEM_TEAM_WORLD, dst, src, bytes, root) == 0;
}
COMPARE_DEVICE bool sum(block_scope, uint64_t *dst, const uint64_t *src, size_t n) {
    return nvshmemx_uint64_sum_reduce_block(NVSHMEM_TEAM_WORLD, dst, src, n) == 0;
}

// The clock that OxSHMEM's port layer reads.
COMPARE_DEVICE uint64_t clock_ns() {
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}
COMPARE_DEVICE void pause() {}

} // namespace compare

#endif
