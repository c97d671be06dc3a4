/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A master gives tasks to workers; those of a worker that dies go to others. The workers never hear of failures.
 *
 *   ulfm_master SEED TASKS KILLS MILLISECONDS
 */
#include "ulfm.h"

#define MOST 64

static long task(long number)
{
    long result = number;
    for (int at = 0; at < 20000; at++)
        result = result * 1103515245 % 2147483647 + 12345;
    return result;
}

static void work(void)
{
    long number, answer[2];
    while (MPI_Recv(&number, 1, MPI_LONG, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE) == MPI_SUCCESS && number >= 0) {
        answer[0] = number, answer[1] = task(number);
        MPI_Send(answer, 2, MPI_LONG, 0, 2, MPI_COMM_WORLD);
    }
}

/* The next task that nobody has. */
static long next(const char *state, long tasks)
{
    for (long number = 0; number < tasks; number++)
        if (state[number] == 0)
            return number;
    return -1;
}

static int lead(int size, long tasks)
{
    char *state = calloc((size_t)tasks, 1); /* 0: to do; 1: with a worker; 2: done */
    long has[MOST], done = 0, sum = 0, answer[2];
    int is_dead[MOST] = {0}, lost = 0;
    for (int worker = 1; worker < size; worker++)
        has[worker] = -1;
    while (done < tasks) {
        for (int worker = 1; worker < size; worker++) {
            long number = has[worker] < 0 && !is_dead[worker] ? next(state, tasks) : -1;
            if (number < 0)
                continue;
            if (MPI_Send(&number, 1, MPI_LONG, worker, 1, MPI_COMM_WORLD) == MPI_SUCCESS)
                has[worker] = number, state[number] = 1;
        }
        MPI_Status status;
        int code = MPI_Recv(answer, 2, MPI_LONG, MPI_ANY_SOURCE, 2, MPI_COMM_WORLD, &status);
        if (code == MPI_SUCCESS) {
            has[status.MPI_SOURCE] = -1;
            done += state[answer[0]] != 2;
            sum += state[answer[0]] != 2 ? answer[1] : 0;
            state[answer[0]] = 2;
            continue;
        }
        MPI_Group failed, all;
        int count, first[MOST], ranks[MOST];
        MPIX_Comm_failure_ack(MPI_COMM_WORLD);
        MPIX_Comm_failure_get_acked(MPI_COMM_WORLD, &failed);
        MPI_Comm_group(MPI_COMM_WORLD, &all);
        MPI_Group_size(failed, &count);
        for (int at = 0; at < count; at++)
            first[at] = at;
        MPI_Group_translate_ranks(failed, count, first, all, ranks);
        for (int at = 0; at < count; at++) {
            lost += !is_dead[ranks[at]];
            is_dead[ranks[at]] = 1;
            if (has[ranks[at]] >= 0 && state[has[ranks[at]]] == 1)
                state[has[ranks[at]]] = 0;
            has[ranks[at]] = -1;
        }
        MPI_Group_free(&failed);
        MPI_Group_free(&all);
    }
    long end = -1, expected = 0;
    for (int worker = 1; worker < size; worker++)
        MPI_Send(&end, 1, MPI_LONG, worker, 1, MPI_COMM_WORLD);
    for (long number = 0; number < tasks; number++)
        expected += task(number);
    printf("%s: %ld, %d workers lost\n", sum == expected ? "right" : "WRONG", sum, lost);
    free(state);
    return sum != expected;
}

int main(int count, char **words)
{
    int rank, size, code = 0;
    MPI_Init(&count, &words);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Barrier(MPI_COMM_WORLD); /* nobody dies before all have come here */
    srand(atoi(words[1]));
    for (int kill = 0; kill < atoi(words[3]); kill++) {
        long when = rand() % (atoi(words[4]) * 1000L);
        if (rank == size - 1 - kill)
            die_in(when);
    }
    if (rank)
        work();
    else
        code = lead(size, atol(words[2]));
    MPI_Finalize();
    return code;
}
