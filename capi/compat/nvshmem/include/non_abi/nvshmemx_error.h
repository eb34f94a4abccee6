// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// A name that programs include; everything is in nvshmem.h.
#pragma once

#include "../nvshmem.h"
