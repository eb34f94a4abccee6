// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Each PE gives the rank of its right neighbour in the ring of `n` PEs.
#include <oxshmem/port/port.h>

OXSHMEM_KERNEL(ring, int me, int n, int *right) {
    *right = (me + 1) % n;
}
