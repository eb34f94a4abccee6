// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// A ring of the host alone.
#include <cstdio>
#include <nvshmem.h>
#include <nvshmemx.h>

int main() {
    nvshmem_init();
    const int me = nvshmem_my_pe(), n = nvshmem_n_pes();
    auto *inbox = static_cast<int *>(nvshmem_malloc(sizeof(int)));
    nvshmem_int_p(inbox, me, (me + 1) % n);
    nvshmem_barrier_all();
    const int got = nvshmem_int_g(inbox, me);
    std::printf("PE %d got %d\n", me, got);
    nvshmem_free(inbox);
    nvshmem_finalize();
    return got == (me + n - 1) % n ? 0 : 1;
}
