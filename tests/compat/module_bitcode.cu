// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// A kernel that knows the device library by its names alone, as compilers do that make kernels of
// bitcode; modules.cu loads it.
#define DEVICE __attribute__((device))

extern "C" DEVICE void nvshmem_int_p(int *, int, int);
extern "C" DEVICE int nvshmem_int_g(const int *, int);
extern "C" DEVICE void nvshmem_int_atomic_add(int *, int, int);
extern "C" DEVICE int nvshmem_my_pe();
extern "C" DEVICE void nvshmem_quiet();

// Adds 1 to the cell of `pe`, after a word of its own has gone to the cell behind that and back.
extern "C" __attribute__((global)) void add_from_module(int *cell, int pe) {
    const int mine = nvshmem_my_pe() + 1;
    nvshmem_int_p(cell + 1, mine, pe);
    nvshmem_quiet();
    nvshmem_int_atomic_add(cell, nvshmem_int_g(cell + 1, pe) == mine ? 1 : 100, pe);
    nvshmem_quiet();
}
