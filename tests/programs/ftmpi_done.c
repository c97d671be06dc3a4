/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rank 2 finishes at once, then rank 1 dies; the others rebuild, in the mode BLANK. Both have left a gap, for different
 * reasons. Four ranks or more.
 */
#include "ftmpi.h"
#include <unistd.h>

int main(int count, char **words)
{
    int rank, value = 7, sum = -1, size;
    MPI_Comm new;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 1)
        kill(getpid(), SIGKILL);
    if (rank != 2) {
        CHECK(MPI_Recv(&value, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE) == MPI_ERR_OTHER);
        CHECK(!MPI_Comm_dup(MPI_COMM_WORLD, &new)); /* after the end of rank 2: all that live take part */
        CHECK(attribute(MPI_COMM_WORLD, FTMPI_PROC_STATES, 0) == FT_PROC_OK);
        CHECK(attribute(MPI_COMM_WORLD, FTMPI_PROC_STATES, 1) == FT_PROC_FAILED);
        CHECK(attribute(MPI_COMM_WORLD, FTMPI_PROC_STATES, 2) == FT_PROC_UNAVAILABLE);
        CHECK(MPI_Send(&value, 1, MPI_INT, 2, 0, MPI_COMM_WORLD) == MPI_ERR_RANK);
        CHECK(!MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD) && sum == size * (size - 1) / 2 - 3);
    }
    printf("right %d\n", rank);
    MPI_Finalize();
    return 0;
}
