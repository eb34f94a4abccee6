#include <oxshmem/oxshmem.h>

// Every PE puts its number into the next PE's memory, followed by a signal, then waits for its own
// signal.
OXSHMEM_KERNEL(ring, int *inbox, uint64_t *arrived) {
    const int next = (oxshmem::my_pe() + 1) % oxshmem::n_pes();
    oxshmem::p(inbox, oxshmem::my_pe(), next);
    oxshmem::fence(); // the number before the signal
    oxshmem::signal_op(arrived, 1, oxshmem::SIGNAL_SET, next);
    oxshmem::signal_wait_until(arrived, oxshmem::CMP_EQ, 1);
}
