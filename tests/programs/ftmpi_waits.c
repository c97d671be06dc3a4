/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rank 4 dies, and rank 0 rebuilds MPI_COMM_WORLD as soon as it knows. The others wait for rank 0, which lives: in
 * messages, in a collective call, in MPI_COMM_WORLD and in communicators that rank 4 is not in. Five ranks.
 */
#include "ftmpi.h"
#include <unistd.h>

static int rank;

static int ends(void)
{
    int sum = -1, is_filled = attribute(MPI_COMM_WORLD, FTMPI_COMM_MODE, 0) == FTMPI_COMM_MODE_REBUILD;
    CHECK(!MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD) && sum == (is_filled ? 10 : 6));
    printf("right %d\n", rank);
    MPI_Finalize();
    return 0;
}

int main(int count, char **words)
{
    MPI_Comm few, pair, new;
    int value = -1, is_new = MPI_Init(&count, &words) == MPI_INIT_RESTARTED_NODE;
    static int much[1 << 20];
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (is_new)
        return ends();
    MPI_Comm_split(MPI_COMM_WORLD, rank == 4, rank, &few);
    MPI_Comm_split(MPI_COMM_WORLD, rank % 3 == 0, rank, &pair); /* of ranks 0 and 3, and of the others */
    MPI_Barrier(MPI_COMM_WORLD);
    switch (rank) {
    case 0:
        CHECK(MPI_Recv(&value, 1, MPI_INT, 4, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE) == MPI_ERR_OTHER);
        break;
    case 1:
        CHECK(MPI_Recv(&value, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE) == MPI_ERR_OTHER);
        break;
    case 2:
        CHECK(MPI_Ssend(much, 1 << 20, MPI_INT, 0, 0, few) == MPI_ERR_OTHER);
        break;
    case 3:
        CHECK(MPI_Allreduce(&rank, &value, 1, MPI_INT, MPI_SUM, pair) == MPI_ERR_OTHER);
        break;
    default:
        kill(getpid(), SIGKILL);
    }
    CHECK(!MPI_Comm_dup(MPI_COMM_WORLD, &new));
    return ends();
}
