// SPDX-License-Identifier: Apache-2.0
// Both headers in C++: rank 1 dies, the others rebuild and count each other.
#include <csignal>
#include <cstdio>
#include <mpi.h>
#include <mpi-ext.h>
#include <resurgo_ft.h>
#include <unistd.h>

int main(int count, char **words)
{
    int rank = 0, one = 1, sum = 0, is_revoked = 1;
    MPI_Comm made = MPI_COMM_NULL;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 1)
        kill(getpid(), SIGKILL);
    while (!MPI_Barrier(MPI_COMM_WORLD)) {
    }
    MPIX_Comm_is_revoked(MPI_COMM_WORLD, &is_revoked);
    MPIX_Comm_shrink(MPI_COMM_WORLD, &made);
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, made);
    int *state = nullptr, is_there = 0;
    MPI_Comm_get_attr(MPI_COMM_WORLD, FTMPI_COMM_STATE, &state, &is_there);
    std::printf("rank %d: %d left, %d %d\n", rank, sum, is_revoked, is_there);
    MPI_Finalize();
}
