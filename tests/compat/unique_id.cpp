// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// A job that the program sets up: a process makes an id, its children join with it.
#include "check.h"

#include <cstdlib>
#include <cstring>
#include <sys/wait.h>
#include <unistd.h>

static_assert(NVSHMEM_INIT_ATTR_V1_IDENTIFIER == 65536 + 144 && NVSHMEM_INIT_ATTR_V2_IDENTIFIER == 131072 + 144,
              "programs compare versions with them");
static_assert(NVSHMEM_INIT_ARGS_V2_IDENTIFIER == 131072 + 128 && sizeof(nvshmemx_uniqueid_args_v1) == 24, "the same");
static_assert(NVSHMEM_TEAM_UNIQUID_INITIALIZER == UINT64_MAX, "no team");

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
            // Attributes of either version, and some that have a version and nothing else.
            nvshmemx_init_attr_v2 attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
            const nvshmemx_init_attr_v1 first = NVSHMEMX_INIT_ATTR_V1_INITIALIZER;
            if (pe == 1) {
                attributes = first;
            } else if (pe == 2) {
                std::memset(&attributes, 0, sizeof(attributes));
                nvshmemx_init_init_attr_ver_only(attributes);
                CHECK(attributes.version == first.version && attributes.args.uid_args.version == first.args.uid_args.version);
                CHECK(attributes.version == NVSHMEM_INIT_ATTR_V1_IDENTIFIER && attributes.args.uid_args.id == nullptr);
            }
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
