// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// libnvshmem_device: launches of kernels of all PEs. They are the program's CUDA runtime's, so they
// are linked into it. Device code has nothing to link, since it is in the headers.

#include <oxshmem_nvshmem/host.h>

#include <cstdio>

namespace {

int failed(const char *call, const char *what, cudaError_t error) {
    std::fprintf(stderr, "%s: %s: %s\n", call, what, cudaGetErrorString(error));
    return NVSHMEMX_ERROR_COLLECTIVE_LAUNCH_FAILED;
}

// Whether this PE has a GPU, which is current then; prints why not.
bool has_gpu(const char *call) {
    const int gpu = oxshmem_nv_bind(call, OXSHMEM_NV_ABI);
    if (gpu == -1) {
        std::fprintf(stderr, "%s: this PE runs on the cpu device, which has no CUDA kernels; set OXSHMEM_DEVICE=cuda\n", call);
    }
    return gpu >= 0;
}

// How many blocks of the kernel the GPU holds at a time.
cudaError_t resident_blocks(const void *func, dim3 block, size_t shared_bytes, int *blocks) {
    int gpu = 0, multiprocessors = 0, each = 0;
    cudaError_t error = cudaGetDevice(&gpu);
    if (error == cudaSuccess) {
        error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, gpu);
    }
    if (error == cudaSuccess) {
        const int threads = static_cast<int>(block.x * block.y * block.z);
        error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, func, threads, shared_bytes);
    }
    *blocks = each * multiprocessors;
    return error;
}

// Prints why a block of that many threads cannot run.
int too_large(const char *call, const void *func, dim3 block, size_t shared_bytes) {
    cudaFuncAttributes kernel = {};
    const cudaError_t error = cudaFuncGetAttributes(&kernel, func);
    if (error != cudaSuccess) {
        return failed(call, "the attributes of the kernel", error);
    }
    std::fprintf(stderr,
                 "%s: a block of %u threads with %zu bytes of dynamic shared memory does not fit this GPU: the kernel takes %d "
                 "registers a thread, so blocks have at most %d threads, and %zu bytes of shared memory of its own; pass fewer "
                 "threads, or compile it with __launch_bounds__(%u)\n",
                 call, block.x * block.y * block.z, shared_bytes, kernel.numRegs, kernel.maxThreadsPerBlock,
                 kernel.sharedSizeBytes, block.x * block.y * block.z);
    return NVSHMEMX_ERROR_INVALID_VALUE;
}

} // namespace

extern "C" {

int nvshmemx_collective_launch_query_gridsize(const void *func, dim3 block, void **, size_t shared_bytes, int *gridsize) {
    if (!has_gpu(__func__)) {
        return NVSHMEMX_ERROR_GPU_NOT_SELECTED;
    }
    const cudaError_t error = resident_blocks(func, block, shared_bytes, gridsize);
    return error == cudaSuccess ? NVSHMEMX_SUCCESS : failed(__func__, "the occupancy of the kernel", error);
}

int nvshmemx_collective_launch(const void *func, dim3 grid, dim3 block, void **args, size_t shared_bytes, cudaStream_t stream) {
    if (!has_gpu(__func__)) {
        return NVSHMEMX_ERROR_GPU_NOT_SELECTED;
    }
    int most = 0;
    cudaError_t error = resident_blocks(func, block, shared_bytes, &most);
    if (error != cudaSuccess) {
        return failed(__func__, "the occupancy of the kernel", error);
    }
    if (most == 0) {
        return too_large(__func__, func, block, shared_bytes);
    }
    // A grid of no blocks means the largest one.
    const unsigned long long blocks = static_cast<unsigned long long>(grid.x) * grid.y * grid.z;
    if (blocks == 0) {
        grid = dim3(static_cast<unsigned>(most));
    }
    if (blocks > static_cast<unsigned long long>(most)) {
        std::fprintf(stderr, "%s: %llu blocks of %u threads; this GPU holds %d of this kernel at a time; pass fewer, or 0\n",
                     __func__, blocks, block.x * block.y * block.z, most);
        return NVSHMEMX_ERROR_INVALID_VALUE;
    }
    error = cudaLaunchCooperativeKernel(func, grid, block, args, shared_bytes, stream);
    return error == cudaSuccess ? NVSHMEMX_SUCCESS : failed(__func__, "cudaLaunchCooperativeKernel", error);
}

int nvshmemx_collective_launch_attr(const nvshmemx_collective_launch_attr_t *attributes, const void *func, void **args) {
    if (attributes == nullptr) {
        std::fprintf(stderr, "%s: attr is null\n", __func__);
        return NVSHMEMX_ERROR_INVALID_VALUE;
    }
    if (!has_gpu(__func__)) {
        return NVSHMEMX_ERROR_GPU_NOT_SELECTED;
    }
    // The program's attributes, and the cooperative launch unless it has said whether it wants one.
    constexpr unsigned kMost = 16;
    cudaLaunchConfig_t config = attributes->cuda_config;
    cudaLaunchAttribute all[kMost + 1];
    if (config.numAttrs > kMost) {
        std::fprintf(stderr, "%s: %u launch attributes; the limit is %u\n", __func__, config.numAttrs, kMost);
        return NVSHMEMX_ERROR_INVALID_VALUE;
    }
    bool said = false;
    for (unsigned i = 0; i < config.numAttrs; ++i) {
        all[i] = config.attrs[i];
        said = said || all[i].id == cudaLaunchAttributeCooperative;
    }
    if (!said) {
        all[config.numAttrs].id = cudaLaunchAttributeCooperative;
        all[config.numAttrs++].val.cooperative = 1;
    }
    config.attrs = all;
    const cudaError_t error = cudaLaunchKernelExC(&config, func, args);
    return error == cudaSuccess ? NVSHMEMX_SUCCESS : failed(__func__, "cudaLaunchKernelExC", error);
}
}
