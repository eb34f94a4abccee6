// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// A unit of the modules that modules.cu loads.
#include <nvshmem.h>

extern "C" __global__ void add_from_module(int *cell, int pe) {
    nvshmem_int_atomic_add(cell, 1, pe);
    nvshmem_quiet();
}
