// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// A ring of kernels, compiled for a GPU: plain init, a GPU chosen after it, launches of both kinds,
// a wait on a signal, and names that host and device share.
#include "check.h"

namespace {

__global__ void send(int *inbox, uint64_t *arrived, uint64_t round) {
    const int me = nvshmem_my_pe(), n = nvshmem_n_pes();
    nvshmem_int_p(inbox, static_cast<int>(round) * 100 + me, (me + 1) % n);
    nvshmem_fence();
    nvshmemx_signal_op(arrived, round, NVSHMEM_SIGNAL_SET, (me + 1) % n);
    nvshmem_signal_wait_until(arrived, NVSHMEM_CMP_GE, round);
}

__global__ void __launch_bounds__(128) sum(int *result, const int *source, int *wrong) {
    const int n = nvshmem_n_pes();
    const int failed = nvshmemx_int_sum_reduce_block(NVSHMEM_TEAM_WORLD, result, source, 128);
    if (failed != 0 || result[threadIdx.x] != n * (n - 1) / 2 + n * static_cast<int>(threadIdx.x)) {
        atomicAdd(wrong, 1);
    }
}

__global__ void fill(int *source) {
    source[threadIdx.x] = nvshmem_my_pe() + static_cast<int>(threadIdx.x);
}

__global__ void meet(int *count) {
    // Every thread of every block of every PE that is launched together.
    if (threadIdx.x == 0 && blockIdx.x == 0) {
        nvshmem_int_atomic_inc(count, 0);
        nvshmem_barrier_all();
    }
}

} // namespace

int main() {
    nvshmem_init();
    int gpus = 0;
    CHECK(cudaGetDeviceCount(&gpus) == cudaSuccess && gpus > 0);
    CHECK(cudaSetDevice(nvshmem_team_my_pe(NVSHMEMX_TEAM_NODE) % gpus) == cudaSuccess);
    const int me = nvshmem_my_pe(), n = nvshmem_n_pes();
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream) == cudaSuccess);

    auto *inbox = static_cast<int *>(nvshmem_calloc(1, sizeof(int)));
    auto *arrived = static_cast<uint64_t *>(nvshmem_calloc(1, sizeof(uint64_t)));
    for (uint64_t round = 1; round <= 3; ++round) {
        send<<<1, 1, 0, stream>>>(inbox, arrived, round);
        nvshmemx_barrier_all_on_stream(stream);
        int got = 0;
        CHECK(cudaMemcpyAsync(&got, inbox, sizeof(got), cudaMemcpyDeviceToHost, stream) == cudaSuccess);
        CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
        CHECK(got == static_cast<int>(round) * 100 + (me + n - 1) % n);
        nvshmem_barrier_all();
    }

    auto *source = static_cast<int *>(nvshmem_malloc(128 * sizeof(int)));
    auto *result = static_cast<int *>(nvshmem_malloc(128 * sizeof(int)));
    int *wrong = nullptr, errors = -1;
    CHECK(cudaMalloc(&wrong, sizeof(int)) == cudaSuccess && cudaMemset(wrong, 0, sizeof(int)) == cudaSuccess);
    fill<<<1, 128, 0, stream>>>(source);
    void *arguments[] = {&result, &source, &wrong};
    CHECK(nvshmemx_collective_launch(reinterpret_cast<const void *>(sum), 1, 128, arguments, 0, stream) == NVSHMEMX_SUCCESS);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(cudaMemcpy(&errors, wrong, sizeof(int), cudaMemcpyDeviceToHost) == cudaSuccess && errors == 0);

    auto *count = static_cast<int *>(nvshmem_calloc(1, sizeof(int)));
    void *one[] = {&count};
    int blocks = 0;
    CHECK(nvshmemx_collective_launch_query_gridsize(reinterpret_cast<const void *>(meet), 32, one, 0, &blocks) == 0 &&
          blocks > 0);
    CHECK(nvshmemx_collective_launch(reinterpret_cast<const void *>(meet), 0, 32, one, 0, stream) == NVSHMEMX_SUCCESS);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(nvshmem_int_atomic_fetch(count, 0) == n);
    nvshmem_barrier_all();
    std::printf("PE %d of %d: the ring is closed\n", me, n);
    nvshmem_finalize();
}
