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

// MPI_BYTE and MPI_COMM_WORLD in the common interface of MPICH and its derivatives.
constexpr uint64_t kMpichByte = 0x4c00010d;
constexpr int kMpichWorld = 0x44000000;

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

// Both kinds of handle are passed in the same registers, an integer in the low half.
using Initialized = int (*)(int *);
using Number = int (*)(uint64_t communicator, int *number);
using Broadcast = int (*)(void *buffer, int count, uint64_t type, int root, uint64_t communicator);

// The program's MPI, and a communicator of it.
struct Mpi {
    Number comm_rank = nullptr, comm_size = nullptr;
    Broadcast broadcast = nullptr;
    uint64_t byte = 0, communicator = 0;
};

// Returns whether MPI_Init has been called, as this function of MPI says.
bool is_ready(Initialized initialized) {
    int ready = 0;
    return initialized != nullptr && initialized(&ready) == 0 && ready != 0;
}

// Finds the program's MPI, and reads the handle at `communicator`. Null, or why it could not.
const char *find_mpi(const void *communicator, Mpi &mpi) {
    const auto initialized = reinterpret_cast<Initialized>(find("MPI_Initialized"));
    mpi.comm_rank = reinterpret_cast<Number>(find("MPI_Comm_rank"));
    mpi.comm_size = reinterpret_cast<Number>(find("MPI_Comm_size"));
    mpi.broadcast = reinterpret_cast<Broadcast>(find("MPI_Bcast"));
    if (communicator == nullptr) {
        return "attr.mpi_comm is null; it is the address of an MPI_Comm";
    }
    if (initialized == nullptr || mpi.comm_rank == nullptr || mpi.comm_size == nullptr || mpi.broadcast == nullptr) {
        return "no MPI library is in this process; link the program with one, or join by NVSHMEMX_INIT_WITH_UNIQUEID (8)";
    }
    if (!is_ready(initialized)) {
        return "MPI is not initialised; call MPI_Init first";
    }
    if (const void *open_mpi_byte = find("ompi_mpi_byte")) {
        std::memcpy(&mpi.communicator, communicator, sizeof(void *));
        mpi.byte = reinterpret_cast<uint64_t>(open_mpi_byte);
    } else {
        std::memcpy(&mpi.communicator, communicator, sizeof(int));
        mpi.byte = kMpichByte;
    }
    return nullptr;
}

// Asks for the rank and the size. Null, or why it could not.
const char *ask_place(const Mpi &mpi, int *rank, int *size) {
    int own = 0, all = 0;
    if (mpi.comm_rank(mpi.communicator, &own) != 0 || mpi.comm_size(mpi.communicator, &all) != 0) {
        return "MPI_Comm_rank or MPI_Comm_size refuses the communicator; attr.mpi_comm is the address of an MPI_Comm, and "
               "without "
               "attributes it is MPI_COMM_WORLD (NVSHMEM_BOOTSTRAP=MPI)";
    }
    *rank = own;
    *size = all;
    return nullptr;
}

} // namespace

namespace oxshmem_nv {

const void *world_of_mpi() {
    if (!is_ready(reinterpret_cast<Initialized>(find("MPI_Initialized")))) {
        return nullptr;
    }
    if (find("ompi_mpi_byte") == nullptr) {
        return &kMpichWorld;
    }
    static const void *const open_mpi_world = find("ompi_mpi_comm_world");
    return open_mpi_world == nullptr ? nullptr : &open_mpi_world;
}

const char *place_by_mpi(const void *communicator, int *rank, int *size) {
    Mpi mpi;
    const char *problem = find_mpi(communicator, mpi);
    return problem != nullptr ? problem : ask_place(mpi, rank, size);
}

const char *broadcast_by_mpi(const void *communicator, char *id, size_t bytes, int *rank, int *size) {
    Mpi mpi;
    const char *problem = find_mpi(communicator, mpi);
    if (problem == nullptr) {
        problem = ask_place(mpi, rank, size);
    }
    if (problem != nullptr) {
        return problem;
    }
    std::memset(id, 0, bytes);
    const bool created = *rank != 0 || oxshmem_get_short_uniqueid(id, bytes) == OXSHMEM_SUCCESS;
    if (!created) {
        // The others learn of it by an empty text.
        std::memset(id, 0, bytes);
    }
    if (mpi.broadcast(id, static_cast<int>(bytes), mpi.byte, 0, mpi.communicator) != 0) {
        return "MPI_Bcast failed on the communicator; join by the launcher (without NVSHMEM_BOOTSTRAP=MPI) or by a unique id";
    }
    if (!created) {
        return oxshmem_error();
    }
    return id[0] == '\0' ? "PE 0 could not create a job; see its message" : nullptr;
}

} // namespace oxshmem_nv
