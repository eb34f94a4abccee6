// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// The device library as LLVM bitcode: every name that kernels can call, for compilers that make
// kernels of bitcode (Triton, Numba and their like). clang compiles it; scripts/install.

#define OXSHMEM_NV_BITCODE 1
#define OXSHMEM_MODULE_NAME nvshmem_device
#include <nvshmem.h>
