// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// What the parts of libnvshmem_host share.
#pragma once

#define OXSHMEM_NV_LIBRARY 1

#include <oxshmem/host.h>
#include <oxshmem_nvshmem/abi.h>

namespace oxshmem_nv {

// Reports a failure of a call that has no status: to the program's handler, or on stderr, which
// ends the job.
void fail(const char *call, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Prints a failure of a call that returns a status.
void print(const char *call, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Whether the PE has a device, which it gets now if it has none yet. The first call that needs one
// binds it to the GPU that is current. If not, the failure has been printed or reported.
bool bound(const char *call, bool has_status);

// bound with a status, and whether the PE's GPU is the one that is current in the calling thread.
bool on_own_gpu(const char *call);

// Reports the last failure of liboxshmem, if `status` is one.
void check(const char *call, int status);

// Returns the status of NVSHMEM's interface for one of liboxshmem, and prints why if it is a
// failure.
int translate(const char *call, int status);

// Gives liboxshmem what variables of NVSHMEM's interface say, and names those that mean nothing
// here in one warning.
void read_environment();

// Returns whether init without flags joins by the program's MPI (NVSHMEM_BOOTSTRAP).
bool wants_mpi();

// Returns the address of the handle of MPI_COMM_WORLD, null if the program has not called MPI_Init.
const void *world_of_mpi();

// Asks the program's MPI for this process's rank in a communicator, and for its size. Null, or why
// it could not; then both are as they were.
const char *place_by_mpi(const void *communicator, int *rank, int *size);

// Joins by a broadcast of the program's MPI: writes the id that PE 0 made to `id`, and this
// process's rank. Null, or why it could not.
const char *broadcast_by_mpi(const void *communicator, char *id, size_t bytes, int *rank, int *size);

} // namespace oxshmem_nv
