// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Memory of the program that is registered as the local side of transfers: of the GPU, page-locked,
// and pageable. Each PE sends from it to the next one, and fetches back to it.
#include "check.h"

#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

constexpr size_t kInts = 1 << 20;
constexpr int kThreads = 256;

__global__ void fill(int *numbers, int me) {
    for (size_t i = threadIdx.x; i < kInts; i += blockDim.x) {
        numbers[i] = me * 7 + static_cast<int>(i);
    }
}

// Half of it by the block, half by its first thread.
__global__ void round_trip(int *inbox, const int *out, int *back, int to) {
    nvshmemx_int_put_nbi_block(inbox, out, kInts / 2, to);
    if (threadIdx.x == 0) {
        nvshmem_int_put(inbox + kInts / 2, out + kInts / 2, kInts / 2, to);
        nvshmem_quiet();
    }
    __syncthreads();
    nvshmemx_int_get_block(back, inbox, kInts / 2, to);
    if (threadIdx.x == 0) {
        nvshmem_int_get_nbi(back + kInts / 2, inbox + kInts / 2, kInts / 2, to);
        nvshmem_quiet();
    }
}

// `out` and `back` are memory of one kind.
void try_with(int *inbox, int *out, int *back, int me, int to) {
    constexpr size_t kBytes = kInts * sizeof(int);
    CHECK(nvshmemx_buffer_register(out, kBytes) == NVSHMEMX_SUCCESS);
    CHECK(nvshmemx_buffer_register(back, kBytes) == NVSHMEMX_SUCCESS);
    fill<<<1, kThreads>>>(out, me);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    nvshmem_barrier_all();
    round_trip<<<1, kThreads>>>(inbox, out, back, to);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    std::vector<int> got(kInts);
    CHECK(cudaMemcpy(got.data(), back, kBytes, cudaMemcpyDefault) == cudaSuccess);
    for (size_t i = 0; i < kInts; ++i) {
        CHECK(got[i] == me * 7 + static_cast<int>(i));
    }
    nvshmem_barrier_all();
    CHECK(nvshmemx_buffer_unregister(out) == NVSHMEMX_SUCCESS);
    CHECK(nvshmemx_buffer_unregister(back) == NVSHMEMX_SUCCESS);
}

} // namespace

int main() {
    int gpus = 0;
    CHECK(cudaGetDeviceCount(&gpus) == cudaSuccess && gpus > 0);
    nvshmem_init();
    CHECK(cudaSetDevice(nvshmem_team_my_pe(NVSHMEMX_TEAM_NODE) % gpus) == cudaSuccess);
    const int me = nvshmem_my_pe(), to = (me + 1) % nvshmem_n_pes();
    constexpr size_t kBytes = kInts * sizeof(int);
    auto *inbox = static_cast<int *>(nvshmem_malloc(kBytes));
    CHECK(inbox != nullptr);

    int *out = nullptr, *back = nullptr;
    CHECK(cudaMalloc(&out, kBytes) == cudaSuccess && cudaMalloc(&back, kBytes) == cudaSuccess);
    try_with(inbox, out, back, me, to);
    CHECK(cudaFree(out) == cudaSuccess && cudaFree(back) == cudaSuccess);

    CHECK(cudaMallocHost(&out, kBytes) == cudaSuccess && cudaMallocHost(&back, kBytes) == cudaSuccess);
    try_with(inbox, out, back, me, to);
    CHECK(cudaFreeHost(out) == cudaSuccess && cudaFreeHost(back) == cudaSuccess);

    // Registering makes pageable memory page-locked.
    out = static_cast<int *>(std::aligned_alloc(1 << 16, kBytes));
    back = static_cast<int *>(std::aligned_alloc(1 << 16, kBytes));
    try_with(inbox, out, back, me, to);
    CHECK(nvshmemx_buffer_register(out, kBytes) == NVSHMEMX_SUCCESS);
    nvshmemx_buffer_unregister_all();
    std::free(out);
    std::free(back);
    nvshmem_free(inbox);
    nvshmem_finalize();
}
