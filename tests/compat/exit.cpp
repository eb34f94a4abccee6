// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// PE 1 ends the job with the status that is the first argument; the others learn it from a call
// without a status, or, if the second argument says so, from one that has a status.
#include "check.h"

#include <cstdlib>
#include <cstring>

int main(int, char **arguments) {
    nvshmem_init();
    auto *cell = static_cast<int *>(nvshmem_malloc(sizeof(int)));
    nvshmem_barrier_all();
    if (nvshmem_my_pe() == 1) {
        nvshmem_global_exit(std::atoi(arguments[1]));
    } else if (std::strcmp(arguments[2], "status") == 0) {
        nvshmem_barrier(NVSHMEM_TEAM_WORLD);
    } else {
        nvshmem_free(cell);
    }
    return 99;
}
