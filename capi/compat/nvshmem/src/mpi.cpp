// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Joining by the communicator of a program's MPI, whichever it is. Its functions are looked up in
// the process, so this library is built without one. Two binary interfaces are known: Open MPI's,
// where a communicator is a pointer and MPI_BYTE the address of an object, and MPICH's (also Intel
// MPI, MVAPICH and Cray MPICH), where both are integers.

#include "internal.h"

#include <cstdint>
#include <cstring>
#include <dlfcn.h>

namespace {

// MPI_BYTE in the common interface of MPICH and its derivatives.
constexpr uint64_t kMpichByte = 0x4c00010d;

void *find(const char *name) {
    if (void *found = dlsym(RTLD_DEFAULT, name)) {
        return found;
    }
    // A program may have opened its MPI without making the names known.
    const char *const libraries[] = {"libmpi.so.40", "libmpi.so.12", "libmpich.so.12", "libmpi.so"};
    for (const char *library : libraries) {
        if (void *opened = dlopen(library, RTLD_LAZY | RTLD_NOLOAD)) {
            void *found = dlsym(opened, name);
            dlclose(opened);
            if (found != nullptr) {
                return found;
            }
        }
    }
    return nullptr;
}

} // namespace

namespace oxshmem_nv {

const char *broadcast_by_mpi(const void *communicator, char *id, size_t bytes, int *rank, int *size) {
    // Both kinds of handle are passed in the same registers, an integer in the low half.
    using Initialized = int (*)(int *);
    using Number = int (*)(uint64_t communicator, int *number);
    using Broadcast = int (*)(void *buffer, int count, uint64_t type, int root, uint64_t communicator);
    const auto initialized = reinterpret_cast<Initialized>(find("MPI_Initialized"));
    const auto comm_rank = reinterpret_cast<Number>(find("MPI_Comm_rank"));
    const auto comm_size = reinterpret_cast<Number>(find("MPI_Comm_size"));
    const auto broadcast = reinterpret_cast<Broadcast>(find("MPI_Bcast"));
    if (communicator == nullptr) {
        return "attr.mpi_comm is null; it is the address of an MPI_Comm";
    }
    if (initialized == nullptr || comm_rank == nullptr || comm_size == nullptr || broadcast == nullptr) {
        return "no MPI library is in this process; link the program with one, or join by NVSHMEMX_INIT_WITH_UNIQUEID (8)";
    }
    int ready = 0;
    if (initialized(&ready) != 0 || ready == 0) {
        return "MPI is not initialised; call MPI_Init first";
    }
    uint64_t handle = 0, byte = 0;
    if (const void *open_mpi_byte = find("ompi_mpi_byte")) {
        std::memcpy(&handle, communicator, sizeof(void *));
        byte = reinterpret_cast<uint64_t>(open_mpi_byte);
    } else {
        std::memcpy(&handle, communicator, sizeof(int));
        byte = kMpichByte;
    }
    if (comm_rank(handle, rank) != 0 || comm_size(handle, size) != 0) {
        return "MPI_Comm_rank or MPI_Comm_size refuses attr.mpi_comm; it is the address of an MPI_Comm";
    }
    std::memset(id, 0, bytes);
    const bool created = *rank != 0 || oxshmem_get_short_uniqueid(id, bytes) == OXSHMEM_SUCCESS;
    if (!created) {
        // The others learn of it by an empty text.
        std::memset(id, 0, bytes);
    }
    if (broadcast(id, static_cast<int>(bytes), byte, 0, handle) != 0) {
        return "MPI_Bcast failed on attr.mpi_comm";
    }
    if (!created) {
        return oxshmem_error();
    }
    return id[0] == '\0' ? "PE 0 could not create a job; see its message" : nullptr;
}

} // namespace oxshmem_nv
