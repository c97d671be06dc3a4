/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What survivors and a new rank see with FT-MPI's mode REBUILD. Rank 1 dies, once. Four ranks or more.
 *
 *   ftmpi_rebuilt [refused|WORDS...]
 *
 * refused: nothing can be started in its place, and the survivors go on without it. WORDS: the new rank has the same.
 */
#include "ftmpi.h"
#include <unistd.h>

/* This program is not linked with the library: it is there all the same. */
#pragma weak resurgo_ft_is_restarted

static int rank, size;

static int all_of(MPI_Comm comm)
{
    int sum = -1, code = MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, comm);
    return code ? -code : sum;
}

/* What all ranks see afterwards, the new one as well. */
static void is_whole(MPI_Comm comm)
{
    MPI_Comm made;
    int of, got = -1, next = (rank + 1) % size, last = (rank + size - 1) % size, is_new, *number, is_there;
    double *when;
    CHECK(!MPI_Comm_size(comm, &of) && of == size);
    CHECK(attribute(comm, FTMPI_COMM_MODE, 0) == FTMPI_COMM_MODE_REBUILD);
    CHECK(attribute(comm, FTMPI_COMM_STATE, 0) == FT_RECOVERED);
    CHECK(attribute(comm, FTMPI_NUM_FAILED_PROCS, 0) == 1 && attribute(comm, FTMPI_FAILED_PROCS, 0) == 1);
    CHECK(attribute(comm, FTMPI_FAILED_CODES, 0) == 7);
    MPI_Comm_get_attr(comm, FTMPI_FAILED_AT, &when, &is_there);
    CHECK(is_there && *when > time(NULL) - 60 && *when < time(NULL) + 2);
    for (int at = 0; at < size; at++)
        CHECK(attribute(comm, FTMPI_PROC_STATES, at) == FT_PROC_OK);
    CHECK(all_of(comm) == size * (size - 1) / 2);
    CHECK(!MPI_Sendrecv(&rank, 1, MPI_INT, next, 1, &got, 1, MPI_INT, last, 1, comm, MPI_STATUS_IGNORE) && got == last);
    CHECK(!MPI_Comm_split(comm, rank % 2, -rank, &made));
    CHECK(!MPI_Comm_rank(made, &is_new) && !MPI_Comm_size(made, &of) && is_new == of - 1 - rank / 2);
    CHECK(all_of(made) >= 0);
    MPI_Comm_free(&made);
    CHECK(!MPI_Comm_dup(comm, &made) && made != comm);
    CHECK(all_of(made) == size * (size - 1) / 2);
    MPI_Comm_free(&made);
    MPI_Comm_get_attr(comm, MPI_APPNUM, &number, &is_there);
    CHECK(is_there && *number == (getenv("OF") != NULL));
}

static void survivors(int cont, int is_refused, MPI_Comm odd)
{
    MPI_Comm new;
    int value, of;
    CHECK(MPI_Recv(&value, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE) == MPI_ERR_OTHER);
    CHECK(attribute(MPI_COMM_WORLD, FTMPI_PROC_STATES, 1) == FT_PROC_FAILED);
    if (!is_refused) {
        /* A new rank knows MPI_COMM_WORLD only. */
        if (rank % 2)
            CHECK(MPI_Comm_dup(odd, &new) == MPI_ERR_COMM);
        else if (!cont)
            CHECK(!MPI_Comm_dup(odd, &new) && all_of(new) >= 0 && !MPI_Comm_free(&new));
        CHECK(!MPI_Comm_dup(MPI_COMM_WORLD, &new) && new == MPI_COMM_WORLD);
        MPI_Comm_free(&odd);
        return;
    }
    CHECK(MPI_Comm_dup(MPI_COMM_WORLD, &new) == MPI_ERR_SPAWN);
    CHECK(attribute(MPI_COMM_WORLD, FTMPI_COMM_STATE, 0) == FT_FAILED);
    CHECK(attribute(MPI_COMM_WORLD, FTMPI_PROC_STATES, 1) == FT_PROC_UNAVAILABLE);
    CHECK(!MPI_Comm_set_attr(MPI_COMM_WORLD, FTMPI_COMM_MODE, (void *)FTMPI_COMM_MODE_SHRINK));
    CHECK(!MPI_Comm_dup(MPI_COMM_WORLD, &new) && !MPI_Comm_size(new, &of) && of == size - 1);
    CHECK(all_of(new) == size * (size - 1) / 2 - 1);
    printf("refused %d\n", rank);
    MPI_Finalize();
    exit(0);
}

int main(int count, char **words)
{
    MPI_Comm odd, parent;
    MPI_Errhandler handler;
    int code = MPI_Init(&count, &words), is_new = code == MPI_INIT_RESTARTED_NODE;
    CHECK(resurgo_ft_is_restarted() == is_new);
    int is_refused = count > 1 && !strcmp(words[1], "refused");
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_get_parent(&parent);
    CHECK(parent == MPI_COMM_NULL && (is_new || !code) && (rank == 1 || !is_new));
    MPI_Comm_get_errhandler(MPI_COMM_WORLD, &handler);
    CHECK(handler == MPI_ERRORS_ARE_FATAL);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    int cont = attribute(MPI_COMM_WORLD, FTMPI_MSG_MODE, 0) == 1;
    if (!is_new) {
        MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &odd);
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 1)
            exit(7);
        survivors(cont, is_refused, odd);
    } else {
        CHECK(count > 1);
        printf("new %d\n", rank);
    }
    is_whole(MPI_COMM_WORLD);
    printf("right %d\n", rank);
    MPI_Finalize();
    return 0;
}
