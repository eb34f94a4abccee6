// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Programs that go wrong, or that are told something by variables; the test reads what they print.
// The argument says which.
#include "check.h"

#include <cstring>
#include <unistd.h>

int main(int, char **arguments) {
    const char *how = arguments[1];
    if (std::strcmp(how, "finalize") == 0) {
        nvshmem_finalize();
    } else if (std::strcmp(how, "before-init") == 0) {
        nvshmem_barrier_all();
    } else if (std::strcmp(how, "interface") == 0) {
        oxshmem_nv_init("nvshmem_init", OXSHMEM_NV_ABI + 1, 0, nullptr);
    } else if (std::strcmp(how, "archive") == 0) {
        // What libnvshmem_device of another version calls.
        return oxshmem_nv_bind("nvshmemx_collective_launch", OXSHMEM_NV_ABI + 1) == -2 ? 1 : 0;
    } else if (std::strcmp(how, "no-id") == 0) {
        nvshmemx_init_attr_t attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
        nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attributes);
    } else if (std::strcmp(how, "mpi") == 0) {
        int communicator = 0;
        nvshmemx_init_attr_t attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
        attributes.mpi_comm = &communicator;
        nvshmemx_init_attr(NVSHMEMX_INIT_WITH_MPI_COMM, &attributes);
    } else {
        nvshmem_init();
        auto *cell = static_cast<int *>(nvshmem_malloc(sizeof(int)));
        if (std::strcmp(how, "environment") == 0) {
            for (char **entry = environ; *entry != nullptr; ++entry) {
                if (std::strncmp(*entry, "OXSHMEM_", 8) == 0) {
                    std::printf("%s\n", *entry);
                }
            }
        } else if (std::strcmp(how, "other-pe") == 0) {
            // A part of the program that takes the job to be another one. The first part goes on.
            nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
            nvshmemx_init_attr_t attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
            nvshmemx_set_attr_uniqueid_args(3, 8, &id, &attributes);
            CHECK(nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attributes) == NVSHMEMX_SUCCESS);
            CHECK(nvshmem_my_pe() == 0 && nvshmem_n_pes() == 1);
            return 1;
        } else if (std::strcmp(how, "one-finalize-too-many") == 0) {
            nvshmem_init();
            nvshmem_finalize();
            nvshmem_free(cell);
            nvshmem_finalize();
            nvshmem_finalize();
        } else if (std::strcmp(how, "freed") == 0) {
            nvshmem_free(cell);
            nvshmem_int_p(cell, 1, 0);
        } else if (std::strcmp(how, "after-finalize") == 0) {
            nvshmem_finalize();
            nvshmem_int_p(cell, 1, 0);
        } else if (std::strcmp(how, "buffer") == 0) {
            static char buffer[8];
            nvshmemx_buffer_register(buffer, sizeof(buffer));
            return nvshmemx_buffer_unregister(buffer + 1);
        } else if (std::strcmp(how, "heap-buffer") == 0) {
            return nvshmemx_buffer_register(cell, sizeof(*cell));
        }
    }
    return 0;
}
