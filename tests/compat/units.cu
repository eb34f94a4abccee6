// SPDX-License-Identifier: Apache-2.0 OR MIT
#include "check.h"
#include "units.h"

static __global__ void look(const int *inbox, int *wrong) {
    const int n = nvshmem_n_pes();
    *wrong = *inbox != 500 + (nvshmem_my_pe() + n - 1) % n;
}

int main() {
    nvshmem_init();
    int gpus = 0, *wrong = nullptr, errors = -1;
    CHECK(cudaGetDeviceCount(&gpus) == cudaSuccess && gpus > 0);
    CHECK(cudaSetDevice(nvshmem_team_my_pe(NVSHMEMX_TEAM_NODE) % gpus) == cudaSuccess);
    auto *inbox = static_cast<int *>(nvshmem_calloc(1, sizeof(int)));
    CHECK(cudaMalloc(&wrong, sizeof(int)) == cudaSuccess);
    units_launch(inbox, nullptr);
    nvshmemx_barrier_all_on_stream(nullptr);
    look<<<1, 1>>>(inbox, wrong);
    CHECK(cudaMemcpy(&errors, wrong, sizeof(int), cudaMemcpyDeviceToHost) == cudaSuccess && errors == 0);
    nvshmem_barrier_all();
    nvshmem_free(inbox);
    nvshmem_finalize();
}
