// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// plugin-main LIBRARY before|after: opens a library with kernels before or after init, uses it in
// two jobs one after the other, and closes it.
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <oxshmem/host.h>

#include <cstdio>
#include <cstring>

namespace {

#define EXPECT(condition)                                                                                                      \
    if (!(condition)) {                                                                                                        \
        std::fprintf(stderr, "line %d: %s: %s; %s\n", __LINE__, #condition, oxshmem_error(),                                   \
                     cudaGetErrorString(cudaGetLastError()));                                                                  \
        return 1;                                                                                                              \
    }

using Launch = cudaError_t (*)(int *);
using Wait = cudaError_t (*)(const uint64_t *, cudaStream_t);

int use(Launch launch, Wait wait) {
    const int me = oxshmem_host_my_pe(), n = oxshmem_host_n_pes();
    auto *answer = static_cast<int *>(oxshmem_malloc(3 * sizeof(int)));
    EXPECT(answer != nullptr);
    EXPECT(launch(answer) == cudaSuccess);
    EXPECT(oxshmem_synchronize() == OXSHMEM_SUCCESS);
    int seen[3] = {-1, -1, -1};
    EXPECT(cudaMemcpy(seen, answer, sizeof(seen), cudaMemcpyDeviceToHost) == cudaSuccess);
    EXPECT(seen[0] == me && seen[1] == n && seen[2] == 100 + (me + n - 1) % n);

    // The deadline of a wait in the program's own kernel, on its own stream; then everything goes
    // on.
    cudaStream_t stream = nullptr;
    EXPECT(cudaStreamCreate(&stream) == cudaSuccess);
    auto *signal = static_cast<uint64_t *>(oxshmem_malloc(sizeof(uint64_t)));
    EXPECT(signal != nullptr && wait(signal, stream) == cudaSuccess);
    EXPECT(oxshmemx_stream_synchronize(stream) == OXSHMEM_ERROR_FAULT);
    EXPECT(std::strstr(oxshmem_error(), "signal_wait_until") != nullptr);
    EXPECT(oxshmemx_stream_synchronize(stream) == OXSHMEM_SUCCESS);
    EXPECT(cudaStreamDestroy(stream) == cudaSuccess);
    EXPECT(oxshmem_host_barrier_all() == OXSHMEM_SUCCESS);
    return 0;
}

} // namespace

int main(int argc, char **argv) {
    EXPECT(argc == 3);
    const bool before = std::strcmp(argv[2], "before") == 0;
    void *library = before ? dlopen(argv[1], RTLD_NOW) : nullptr;
    EXPECT(oxshmem_init() == OXSHMEM_SUCCESS);
    if (!before) {
        library = dlopen(argv[1], RTLD_NOW);
    }
    if (library == nullptr) {
        std::fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    const auto launch = reinterpret_cast<Launch>(dlsym(library, "plugin_launch"));
    const auto wait = reinterpret_cast<Wait>(dlsym(library, "plugin_wait"));
    EXPECT(launch != nullptr && wait != nullptr);
    int device = -1;
    EXPECT(cudaGetDevice(&device) == cudaSuccess && device == oxshmem_gpu());
    if (use(launch, wait) != 0) {
        return 1;
    }
    EXPECT(oxshmem_finalize() == OXSHMEM_SUCCESS);
    EXPECT(oxshmem_init() == OXSHMEM_SUCCESS);
    if (use(launch, wait) != 0) {
        return 1;
    }
    EXPECT(dlclose(library) == 0);
    EXPECT(oxshmem_finalize() == OXSHMEM_SUCCESS);
    EXPECT(oxshmem_init() == OXSHMEM_SUCCESS);
    EXPECT(oxshmem_finalize() == OXSHMEM_SUCCESS);
    std::printf("passed\n");
    return 0;
}
