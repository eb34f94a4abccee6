// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Every name that the host can call, for programs whose compiler has no device code and for those
// that look names up while they run.

#include "internal.h"

#include <oxshmem_nvshmem/expand.h>

#include <oxshmem_nvshmem/list_atomic.h>
#include <oxshmem_nvshmem/list_collective.h>
#include <oxshmem_nvshmem/list_library.h>
#include <oxshmem_nvshmem/list_rma.h>
