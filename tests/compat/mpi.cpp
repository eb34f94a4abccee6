// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// A job that is joined through an MPI communicator, in which the processes stand in another order
// than in MPI_COMM_WORLD, or, if NVSHMEM_BOOTSTRAP is MPI, without one. MPI works before, between
// and after.
#include <mpi.h>

#include <cstdlib>
#include <cstring>

#include "check.h"

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank = 0, size = 0, sum = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm reversed;
    MPI_Comm_split(MPI_COMM_WORLD, 0, size - rank, &reversed);

    const char *bootstrap = std::getenv("NVSHMEM_BOOTSTRAP");
    const bool by_variable = bootstrap != nullptr && std::strcmp(bootstrap, "MPI") == 0;
    nvshmemx_init_attr_t attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
    attributes.mpi_comm = &reversed;
    if (by_variable) {
        nvshmem_init();
    } else {
        CHECK(nvshmemx_init_attr(NVSHMEMX_INIT_WITH_MPI_COMM, &attributes) == NVSHMEMX_SUCCESS);
    }
    const int me = nvshmem_my_pe(), n = nvshmem_n_pes();
    CHECK(n == size && me == (by_variable ? rank : size - 1 - rank));
#ifdef __CUDACC__
    int gpus = 0;
    CHECK(cudaGetDeviceCount(&gpus) == cudaSuccess && gpus > 0);
    CHECK(cudaSetDevice(nvshmem_team_my_pe(NVSHMEMX_TEAM_NODE) % gpus) == cudaSuccess);
#endif
    auto *cell = static_cast<int *>(nvshmem_malloc(sizeof(int)));
    CHECK(cell != nullptr);
    nvshmem_int_p(cell, 300 + me, (me + 1) % n);
    nvshmem_barrier_all();
    CHECK(nvshmem_int_g(cell, me) == 300 + (me + n - 1) % n);
    MPI_Allreduce(&me, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    CHECK(sum == n * (n - 1) / 2);
    std::printf("PE %d of %d has joined through MPI\n", me, n);
    nvshmem_free(cell);
    nvshmem_finalize();
    MPI_Comm_free(&reversed);
    MPI_Finalize();
}
