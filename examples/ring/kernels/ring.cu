// SPDX-License-Identifier: Apache-2.0 OR MIT

#include <oxshmem/oxshmem.h>

// Each PE puts its number into the next PE's memory, and a signal behind it.
OXSHMEM_KERNEL(ring, int *inbox, uint64_t *arrived) {
    const int me = oxshmem::my_pe();
    const int next = (me + 1) % oxshmem::n_pes();
    oxshmem::p(inbox, me, next);
    oxshmem::signal_op(arrived, 1, oxshmem::SIGNAL_SET, next);
    oxshmem::signal_wait_until(arrived, oxshmem::CMP_EQ, 1);
}
