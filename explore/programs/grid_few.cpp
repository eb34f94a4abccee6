// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// The programs of grid.cpp where at most two blocks work on the data.
#define EXPLORE_SHARING_BLOCKS 2
#include "grid.cpp"
