// SPDX-License-Identifier: Apache-2.0
// Rank 0 sends a message to each other rank which nobody receives: MPI_Finalize says so with an error, which the program
// ignores.
//   unmatched [CODE=0] [MARKER]
//     CODE    with which all ranks exit
//     MARKER  the last rank dies before MPI_Finalize in the life that makes this file
#include "check.h"
#include <signal.h>

int main(int argc, char **argv)
{
    int rank, size, left = 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    for (int other = 1; rank == 0 && other < size; other++)
        MPI_Send(&left, 1, MPI_INT, other, 5, MPI_COMM_WORLD);
    if (rank > 0) // it is there, and stays
        MPI_Probe(0, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Barrier(MPI_COMM_WORLD);
    if (argc > 2 && rank == size - 1 && is_first(argv[2]))
        kill(getpid(), SIGKILL);
    int result = MPI_Finalize();
    printf("rank %d: MPI_Finalize %s\n", rank, result == MPI_SUCCESS ? "succeeded" : "failed");
    return (int)argument(argc, argv, 1, 0);
}
