// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// A job that the program sets up: a process makes an id, its children join with it.
#include "check.h"

#include <cstdlib>
#include <sys/wait.h>
#include <unistd.h>

int main() {
    constexpr int kPes = 3;
    nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
    if (nvshmemx_get_uniqueid(&id) != NVSHMEMX_SUCCESS) {
        return 1;
    }
    pid_t children[kPes];
    for (int pe = 0; pe < kPes; ++pe) {
        children[pe] = fork();
        if (children[pe] == 0) {
            nvshmemx_init_attr_t attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
            nvshmemx_set_attr_uniqueid_args(pe, kPes, &id, &attributes);
            CHECK(nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attributes) == NVSHMEMX_SUCCESS);
            CHECK(nvshmem_my_pe() == pe && nvshmem_n_pes() == kPes);
            auto *cell = static_cast<int *>(nvshmem_malloc(sizeof(int)));
            nvshmem_int_p(cell, 100 + pe, (pe + 1) % kPes);
            nvshmem_barrier_all();
            CHECK(nvshmem_int_g(cell, pe) == 100 + (pe + kPes - 1) % kPes);
            nvshmem_finalize();
            std::exit(0);
        }
    }
    int failed = 0;
    for (const pid_t child : children) {
        int status = 0;
        failed += waitpid(child, &status, 0) != child || status != 0;
    }
    return failed;
}
