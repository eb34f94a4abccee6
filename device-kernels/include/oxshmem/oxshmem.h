// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// OxSHMEM's device API. CUDA C++17, header only; nothing to link.
//
// Each of the headers below may be included alone, which compiles faster: p, g, put and get need
// rma.h and nothing else. A kernel that is compiled while its program runs may leave the network,
// copies and errors to the device library, by defining OXSHMEM_DEVICE_LIBRARY: docs/semantics.md,
// "Kernels that are compiled while the program runs". One that defines OXSHMEM_PROFILE counts and
// records its calls: docs/profiling.md.
//
// The templates live in namespace oxshmem and take their scope as first argument
// (oxshmem::put_nbi(oxshmem::block, dst, src, n, pe)). docs/semantics.md says what each promises.
// The names of OpenSHMEM, which are thousands and take longer to read than the rest, are in
// oxshmem/typed.h.
#pragma once

#include "atomic.h"
#include "barrier.h"
#include "collectives.h"
#include "context.h"
#include "rma.h"
#include "signal.h"
#include "split.h"
#include "team.h"
#include "wait.h"
