/* SPDX-License-Identifier: Apache-2.0 */
/* The last rank sends to all, and dies. Nobody receives that, and MPI_Finalize is well all the same. */
#include "ulfm.h"

#define LONG 300000

int main(int count, char **words)
{
    static int out[LONG];
    int rank, size, code = MPI_SUCCESS;
    MPI_Comm fewer;
    MPI_Request request;
    MPI_Init(&count, &words);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rank == size - 1)
        for (int to = 0; to < rank; to++) {
            MPI_Send(out, 1, MPI_INT, to, 3, MPI_COMM_WORLD);
            MPI_Isend(out, LONG, MPI_INT, to, 4, MPI_COMM_WORLD, &request);
        }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == size - 1)
        raise(SIGKILL);
    while (code == MPI_SUCCESS)
        code = MPI_Barrier(MPI_COMM_WORLD);
    MPIX_Comm_revoke(MPI_COMM_WORLD);
    MPIX_Comm_shrink(MPI_COMM_WORLD, &fewer);
    MPI_Comm_free(&fewer);
    code = MPI_Finalize();
    printf("finalized %d\n", code);
    return code;
}
