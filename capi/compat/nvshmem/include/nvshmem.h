// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// OxSHMEM under the names of NVSHMEM's interface, for programs that were written for it:
// docs/compat.md. A part of OxSHMEM, which is not affiliated with NVIDIA; NVSHMEM is NVIDIA's.
#pragma once

#ifndef __cplusplus
#error "the interface of NVSHMEM is for C++ here; C programs use oxshmem/host.h"
#endif

#include "oxshmem_nvshmem/host.h"

#include "oxshmem_nvshmem/expand.h"

#include "oxshmem_nvshmem/list_atomic.h"
#include "oxshmem_nvshmem/list_collective.h"
#include "oxshmem_nvshmem/list_library.h"
#include "oxshmem_nvshmem/list_qp.h"
#include "oxshmem_nvshmem/list_rma.h"
