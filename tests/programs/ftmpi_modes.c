/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What programs see of failures by FT-MPI's rules: attributes, states, both message modes, and every call that rebuilds.
 * Rank 1 dies. Four ranks or more.
 *
 *   ftmpi_modes nop|cont|abort
 *
 * abort: MPI_COMM_WORLD has that mode from the start, so nothing comes after the failure.
 */
#include "ftmpi.h"
#include <unistd.h>

static int rank, size;

static int all_of(MPI_Comm comm)
{
    int sum = -1, code = MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, comm);
    return code ? -code : sum;
}

/* The message mode decides what happens between the failure and rebuilding. */
static void before_rebuilding(int cont, MPI_Comm odd)
{
    int value = 5, got = 0, next = rank == size - 1 ? 0 : rank + 1 + !rank, last = rank ? rank - 1 - (rank == 2) : size - 1;
    MPI_Status status;
    CHECK(attribute(MPI_COMM_WORLD, FTMPI_COMM_STATE, 0) == FT_DETECTED);
    CHECK(attribute(MPI_COMM_WORLD, FTMPI_NUM_FAILED_PROCS, 0) == 1);
    CHECK(attribute(MPI_COMM_WORLD, FTMPI_FAILED_PROCS, 0) == 1);
    CHECK(attribute(MPI_COMM_WORLD, FTMPI_FAILED_CODES, 0) == 7);
    CHECK(attribute(MPI_COMM_WORLD, FTMPI_PROC_STATES, 1) == FT_PROC_FAILED);
    CHECK(attribute(MPI_COMM_WORLD, FTMPI_PROC_STATES, 2) == FT_PROC_OK);
    CHECK(MPI_Send(&value, 1, MPI_INT, 1, 0, MPI_COMM_WORLD) == MPI_ERR_OTHER);
    CHECK(all_of(MPI_COMM_WORLD) == -MPI_ERR_OTHER);
    if (!cont) {
        CHECK(MPI_Send(&value, 1, MPI_INT, next, 0, MPI_COMM_WORLD) == MPI_ERR_OTHER);
        CHECK(MPI_Recv(&got, 1, MPI_INT, last, 0, MPI_COMM_WORLD, &status) == MPI_ERR_OTHER);
        CHECK(all_of(odd) == -MPI_ERR_OTHER);
        return;
    }
    CHECK(MPI_Recv(&got, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, &status) == MPI_ERR_OTHER);
    CHECK(!MPI_Send(&rank, 1, MPI_INT, next, 0, MPI_COMM_WORLD));
    CHECK(!MPI_Recv(&got, 1, MPI_INT, rank % 2 ? last : MPI_ANY_SOURCE, 0, MPI_COMM_WORLD, &status));
    CHECK(got == last && status.MPI_SOURCE == last);
    if (rank % 2 == 0)
        CHECK(all_of(odd) >= 0);
    /* Nobody rebuilds before all have come here. Who does so ends what others still wait for in the second round. */
    for (int round = 0; round < 2; round++) {
        for (int to = 0; to < size; to++)
            CHECK(to == 1 || to == rank || !MPI_Send(&rank, 1, MPI_INT, to, 1, MPI_COMM_WORLD) || round);
        for (int from = 0; from < size; from++)
            CHECK(from == 1 || from == rank || !MPI_Recv(&got, 1, MPI_INT, from, 1, MPI_COMM_WORLD, &status) || round);
    }
}

static void after_rebuilding(int cont, MPI_Comm odd)
{
    MPI_Group group, most;
    MPI_Comm new, made;
    int first = 0, of, result;
    double *when;
    CHECK(!MPI_Comm_dup(MPI_COMM_WORLD, &new));
    CHECK(new == MPI_COMM_WORLD && attribute(new, FTMPI_COMM_STATE, 0) == FT_RECOVERED);
    CHECK(attribute(new, FTMPI_NUM_FAILED_PROCS, 0) == 1 && attribute(new, FTMPI_FAILED_PROCS, 0) == 1);
    MPI_Comm_get_attr(new, FTMPI_FAILED_AT, &when, &result);
    CHECK(result && *when > time(NULL) - 60 && *when < time(NULL) + 2);
    CHECK(!MPI_Comm_free(&new) && new == MPI_COMM_NULL);
    MPI_Comm_size(MPI_COMM_WORLD, &of);
    CHECK(of == size - 1 && attribute(MPI_COMM_WORLD, FTMPI_PROC_STATES, of - 1) == FT_PROC_OK);
    CHECK(all_of(MPI_COMM_WORLD) == size * (size - 1) / 2 - 1);
    /* Now it is a communicator like any other. */
    CHECK(!MPI_Comm_dup(MPI_COMM_WORLD, &new) && new != MPI_COMM_WORLD);
    MPI_Comm_compare(MPI_COMM_WORLD, new, &result);
    CHECK(result == MPI_CONGRUENT && attribute(new, FTMPI_MSG_MODE, 0) == cont);
    MPI_Comm_group(new, &group);
    MPI_Group_excl(group, 1, &first, &most);
    CHECK(!MPI_Comm_create(MPI_COMM_WORLD, most, &made));
    CHECK((made == MPI_COMM_NULL) == (rank == 0));
    if (made != MPI_COMM_NULL)
        CHECK(all_of(made) == size * (size - 1) / 2 - 1);
    /* One that was made before the failure is rebuilt by itself: as a new one. */
    if (rank % 2 == 0 && !cont) {
        CHECK(!MPI_Comm_dup(odd, &made) && made != odd);
        CHECK(all_of(made) >= 0 && attribute(odd, FTMPI_COMM_STATE, 0) == FT_FAILED);
    }
}

int main(int count, char **words)
{
    MPI_Comm odd;
    int cont, value;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    cont = !strcmp(words[1], "cont");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    CHECK(attribute(MPI_COMM_WORLD, FTMPI_COMM_MODE, 0) == FTMPI_COMM_MODE_SHRINK);
    CHECK(attribute(MPI_COMM_WORLD, FTMPI_COMM_STATE, 0) == FT_OK);
    CHECK(MPI_Comm_set_attr(MPI_COMM_WORLD, FTMPI_COMM_MODE, (void *)99L) == MPI_ERR_ARG);
    CHECK(!MPI_Comm_set_attr(MPI_COMM_WORLD, FTMPI_MSG_MODE, (void *)(long)cont));
    if (!strcmp(words[1], "abort"))
        CHECK(!MPI_Comm_set_attr(MPI_COMM_WORLD, FTMPI_COMM_MODE, (void *)FTMPI_COMM_MODE_ABORT));
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &odd);
    CHECK(attribute(odd, FTMPI_MSG_MODE, 0) == cont);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 1)
        exit(7);
    CHECK(MPI_Recv(&value, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE) == MPI_ERR_OTHER);
    before_rebuilding(cont, odd);
    after_rebuilding(cont, odd);
    printf("right %d\n", rank);
    MPI_Finalize();
    return 0;
}
