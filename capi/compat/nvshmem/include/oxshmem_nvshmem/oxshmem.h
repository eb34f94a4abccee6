// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// OxSHMEM's device headers, with what programs that are written for NVSHMEM may and have to do.
#pragma once

// An operation on the calling PE itself takes any address there, as NVSHMEM's does.
#ifndef OXSHMEM_ANY_OWN_MEMORY
#define OXSHMEM_ANY_OWN_MEMORY
#endif
// Members make sure that dst may be written before they call a collective, as NVSHMEM's must.
#ifndef OXSHMEM_DST_IS_READY
#define OXSHMEM_DST_IS_READY
#endif
#include <oxshmem/oxshmem.h>
