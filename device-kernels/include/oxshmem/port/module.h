// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Ends a module: the build compiles each .cu inside a wrapper that defines OXSHMEM_MODULE_NAME,
// includes the .cu and then this file, which for `cpu` exports the one symbol the host looks for:
// oxshmem_module_<name>(). In PTX the host looks for oxshmem_state, which port/cuda.h defines.
#ifndef OXSHMEM_MODULE_NAME
#error "define OXSHMEM_MODULE_NAME before including oxshmem/port/module.h"
#endif

#include <oxshmem/port/port.h>

#ifndef __CUDACC__

#define OXSHMEM_MODULE_SYMBOL_(name) oxshmem_module_##name
#define OXSHMEM_MODULE_SYMBOL(name) OXSHMEM_MODULE_SYMBOL_(name)

extern "C" const oxshmem_cpu_module *OXSHMEM_MODULE_SYMBOL(OXSHMEM_MODULE_NAME)() {
    static const oxshmem_cpu_module module = {
        oxshmem::abi::kAbiVersion, static_cast<uint32_t>(sizeof(oxshmem::abi::State)), oxshmem::port::kCpuVersion, 0,
        oxshmem_cpu_kernel_list,
    };
    return &module;
}

#undef OXSHMEM_MODULE_SYMBOL
#undef OXSHMEM_MODULE_SYMBOL_

#endif
