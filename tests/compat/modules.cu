// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Modules that a program loads by the driver's API: compiled as a whole, linked from two units of
// relocatable code, relocatable code that is not linked, and a kernel that was linked with the
// device library's bitcode; each as a module and as a library.
#include "check.h"

#include <cstring>
#include <string>

#include <cuda.h>
#include <unistd.h>

namespace {

std::string beside_this_program(const char *file) {
    char path[4096] = "";
    CHECK(readlink("/proc/self/exe", path, sizeof(path) - 1) > 0);
    const std::string program = path;
    return program.substr(0, program.rfind('/') + 1) + file;
}

// Each PE adds 1 to the cell of the next one, by kernel `name`.
void add(CUfunction kernel, int *cell, int to) {
    void *arguments[] = {&cell, &to};
    CHECK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr) == CUDA_SUCCESS);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
}

void check_and_clear(int *cell, int wanted) {
    nvshmem_barrier_all();
    int seen = 0;
    CHECK(cudaMemcpy(&seen, cell, sizeof(seen), cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(seen == wanted);
    CHECK(cudaMemset(cell, 0, sizeof(*cell)) == cudaSuccess);
    nvshmem_barrier_all();
}

} // namespace

int main() {
    int gpus = 0;
    CHECK(cudaGetDeviceCount(&gpus) == cudaSuccess && gpus > 0);
    nvshmem_init();
    CHECK(cudaSetDevice(nvshmem_team_my_pe(NVSHMEMX_TEAM_NODE) % gpus) == cudaSuccess);
    const int to = (nvshmem_my_pe() + 1) % nvshmem_n_pes();
    auto *cell = static_cast<int *>(nvshmem_calloc(2, sizeof(int)));
    CHECK(cell != nullptr);

    for (const char *file : {"module_whole.cubin", "module_linked.cubin", "module_relocatable.cubin", "module_bitcode.cubin"}) {
        const bool linked = std::strcmp(file, "module_linked.cubin") == 0;
        const std::string path = beside_this_program(file);
        // The others are always built.
        if (std::strcmp(file, "module_bitcode.cubin") == 0 && access(path.c_str(), R_OK) != 0) {
            if (nvshmem_my_pe() == 0) {
                std::printf("skipped: there is no %s: it takes the device library as bitcode, and clang\n", file);
            }
            continue;
        }
        CUmodule module = nullptr;
        const CUresult loaded = cuModuleLoad(&module, path.c_str());
        if (loaded != CUDA_SUCCESS && std::strcmp(file, "module_relocatable.cubin") == 0) {
            if (nvshmem_my_pe() == 0) {
                std::printf("skipped: the driver does not load relocatable code that is not linked (%d)\n", loaded);
            }
            continue;
        }
        CHECK(loaded == CUDA_SUCCESS);
        const int joined = nvshmemx_cumodule_init(module);
        // Some drivers load it all the same, and refuse its kernels.
        if (joined != NVSHMEMX_SUCCESS && std::strcmp(file, "module_relocatable.cubin") == 0) {
            if (nvshmem_my_pe() == 0) {
                std::printf("skipped: the driver runs no kernel of relocatable code that is not linked\n");
            }
            CHECK(cuModuleUnload(module) == CUDA_SUCCESS);
            continue;
        }
        if (joined != NVSHMEMX_SUCCESS) {
            std::printf("PE %d: nvshmemx_cumodule_init failed for %s\n", nvshmem_my_pe(), file);
        }
        CHECK(joined == NVSHMEMX_SUCCESS);
        CUfunction kernel = nullptr, second = nullptr;
        CHECK(cuModuleGetFunction(&kernel, module, "add_from_module") == CUDA_SUCCESS);
        add(kernel, cell, to);
        if (linked) {
            CHECK(cuModuleGetFunction(&second, module, "add_from_second_unit") == CUDA_SUCCESS);
            add(second, cell, to);
        }
        check_and_clear(cell, linked ? 2 : 1);
        CHECK(nvshmemx_cumodule_finalize(module) == NVSHMEMX_SUCCESS);
        CHECK(cuModuleUnload(module) == CUDA_SUCCESS);

        CUlibrary library = nullptr;
        CUkernel of_library = nullptr;
        CHECK(cuLibraryLoadFromFile(&library, path.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_SUCCESS);
        CHECK(nvshmemx_culibrary_init(library) == NVSHMEMX_SUCCESS);
        CHECK(cuLibraryGetKernel(&of_library, library, "add_from_module") == CUDA_SUCCESS);
        CHECK(cuKernelGetFunction(&kernel, of_library) == CUDA_SUCCESS);
        add(kernel, cell, to);
        check_and_clear(cell, 1);
        CHECK(nvshmemx_culibrary_finalize(library) == NVSHMEMX_SUCCESS);
        CHECK(cuLibraryUnload(library) == CUDA_SUCCESS);
    }
    nvshmem_free(cell);
    nvshmem_finalize();
}
