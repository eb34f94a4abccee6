// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Operations of a PE on itself, with the names of NVSHMEM's interface and with memory that is not
// in the heap: programs use the kernels that exchange data for a PE that is alone, too.

#include <nvshmem.h>

#include "conformance.h"

OXSHMEM_KERNEL(own_memory, uint64_t *outside, conformance::Report *report) {
    const int me = nvshmem_my_pe();
    nvshmem_uint64_p(outside, 11, me);
    EXPECT_EQ(report, nvshmem_uint64_g(outside, me), uint64_t{11});
    uint64_t local[4] = {21, 22, 23, 24};
    nvshmem_uint64_put_nbi(outside, local, 4, me);
    nvshmem_quiet();
    EXPECT_EQ(report, outside[3], uint64_t{24});
    uint64_t back[4] = {};
    nvshmem_uint64_get(back, outside, 4, me);
    EXPECT_EQ(report, back[1], uint64_t{22});
    nvshmem_uint64_iput(outside, local, 1, 2, 2, me);
    EXPECT_EQ(report, outside[1], uint64_t{23});
    EXPECT_EQ(report, nvshmem_uint64_atomic_fetch_add(outside, 4, me), uint64_t{21});
    nvshmemx_signal_op(outside + 1, 2, NVSHMEM_SIGNAL_ADD, me);
    EXPECT_EQ(report, outside[1], uint64_t{25});
    nvshmem_uint64_put_signal(outside + 2, local, 1, outside + 3, 9, NVSHMEM_SIGNAL_SET, me);
    nvshmem_uint64_wait_until(outside + 3, NVSHMEM_CMP_EQ, 9);
    EXPECT_EQ(report, outside[2], uint64_t{21});
    nvshmem_uint64_put_signal(outside + 2, local + 3, 1, outside + 3, 9, NVSHMEM_SIGNAL_ADD, me);
    nvshmem_uint64_wait_until(outside + 3, NVSHMEM_CMP_EQ, 18);
    EXPECT_EQ(report, outside[2], uint64_t{24});
    EXPECT_EQ(report, outside[0], uint64_t{25});
}

// The same address at another PE is refused.
OXSHMEM_KERNEL(memory_of_others, uint64_t *outside, int pe) {
    nvshmem_uint64_p(outside, 1, pe);
}
