// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// A ring of PEs in C++ with the CUDA runtime: kernels in two translation units, compiled without
// -rdc=true and launched by <<<>>>, and operations on the same stream. Each PE checks what every PE
// has got.
#include <oxshmem/host.h>

#include <cstdio>

#include "ring.h"

namespace {

bool works(int status, const char *what) {
    if (status != OXSHMEM_SUCCESS) {
        std::fprintf(stderr, "%s: %s\n", what, oxshmem_error());
    }
    return status == OXSHMEM_SUCCESS;
}

bool works(cudaError_t status, const char *what) {
    if (status != cudaSuccess) {
        std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
    }
    return status == cudaSuccess;
}

bool works(const void *memory, const char *what) {
    return works(memory != nullptr ? OXSHMEM_SUCCESS : OXSHMEM_ERROR_HEAP, what);
}

#define TRY(call)                                                                                                              \
    if (!works(call, #call)) {                                                                                                 \
        return false;                                                                                                          \
    }

bool run() {
    const int me = oxshmem_host_my_pe();
    cudaStream_t stream = nullptr;
    TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    auto *inbox = static_cast<int *>(oxshmem_malloc(sizeof(int)));
    TRY(inbox);
    auto *arrived = static_cast<uint64_t *>(oxshmem_malloc(sizeof(uint64_t)));
    TRY(arrived);
    int *wrong = nullptr;
    TRY(cudaMalloc(&wrong, sizeof(int)));
    TRY(cudaMemsetAsync(wrong, 0, sizeof(int), stream));

    const uint64_t rounds = 3;
    for (uint64_t round = 1; round <= rounds; ++round) {
        TRY(cudaMemsetAsync(inbox, 0xff, sizeof(int), stream));
        TRY(oxshmemx_barrier_all_on_stream(stream));
        TRY(launch_ring(inbox, arrived, round, stream));
        TRY(oxshmemx_barrier_all_on_stream(stream));
        TRY(launch_check(inbox, wrong, stream));
        TRY(oxshmemx_barrier_all_on_stream(stream));
    }
    TRY(oxshmemx_stream_synchronize(stream));

    int got = -1, errors = -1;
    TRY(cudaMemcpy(&got, inbox, sizeof(int), cudaMemcpyDeviceToHost));
    TRY(cudaMemcpy(&errors, wrong, sizeof(int), cudaMemcpyDeviceToHost));
    std::printf("PE %d of %d on GPU %d got %d, %d wrong\n", me, oxshmem_host_n_pes(), oxshmem_gpu(), got, errors);
    TRY(oxshmem_free(arrived));
    TRY(oxshmem_free(inbox));
    TRY(cudaFree(wrong));
    TRY(cudaStreamDestroy(stream));
    return errors == 0;
}

} // namespace

int main() {
    if (!works(oxshmem_init(), "oxshmem_init")) {
        return 1;
    }
    const bool right = run();
    return works(oxshmem_finalize(), "oxshmem_finalize") && right ? 0 : 1;
}
