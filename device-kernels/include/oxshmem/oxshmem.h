// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// OxSHMEM's device API, whole. CUDA C++17, header only; nothing to link.
//
// The templates live in namespace oxshmem and take their scope as first argument (oxshmem::put_nbi(oxshmem::block, dst, src, n,
// pe)); typed.h gives them the names of OpenSHMEM. docs/semantics.md says what each promises.
#pragma once

#include "typed.h"
