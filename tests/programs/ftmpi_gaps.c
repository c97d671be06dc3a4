/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A communicator with a gap: rank 1 of 4 or more dies, and the mode is BLANK. Each rank keeps its number.
 *
 *   ftmpi_gaps
 */
#include "ftmpi.h"
#include <unistd.h>

static int rank, size;

/* The same checks hold in MPI_COMM_WORLD and in its duplicate. */
static void check(MPI_Comm comm)
{
    int value = 7, place, of, counts[64], table[64], twice = -1, others = 0, next = (rank + 1) % size;
    MPI_Group group;
    MPI_Status statuses[64];
    MPI_Request requests[64];
    MPI_Comm_rank(comm, &place);
    MPI_Comm_size(comm, &of);
    CHECK(place == rank && of == size);
    CHECK(attribute(comm, FTMPI_PROC_STATES, 1) == FT_PROC_FAILED && attribute(comm, FTMPI_PROC_STATES, 3) == FT_PROC_OK);
    MPI_Comm_group(comm, &group);
    MPI_Group_size(group, &of);
    MPI_Group_rank(group, &place);
    CHECK(place == rank && of == size);
    /* A gap is no rank. */
    CHECK(MPI_Send(&value, 1, MPI_INT, 1, 0, comm) == MPI_ERR_RANK);
    CHECK(MPI_Recv(&value, 1, MPI_INT, 1, 0, comm, MPI_STATUS_IGNORE) == MPI_ERR_RANK);
    CHECK(MPI_Irecv(&value, 1, MPI_INT, 1, 0, comm, requests) == MPI_ERR_RANK);
    CHECK(MPI_Bcast(&value, 1, MPI_INT, 1, comm) == MPI_ERR_RANK);
    CHECK(MPI_Ireduce_scatter(table, &value, counts, MPI_INT, MPI_SUM, comm, requests) == MPI_ERR_UNSUPPORTED_OPERATION);
    CHECK(!MPI_Send(&value, 1, MPI_INT, MPI_PROC_NULL, 0, comm));
    /* Statuses have the program's numbers. */
    for (int other = 0; other < size; other++) {
        int from = other % 2 ? other : MPI_ANY_SOURCE;
        if (other != 1)
            MPI_Irecv(&table[others], 1, MPI_INT, from, other, comm, &requests[others]);
        others += other != 1;
    }
    for (int other = 0; other < size; other++)
        if (other != 1)
            CHECK(!MPI_Send(&rank, 1, MPI_INT, other, rank, comm));
    CHECK(!MPI_Waitall(others, requests, statuses));
    for (int at = 0; at < others; at++)
        CHECK(table[at] == at + (at > 0) && statuses[at].MPI_SOURCE == table[at] && statuses[at].MPI_TAG == table[at]);
    /* Blocks of a gap are not sent, and not written. */
    for (int at = 0; at < size; at++) {
        counts[at] = at % 3;
        table[at] = -5;
    }
    CHECK(!MPI_Allgather(&rank, 1, MPI_INT, table, 1, MPI_INT, comm));
    for (int at = 0; at < size; at++)
        CHECK(table[at] == (at == 1 ? -5 : at));
    int all[128] = {0}, got[2] = {-1, -1}, sum = size * (size - 1) / 2 - 1;
    for (int at = 0, start = 0; at < size; start += counts[at++])
        for (int of_it = 0; of_it < counts[at]; of_it++)
            all[start + of_it] = 10 * at + rank;
    CHECK(!MPI_Reduce_scatter(all, got, counts, MPI_INT, MPI_SUM, comm));
    for (int at = 0; at < 2; at++)
        CHECK(got[at] == (at < counts[rank] ? 10 * rank * (size - 1) + sum : -1));
    CHECK(!MPI_Scan(&rank, &twice, 1, MPI_INT, MPI_SUM, comm));
    CHECK(twice == rank * (rank + 1) / 2 - (rank > 1));
    next += next == 1;
    CHECK(!MPI_Sendrecv_replace(&value, 1, MPI_INT, next, 3, MPI_ANY_SOURCE, 3, comm, statuses));
    CHECK(statuses->MPI_SOURCE == (rank == 2 ? 0 : (rank + size - 1) % size));
}

int main(int count, char **words)
{
    int value;
    MPI_Comm new;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 1)
        exit(7);
    CHECK(MPI_Recv(&value, 1, MPI_INT, rank ? 0 : 2, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE) == MPI_ERR_OTHER);
    CHECK(!MPI_Comm_dup(MPI_COMM_WORLD, &new) && new == MPI_COMM_WORLD);
    check(MPI_COMM_WORLD);
    CHECK(!MPI_Comm_dup(MPI_COMM_WORLD, &new) && new != MPI_COMM_WORLD);
    check(new);
    MPI_Comm_free(&new);
    printf("right %d\n", rank);
    MPI_Finalize();
    return 0;
}
