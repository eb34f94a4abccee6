// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Transfers whose local side is memory of the program.

#include <oxshmem/oxshmem.h>

#include "conformance.h"

using namespace conformance;

// Sends `bytes` bytes of `out` to `inbox` at `pe` and fetches them back to `back`; all but `inbox`
// and `signal` is memory of the program. The block does one half, its first thread the other.
OXSHMEM_KERNEL(buffer_round_trip, unsigned char *inbox, const unsigned char *out, unsigned char *back, uint64_t bytes,
               uint64_t *signal, int pe) {
    const uint64_t half = bytes / 2;
    oxshmem::put_signal_nbi(oxshmem::block, inbox, out, half, signal, 1, oxshmem::SIGNAL_ADD, pe);
    if (thread_rank() == 0) {
        oxshmem::put(oxshmem::thread, inbox + half, out + half, bytes - half, pe);
    }
    oxshmem::quiet(oxshmem::block);
    oxshmem::get_nbi(oxshmem::block, back, inbox, half, pe);
    if (thread_rank() == 0) {
        oxshmem::get(oxshmem::thread, back + half, inbox + half, bytes - half, pe);
    }
    oxshmem::quiet(oxshmem::block);
}
