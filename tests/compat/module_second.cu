// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// The other unit of the linked module that modules.cu loads.
#include <nvshmem.h>

extern "C" __global__ void add_from_second_unit(int *cell, int pe) {
    nvshmem_int_atomic_inc(cell, pe);
    nvshmem_quiet();
}
