// SPDX-License-Identifier: Apache-2.0
// One rank calls MPI_Abort while the others wait for it, in MPI_COMM_WORLD or a communicator of all (1) or of this
// rank (2).   abort [RANK=0] [CODE=42] [0]
#include "check.h"

int main(int argc, char **argv)
{
    int rank, nothing;
    MPI_Comm comms[] = {MPI_COMM_WORLD, MPI_COMM_WORLD, MPI_COMM_SELF};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    long who = argument(argc, argv, 1, 0), code = argument(argc, argv, 2, 42);
    MPI_Comm_dup(MPI_COMM_WORLD, &comms[1]);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == who) {
        MPI_Abort(comms[argument(argc, argv, 3, 0)], (int)code);
        fprintf(stderr, "gone on\n");
    }
    MPI_Recv(&nothing, 1, MPI_INT, MPI_ANY_SOURCE, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    printf("not reached\n");
    MPI_Finalize();
    return 0;
}
