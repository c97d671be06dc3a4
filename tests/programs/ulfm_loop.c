/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of many kinds, each with an answer that every rank knows. Some ranks are killed at random moments; the others
 * revoke, shrink and go on from the step where they were.
 *
 *   ulfm_loop SEED STEPS KILLS MILLISECONDS [LOWEST]
 *
 * KILLS ranks, drawn from SEED, die within so many milliseconds; rank 0 is one of them if LOWEST is 1.
 */
#include "ulfm.h"

#define MOST 16
#define LONG 20000

static MPI_Comm comm;
static int rank, size, world;

static void fail(const char *what, int step, long got)
{
    printf("WRONG: rank %d (%d of %d): %s in step %d: %ld\n", world, rank, size, what, step, got);
    fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, 3);
}

static int sums(int step)
{
    static int in[LONG], out[LONG];
    int count = step % 7 ? 3 : LONG, code, all = size * (size - 1) / 2 + size * step;
    for (int at = 0; at < count; at++)
        out[at] = rank + step;
    memset(in, 0, sizeof in);
    if (step % 3 == 0)
        code = MPI_Allreduce(out, in, count, MPI_INT, MPI_SUM, comm);
    else if (step % 3 == 1) {
        MPI_Request request;
        code = MPI_Iallreduce(out, in, count, MPI_INT, MPI_SUM, comm, &request);
        if (!code)
            code = MPI_Wait(&request, MPI_STATUS_IGNORE);
    } else {
        code = MPI_Reduce(out, in, count, MPI_INT, MPI_SUM, step % size, comm);
        if (!code)
            code = MPI_Bcast(in, count, MPI_INT, step % size, comm);
    }
    if (!code)
        for (int at = 0; at < count; at++)
            if (in[at] != all)
                fail("sum", step, in[at]);
    return code;
}

static int tables(int step)
{
    int out[MOST], in[MOST], code;
    for (int at = 0; at < size; at++)
        out[at] = 100 * rank + at + step;
    code = MPI_Alltoall(out, 1, MPI_INT, in, 1, MPI_INT, comm);
    for (int at = 0; !code && at < size; at++)
        if (in[at] != 100 * at + rank + step)
            fail("alltoall", step, in[at]);
    if (!code)
        code = MPI_Allgather(out, 1, MPI_INT, in, 1, MPI_INT, comm);
    for (int at = 0; !code && at < size; at++)
        if (in[at] != 100 * at + step)
            fail("allgather", step, in[at]);
    if (!code)
        code = MPI_Scan(&step, in, 1, MPI_INT, MPI_SUM, comm);
    if (!code && in[0] != (rank + 1) * step)
        fail("scan", step, in[0]);
    return code;
}

static int ring(int step)
{
    static int in[LONG], out[LONG];
    int right = (rank + 1) % size, left = (rank + size - 1) % size, count = step % 5 ? 4 : LONG, code;
    for (int at = 0; at < count; at++)
        out[at] = rank * 1000 + step + at;
    if (step % 2) {
        MPI_Request requests[2];
        code = MPI_Irecv(in, count, MPI_INT, left, step, comm, requests);
        if (!code)
            code = MPI_Isend(out, count, MPI_INT, right, step, comm, requests + 1);
        if (!code)
            code = MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    } else
        code = MPI_Sendrecv(out, count, MPI_INT, right, step, in, count, MPI_INT, left, step, comm, MPI_STATUS_IGNORE);
    for (int at = 0; !code && at < count; at++)
        if (in[at] != left * 1000 + step + at)
            fail("ring", step, in[at]);
    return code;
}

static int gathered(int step)
{
    int code = 0, value = rank + step, sum = 0;
    if (rank)
        return MPI_Send(&value, 1, MPI_INT, 0, step, comm);
    for (int at = 1; at < size && !code; at++) {
        code = MPI_Recv(&value, 1, MPI_INT, MPI_ANY_SOURCE, step, comm, MPI_STATUS_IGNORE);
        sum += value;
    }
    if (!code && sum != size * (size - 1) / 2 + (size - 1) * step)
        fail("gathered", step, sum);
    return code;
}

/* Some ranks may have made a communicator where others have an error. */
static int all_have(int code)
{
    int flag = !code, agreed = MPIX_Comm_agree(comm, &flag);
    return code ? code : agreed ? agreed : flag ? MPI_SUCCESS : MPIX_ERR_PROC_FAILED;
}

static int parts(int step)
{
    MPI_Comm part = MPI_COMM_NULL, twin = MPI_COMM_NULL;
    int code = all_have(MPI_Comm_split(comm, rank % 2, rank, &part)), sum = 0, number;
    if (!code)
        code = MPI_Comm_dup(part, &twin);
    if (code && part != MPI_COMM_NULL)
        MPIX_Comm_revoke(part); /* others may wait in it for this rank */
    code = all_have(code);
    if (!code)
        code = MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, twin);
    if (!code) {
        int all = 0;
        for (number = rank % 2; number < size; number += 2)
            all += number;
        if (sum != all)
            fail("parts", step, sum);
    }
    if (twin != MPI_COMM_NULL) {
        if (code)
            MPIX_Comm_revoke(twin);
        MPI_Comm_free(&twin);
    }
    if (part != MPI_COMM_NULL) {
        MPI_Comm_free(&part);
    }
    return code;
}

static void recover(int step)
{
    MPI_Comm new;
    int code = MPIX_Comm_shrink(comm, &new);
    if (code)
        fail("shrink", step, code);
    MPI_Comm_free(&comm);
    comm = new;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
}

int main(int count, char **words)
{
    MPI_Init(&count, &words);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Barrier(comm); /* nobody dies before all have come here */
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    world = rank;
    if (rank == 0) {
        printf("begun\n");
        fflush(stdout);
    }
    srand(atoi(words[1]));
    int steps = atoi(words[2]), kills = atoi(words[3]), most = atoi(words[4]), lowest = count > 5 && atoi(words[5]);
    int dies[MOST] = {0}, shrinks = 0;
    for (int kill = 0; kill < kills; kill++) {
        int victim = lowest && !kill ? 0 : rand() % size;
        long when = rand() % (most * 1000L);
        if (victim == rank && !dies[victim])
            die_in(when);
        else if (dies[victim])
            kill--;
        dies[victim] = 1;
    }
    int (*const calls[])(int) = {sums, tables, ring, gathered, parts};
    for (int step = 0; step < steps;) {
        int code = calls[step % 5](step), class, is_good = code == MPI_SUCCESS;
        if (code) {
            MPI_Error_class(code, &class);
            MPI_Error_class(code, &class);
            if (class != MPIX_ERR_PROC_FAILED && class != MPIX_ERR_REVOKED && class != MPI_ERR_IN_STATUS)
                fail("class", step, class);
            MPIX_Comm_revoke(comm);
        }
        code = MPIX_Comm_agree(comm, &is_good);
        if (!code && is_good)
            step++;
        else {
            recover(step);
            shrinks++;
        }
    }
    printf("rank %d: done, %d of %d, shrunk %d times\n", world, rank, size, shrinks);
    MPI_Finalize();
    return 0;
}
