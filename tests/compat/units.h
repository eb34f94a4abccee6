// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Three units that are linked as relocatable code: a device function of one is called by a kernel
// of another, and launched by the third.
#pragma once

#include <nvshmem.h>

__device__ void units_send(int *inbox, int value);
void units_launch(int *inbox, cudaStream_t stream);
