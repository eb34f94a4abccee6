// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// The kernels as a module of their own, for the tests on the `cpu` device.

#include "kernels.h"
