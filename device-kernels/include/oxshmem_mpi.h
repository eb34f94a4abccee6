/* Joining a job through MPI: for programs that have called MPI_Init.
 *
 * This function is compiled into the program with the program's own mpi.h, so liboxshmem needs no MPI, and any MPI will do. C
 * and C++. */

#ifndef OXSHMEM_MPI_H
#define OXSHMEM_MPI_H

#include <mpi.h>
#include <string.h>

#include "oxshmem/host.h"

/* Joins the job of the processes of `comm`: each is the PE of its rank there, and the process of rank 0 must outlive the job.
 * Collective in `comm`. Returns an oxshmem_status: if rank 0 cannot make an id, all other processes get
 * OXSHMEM_ERROR_INVALID, and none joins. An error of MPI is handled as the communicator's error handler says; if it returns,
 * it is OXSHMEM_ERROR_JOB_FAILED here, and oxshmem_error() says nothing of it. */
static inline int oxshmem_init_mpi(MPI_Comm comm) {
    oxshmem_uniqueid id;
    int rank = 0;
    int size = 0;
    int status = OXSHMEM_SUCCESS;
    memset(&id, 0, sizeof id);
    if (MPI_Comm_rank(comm, &rank) != MPI_SUCCESS || MPI_Comm_size(comm, &size) != MPI_SUCCESS) {
        return OXSHMEM_ERROR_JOB_FAILED;
    }
    if (rank == 0) {
        status = oxshmem_get_uniqueid(&id);
    }
    /* Without an id its text is empty, which the library refuses at the other processes. */
    if (MPI_Bcast(id.text, (int)sizeof id.text, MPI_CHAR, 0, comm) != MPI_SUCCESS) {
        return OXSHMEM_ERROR_JOB_FAILED;
    }
    return status != OXSHMEM_SUCCESS ? status : oxshmem_init_with_uniqueid(&id, rank, size);
}

#endif
