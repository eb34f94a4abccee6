/* A PE that joins through MPI, twice; MPI works before, between and after. C and C++. */

#include <stdio.h>
#include <stdlib.h>

#include "oxshmem_mpi.h"

static void check(int ok, const char *what) {
    if (!ok) {
        fprintf(stderr, "%s: %s\n", what, oxshmem_error());
        exit(1);
    }
}

int main(int argc, char **argv) {
    int rank, size, round, sum = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (round = 0; round < 2; round++) {
        check(oxshmem_init_mpi(MPI_COMM_WORLD) == OXSHMEM_SUCCESS, "oxshmem_init_mpi");
        check(oxshmem_host_my_pe() == rank && oxshmem_host_n_pes() == size, "the PE's place");
        check(oxshmem_finalize() == OXSHMEM_SUCCESS, "oxshmem_finalize");
        MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        check(sum == size * (size - 1) / 2, "MPI_Allreduce");
    }
    printf("PE %d of %d has joined\n", rank, size);
    MPI_Finalize();
    return 0;
}
