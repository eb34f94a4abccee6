// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// OxSHMEM's device API. CUDA C++17, header only; nothing to link.
//
// The templates live in namespace oxshmem and take their scope as first argument (oxshmem::put_nbi(oxshmem::block, dst, src, n,
// pe)). docs/semantics.md says what each promises. The names of OpenSHMEM, which are thousands and take longer to read than the
// rest, are in oxshmem/typed.h.
#pragma once

#include "atomic.h"
#include "barrier.h"
#include "collectives.h"
#include "rma.h"
#include "signal.h"
#include "team.h"
#include "wait.h"
