// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// What a compiler has: CUDA's types, whether the unit has device code, and types of 16 bits. Units
// of nvcc have device and host code, those of the `cpu` device (OXSHMEM_MODULE_NAME) and of NVRTC
// device code alone, and those of other compilers host code alone.
#pragma once

#if !defined(__CUDACC_RTC__)
#include <assert.h>
#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#endif

#if defined(__CUDACC__) || defined(OXSHMEM_MODULE_NAME)
#define OXSHMEM_NV_DEVICE_CODE 1
#endif
#if !defined(OXSHMEM_MODULE_NAME) && !defined(__CUDACC_RTC__)
#define OXSHMEM_NV_HOST_CODE 1
#endif

#if defined(__CUDACC__) || (defined(OXSHMEM_NV_HOST_CODE) && !defined(OXSHMEM_NV_LIBRARY) && __has_include(<cuda_runtime.h>))
#if !defined(__CUDACC_RTC__)
#include <cuda.h>
#include <cuda_runtime.h>
#define OXSHMEM_NV_CUDA_TYPES 1
#endif
// Both need a header of CCCL, which a CUDA installation without its C++ libraries lacks.
#if __has_include(<nv/target>)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
// Programs rely on it. The whole of it takes 1.9 s to compile for what it includes itself, most of
// it <cuda/atomic>: a program that needs those parts includes it first (docs/compat.md).
#if defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#ifndef _CG_LIMIT_INCLUDED_DEPENDENCIES
#define _CG_LIMIT_INCLUDED_DEPENDENCIES
#include <cooperative_groups.h>
#undef _CG_LIMIT_INCLUDED_DEPENDENCIES
#else
#include <cooperative_groups.h>
#endif
#endif
#define OXSHMEM_NV_HALF half
#define OXSHMEM_NV_BFLOAT16 __nv_bfloat16
#endif
#elif defined(OXSHMEM_NV_HOST_CODE)
typedef struct CUstream_st *cudaStream_t;
typedef struct CUmod_st *CUmodule;
typedef struct CUlib_st *CUlibrary;
#endif

// Without CUDA's headers the 16-bit floating-point types are storage.
#if defined(OXSHMEM_MODULE_NAME) && !defined(__CUDACC__)
#include "oxshmem.h"
#define OXSHMEM_NV_HALF oxshmem::half
#define OXSHMEM_NV_BFLOAT16 oxshmem::bfloat16
#elif !defined(OXSHMEM_NV_HALF)
struct oxshmem_nv_half {
    uint16_t bits;
};
struct oxshmem_nv_bfloat16 {
    uint16_t bits;
};
#define OXSHMEM_NV_HALF oxshmem_nv_half
#define OXSHMEM_NV_BFLOAT16 oxshmem_nv_bfloat16
#endif

// A value and its place, for maxloc.
#if defined(__CUDACC__) || defined(OXSHMEM_NV_CUDA_TYPES)
#define OXSHMEM_NV_DOUBLE2 double2
#else
struct alignas(16) oxshmem_nv_double2 {
    double x, y;
};
#define OXSHMEM_NV_DOUBLE2 oxshmem_nv_double2
#endif
