// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// A translation unit of a CUDA-runtime program: a static object tells liboxshmem where the unit's
// state symbol is. Kernels can then be launched with <<<>>>; nothing is called by hand. The object
// is constructed after nvcc's own registration of the unit, which is in the same list of
// constructors before it, and its library may be opened before or after init.
#pragma once

#include <cuda_runtime.h>

#include <oxshmem/abi.h>
#include <oxshmem/host.h>

// A library that has liboxshmem's functions under other names says so.
#ifndef OXSHMEM_UNIT_REGISTER
#define OXSHMEM_UNIT_REGISTER oxshmem_unit_register
#define OXSHMEM_UNIT_UNREGISTER oxshmem_unit_unregister
#endif

namespace {

const char *oxshmem_locate_state(void **address, size_t *bytes) {
    cudaError_t result = cudaGetSymbolAddress(address, oxshmem_state);
    if (result == cudaSuccess) {
        result = cudaGetSymbolSize(bytes, oxshmem_state);
    }
    if (result == cudaSuccess) {
        return nullptr;
    }
    cudaGetLastError(); // The caller is told; the program's next look at its own errors should not find this one.
    return cudaGetErrorString(result);
}

const struct OxshmemUnit {
    oxshmem_unit unit{oxshmem::abi::kAbiVersion, sizeof(oxshmem::abi::State), __BASE_FILE__, oxshmem_locate_state};
    OxshmemUnit() { OXSHMEM_UNIT_REGISTER(&unit); }
    ~OxshmemUnit() { OXSHMEM_UNIT_UNREGISTER(&unit); }
    OxshmemUnit(const OxshmemUnit &) = delete;
    OxshmemUnit &operator=(const OxshmemUnit &) = delete;
} oxshmem_this_unit;

} // namespace
