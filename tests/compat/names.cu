// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Names that few programs use: numbers of 16 bits, maxloc, queue pairs by handle, flush. Each PE
// sends to the next one.
#include "check.h"

#include <cstdlib>
#include <cstring>

#include <nvshmemx.h>

namespace {

__global__ void send(int *numbers, double2 *best, double2 *own, nvshmemx_qp_handle_t *handles, int n) {
    const int me = nvshmem_my_pe(), next = (me + 1) % nvshmem_n_pes();
    const nvshmemx_qp_handle_t qp = handles[threadIdx.x % n];
    nvshmemx_qp_int_p(numbers + threadIdx.x, me * 1000 + static_cast<int>(threadIdx.x), next, qp);
    nvshmemx_qp_quiet_block(NVSHMEMX_PE_ANY, handles, n);
    nvshmemx_qp_fence(next, handles, n);
    if (threadIdx.x == 0) {
        *own = {static_cast<double>(me % 2), static_cast<double>(me)};
    }
    __syncthreads();
    nvshmemx_double2_maxloc_reduce_block(NVSHMEM_TEAM_WORLD, best, own, 1);
    nvshmemx_flush_block();
    nvshmemx_barrier_all_block();
}

#ifdef CUDART_VERSION
#if __has_include(<nv/target>)
__global__ void add(half *sum) {
    nvshmemx_half_atomic_add(sum, __float2half(1.0f), 0);
}
#define HAS_HALF 1
#endif
#endif

} // namespace

int main() {
    int gpus = 0;
    CHECK(cudaGetDeviceCount(&gpus) == cudaSuccess && gpus > 0);
    nvshmem_init();
    CHECK(cudaSetDevice(nvshmem_team_my_pe(NVSHMEMX_TEAM_NODE) % gpus) == cudaSuccess);
    const int me = nvshmem_my_pe(), n = nvshmem_n_pes();
    constexpr int kThreads = 64, kQps = 2;

    auto *numbers = static_cast<int *>(nvshmem_calloc(kThreads, sizeof(int)));
    auto *pairs = static_cast<double2 *>(nvshmem_calloc(2, sizeof(double2)));
    nvshmemx_qp_handle_t *handles = nullptr, *device_handles = nullptr;
    CHECK(nvshmemx_qp_create(kQps, &handles) == 0);
    CHECK(cudaMalloc(&device_handles, kQps * sizeof(*handles)) == cudaSuccess);
    CHECK(cudaMemcpy(device_handles, handles, kQps * sizeof(*handles), cudaMemcpyHostToDevice) == cudaSuccess);
    send<<<1, kThreads>>>(numbers, pairs, pairs + 1, device_handles, kQps);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    int got[kThreads];
    CHECK(cudaMemcpy(got, numbers, sizeof(got), cudaMemcpyDeviceToHost) == cudaSuccess);
    for (int i = 0; i < kThreads; ++i) {
        CHECK(got[i] == (me + n - 1) % n * 1000 + i);
    }
    double2 best;
    CHECK(cudaMemcpy(&best, pairs, sizeof(best), cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(best.x == (n > 1 ? 1.0 : 0.0) && best.y == (n > 1 ? 1.0 : 0.0));

#ifdef HAS_HALF
    auto *sum = static_cast<half *>(nvshmem_calloc(1, sizeof(half)));
    add<<<2, 32>>>(sum);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    nvshmem_barrier_all();
    half total;
    CHECK(cudaMemcpy(&total, sum, sizeof(total), cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(me != 0 || __half2float(total) == 64.0f * n);
    nvshmem_barrier_all();
    nvshmem_free(sum);
#endif
    CHECK(nvshmem_team_n_pes(NVSHMEMX_TEAM_SAME_MYPE_NODE) >= 1);
    std::free(handles);
    CHECK(cudaFree(device_handles) == cudaSuccess);
    nvshmem_free(pairs);
    nvshmem_free(numbers);
    nvshmem_finalize();
}
