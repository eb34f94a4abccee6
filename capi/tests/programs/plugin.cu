// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// A library with a kernel, for plugin_main.cpp to open.
#include <oxshmem/oxshmem.h>

static __global__ void who_am_i(int *answer) {
    answer[0] = oxshmem::my_pe();
    answer[1] = oxshmem::n_pes();
    oxshmem::p(answer + 2, 100 + oxshmem::my_pe(), (oxshmem::my_pe() + 1) % oxshmem::n_pes());
    oxshmem::barrier_all();
}

extern "C" cudaError_t plugin_launch(int *answer) {
    who_am_i<<<1, 1>>>(answer);
    return cudaGetLastError();
}

// Waits for a value that no PE sends.
static __global__ void wait_for_ever(const uint64_t *signal) {
    oxshmem::signal_wait_until(signal, oxshmem::CMP_EQ, 1);
}

extern "C" cudaError_t plugin_wait(const uint64_t *signal, cudaStream_t stream) {
    wait_for_ever<<<1, 1, 0, stream>>>(signal);
    return cudaGetLastError();
}
