/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One collective call, in which the test kills a rank at a message of its choice. Each other rank says what it got: a
 * hash of the result, or the class of the error.
 *
 *   ulfm_matrix CALL ROOT COUNT
 *
 * CALL is a name in lower case, as alltoallw; ialltoallw is the nonblocking call, which ends in MPI_Wait.
 */
#include "ulfm.h"
#include <stdint.h>
#include <unistd.h>

enum { MOST = 64 };

static int rank, size, root, count, is_now, block; /* a block has room for all that one rank sends to another */
static double *in, *out;
static MPI_Request request;
static int parts[MOST], starts_at[MOST];                /* of calls with a count for each rank */
static int sent[MOST], received[MOST], offsets[MOST];   /* of alltoallv and alltoallw */
static MPI_Datatype types_sent[MOST], types_received[MOST];

static int ended(int code)
{
    return code ? code : MPI_Wait(&request, MPI_STATUS_IGNORE);
}

#define CALL(now, later, ...)                                                                                          \
    return is_now ? MPI_##now(__VA_ARGS__, MPI_COMM_WORLD) : ended(MPI_##later(__VA_ARGS__, MPI_COMM_WORLD, &request))

/* What rank `from` sends to rank `to`: to some nothing. */
static int part(int from, int to)
{
    int more = (from + 2 * to) % 3;
    return more == 2 ? 0 : count + more;
}

static void prepare(void)
{
    MPI_Datatype pair;
    MPI_Type_contiguous(2, MPI_DOUBLE, &pair);
    MPI_Type_commit(&pair);
    block = 2 * (count + 2);
    in = calloc((size_t)(block * size), sizeof *in);
    out = malloc(sizeof *out * (size_t)(block * size));
    for (int at = 0; at < block * size; at++)
        out[at] = 1.0 / (1 + rank * 7919 + at);
    for (int other = 0; other < size; other++) {
        parts[other] = part(other, 0);
        starts_at[other] = other * block;
        sent[other] = part(rank, other);
        received[other] = part(other, rank);
        offsets[other] = other * block * (int)sizeof(double);
        types_sent[other] = types_received[other] = (rank + other) % 2 ? pair : MPI_DOUBLE;
    }
}

/* With the same count for all. The numbers of the result at this rank go to *results. */
static int run(const char *call, int *results)
{
    int mine = rank == root;
    *results = count;
    if (is(call, "barrier")) {
        *results = 0;
        return is_now ? MPI_Barrier(MPI_COMM_WORLD) : ended(MPI_Ibarrier(MPI_COMM_WORLD, &request));
    }
    if (is(call, "bcast")) {
        if (mine)
            memcpy(in, out, sizeof *in * (size_t)count);
        CALL(Bcast, Ibcast, in, count, MPI_DOUBLE, root);
    }
    if (is(call, "scatter"))
        CALL(Scatter, Iscatter, out, count, MPI_DOUBLE, in, count, MPI_DOUBLE, root);
    if (is(call, "allreduce"))
        CALL(Allreduce, Iallreduce, out, in, count, MPI_DOUBLE, MPI_SUM);
    if (is(call, "reduce_scatter_block"))
        CALL(Reduce_scatter_block, Ireduce_scatter_block, out, in, count, MPI_DOUBLE, MPI_SUM);
    if (is(call, "scan"))
        CALL(Scan, Iscan, out, in, count, MPI_DOUBLE, MPI_SUM);
    if (is(call, "exscan")) {
        *results *= rank > 0;
        CALL(Exscan, Iexscan, out, in, count, MPI_DOUBLE, MPI_SUM);
    }
    if (is(call, "reduce")) {
        *results *= mine;
        CALL(Reduce, Ireduce, out, in, count, MPI_DOUBLE, MPI_SUM, root);
    }
    *results *= size;
    if (is(call, "gather")) {
        *results *= mine;
        CALL(Gather, Igather, out, count, MPI_DOUBLE, in, count, MPI_DOUBLE, root);
    }
    if (is(call, "allgather"))
        CALL(Allgather, Iallgather, out, count, MPI_DOUBLE, in, count, MPI_DOUBLE);
    if (is(call, "alltoall"))
        CALL(Alltoall, Ialltoall, out, count, MPI_DOUBLE, in, count, MPI_DOUBLE);
    printf("WRONG: no such call\n");
    return MPI_ERR_OTHER;
}

/* With a count for each rank. What lies between the blocks of the result belongs to it: nothing may come there. */
static int run_with_counts(const char *call, int *results)
{
    *results = block * size;
    if (is(call, "reduce_scatter"))
        CALL(Reduce_scatter, Ireduce_scatter, out, in, parts, MPI_DOUBLE, MPI_SUM);
    if (is(call, "scatterv"))
        CALL(Scatterv, Iscatterv, out, parts, starts_at, MPI_DOUBLE, in, parts[rank], MPI_DOUBLE, root);
    if (is(call, "gatherv"))
        CALL(Gatherv, Igatherv, out, parts[rank], MPI_DOUBLE, in, parts, starts_at, MPI_DOUBLE, root);
    if (is(call, "allgatherv"))
        CALL(Allgatherv, Iallgatherv, out, parts[rank], MPI_DOUBLE, in, parts, starts_at, MPI_DOUBLE);
    if (is(call, "alltoallv"))
        CALL(Alltoallv, Ialltoallv, out, sent, starts_at, MPI_DOUBLE, in, received, starts_at, MPI_DOUBLE);
    if (is(call, "alltoallw"))
        CALL(Alltoallw, Ialltoallw, out, sent, offsets, types_sent, in, received, offsets, types_received);
    return run(call, results);
}

int main(int words_count, char **words)
{
    MPI_Init(&words_count, &words);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    root = atoi(words[2]), count = atoi(words[3]);
    is_now = *words[1] != 'i';
    prepare();
    int results, code = run_with_counts(words[1] + !is_now, &results);
    uint64_t hash = 14695981039346656037u;
    for (int at = 0; at < results; at++) {
        uint64_t bits;
        memcpy(&bits, in + at, sizeof bits);
        hash = (hash ^ bits) * 1099511628211u;
    }
    char line[80];
    int length = code ? snprintf(line, sizeof line, "rank %d: error %d\n", rank, code)
                      : snprintf(line, sizeof line, "rank %d: result %016lx\n", rank, (unsigned long)hash);
    if (write(1, line, (size_t)length) != length)
        return 1;
    int flag = 1;
    MPIX_Comm_agree(MPI_COMM_WORLD, &flag); /* none leaves while others are in the call */
    MPI_Finalize();
    return 0;
}
