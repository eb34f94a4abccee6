// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// libnvshmem_device: which interface it is of.

#include <oxshmem_nvshmem/types.h>

extern "C" const int oxshmem_nv_device_interface = OXSHMEM_NV_ABI;
