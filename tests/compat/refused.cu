// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Launches that are refused, each with a line that says why: more blocks than the GPU holds, blocks
// that are too large, another GPU. The statuses are checked here.
#include "check.h"

namespace {

// No launch bounds, and a large block of shared memory.
__global__ void large(int *at) {
    __shared__ int values[8192];
    values[threadIdx.x] = at[0];
    __syncthreads();
    at[threadIdx.x] = values[(threadIdx.x + 1) % 8192];
}

__global__ void small(int *at) {
    *at = 1;
}

} // namespace

int main() {
    int gpus = 0;
    CHECK(cudaGetDeviceCount(&gpus) == cudaSuccess && gpus > 0);
    nvshmem_init();
    const int own = nvshmem_team_my_pe(NVSHMEMX_TEAM_NODE) % gpus;
    CHECK(cudaSetDevice(own) == cudaSuccess);
    auto *cells = static_cast<int *>(nvshmem_malloc(1024 * sizeof(int)));
    void *arguments[] = {&cells};
    const auto launch = [&](const void *kernel, dim3 grid, dim3 block, size_t shared) {
        return nvshmemx_collective_launch(kernel, grid, block, arguments, shared, nullptr);
    };
    CHECK(launch(reinterpret_cast<const void *>(small), dim3(1 << 20), dim3(32), 0) == NVSHMEMX_ERROR_INVALID_VALUE);
    // 32 KiB of its own and as much as a block may have.
    CHECK(launch(reinterpret_cast<const void *>(large), dim3(1), dim3(1024), 200 << 10) != NVSHMEMX_SUCCESS);
    CHECK(launch(reinterpret_cast<const void *>(small), dim3(1), dim3(32), 0) == NVSHMEMX_SUCCESS);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    if (gpus > 1) {
        CHECK(cudaSetDevice((own + 1) % gpus) == cudaSuccess);
        CHECK(launch(reinterpret_cast<const void *>(small), dim3(1), dim3(32), 0) == NVSHMEMX_ERROR_GPU_NOT_SELECTED);
        CHECK(cudaSetDevice(own) == cudaSuccess);
    }
    nvshmem_free(cells);
    nvshmem_finalize();
}
