// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// The calls that profile.cu times, as a program without profiling makes them.
#include "profile_cost.h"
