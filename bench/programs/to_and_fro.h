// SPDX-License-Identifier: Apache-2.0
// Rank 0 and rank 1 send the same messages to and fro.
#include <mpi.h>

static inline void to_and_fro(int rank, void *buffer, int count, MPI_Datatype type, long iterations)
{
    for (long i = 0; i < iterations; i++) {
        if (rank == 0)
            MPI_Send(buffer, count, type, 1, 0, MPI_COMM_WORLD);
        MPI_Recv(buffer, count, type, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (rank == 1)
            MPI_Send(buffer, count, type, 0, 0, MPI_COMM_WORLD);
    }
}
