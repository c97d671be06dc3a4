/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One collective call, in which the test kills a rank at a message of its choice. Each other rank says what it got: a
 * hash of the result, or the class of the error.
 *
 *   ulfm_matrix CALL ROOT COUNT
 */
#include "ulfm.h"
#include <stdint.h>
#include <unistd.h>

static int rank, size, root, count;
static double *in, *out;

/* The numbers of the result at this rank go to *results. */
static int run(const char *call, int *results)
{
    int mine = rank == root;
    *results = count;
    if (is(call, "barrier"))
        return *results = 0, MPI_Barrier(MPI_COMM_WORLD);
    if (is(call, "bcast")) {
        if (mine)
            memcpy(in, out, sizeof *in * (size_t)count);
        return MPI_Bcast(in, count, MPI_DOUBLE, root, MPI_COMM_WORLD);
    }
    if (is(call, "scatter"))
        return MPI_Scatter(out, count, MPI_DOUBLE, in, count, MPI_DOUBLE, root, MPI_COMM_WORLD);
    if (is(call, "allreduce"))
        return MPI_Allreduce(out, in, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    if (is(call, "reduce_scatter"))
        return MPI_Reduce_scatter_block(out, in, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    if (is(call, "scan"))
        return MPI_Scan(out, in, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    if (is(call, "exscan"))
        return *results *= rank > 0, MPI_Exscan(out, in, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    if (is(call, "reduce"))
        return *results *= mine, MPI_Reduce(out, in, count, MPI_DOUBLE, MPI_SUM, root, MPI_COMM_WORLD);
    *results *= size;
    if (is(call, "gather"))
        return *results *= mine, MPI_Gather(out, count, MPI_DOUBLE, in, count, MPI_DOUBLE, root, MPI_COMM_WORLD);
    if (is(call, "allgather"))
        return MPI_Allgather(out, count, MPI_DOUBLE, in, count, MPI_DOUBLE, MPI_COMM_WORLD);
    if (is(call, "alltoall"))
        return MPI_Alltoall(out, count, MPI_DOUBLE, in, count, MPI_DOUBLE, MPI_COMM_WORLD);
    printf("WRONG: no such call\n");
    return MPI_ERR_OTHER;
}

int main(int words_count, char **words)
{
    MPI_Init(&words_count, &words);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    root = atoi(words[2]), count = atoi(words[3]);
    in = calloc((size_t)(count * size), sizeof *in);
    out = malloc(sizeof *out * (size_t)(count * size));
    for (int at = 0; at < count * size; at++)
        out[at] = 1.0 / (1 + rank * 7919 + at);
    int results, code = run(words[1], &results);
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
