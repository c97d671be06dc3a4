// SPDX-License-Identifier: Apache-2.0
// One rank calls MPI_Abort while the others wait for it.   abort [RANK=0] [CODE=42]
#include "check.h"

int main(int argc, char **argv)
{
    int rank, nothing;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    long who = argument(argc, argv, 1, 0), code = argument(argc, argv, 2, 42);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == who)
        MPI_Abort(MPI_COMM_WORLD, (int)code);
    MPI_Recv(&nothing, 1, MPI_INT, MPI_ANY_SOURCE, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    printf("not reached\n");
    MPI_Finalize();
    return 0;
}
