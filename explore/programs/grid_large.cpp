// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// The programs of grid.cpp in grids in which not all blocks tell that they have entered.
#define EXPLORE_SHARING_BLOCKS 2
#define OXSHMEM_GRID_WORDS 2
#include "grid.cpp"
