/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One failure after the other, and each time a new rank in the place of the dead one. Rank 0 lives through all of them
 * and says how much memory it has.
 *
 *   ftmpi_many FAILURES
 */
#include "ftmpi.h"
#include <unistd.h>

static int rank, size;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

/* KiB of this process that no other has. */
static long memory(void)
{
    long kib = 0;
    char line[256];
    FILE *file = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "RssAnon: %ld", &kib) == 1)
            break;
    fclose(file);
    return kib;
}

/* The dead rank has taken part in these calls, but others may see its death in them. */
static int one_round(int round)
{
    int sum, code = MPI_SUCCESS;
    for (int at = 0; at < 3 && !code; at++) {
        int value = rank + round + at;
        code = MPI_Allreduce(&value, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        CHECK(code || sum == size * (size - 1) / 2 + size * (round + at));
    }
    return code;
}

int main(int count, char **words)
{
    int failures = atoi(words[1]), round = 0, is_new = MPI_Init(&count, &words) == MPI_INIT_RESTARTED_NODE;
    double begin = 0;
    MPI_Comm new;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (is_new)
        CHECK(!MPI_Bcast(&round, 1, MPI_INT, 0, MPI_COMM_WORLD));
    while (one_round(round) || round < failures) {
        if (rank == 1 + round % (size - 1))
            kill(getpid(), SIGKILL);
        begin = now();
        CHECK(one_round(round) == MPI_ERR_OTHER);
        CHECK(!MPI_Comm_dup(MPI_COMM_WORLD, &new));
        round++;
        CHECK(!MPI_Bcast(&round, 1, MPI_INT, 0, MPI_COMM_WORLD));
        if (rank == 0 && (round == 1 || round % 50 == 0 || round == failures))
            printf("round %d: %ld KiB, %.1f ms\n", round, memory(), (now() - begin) * 1e3);
        fflush(stdout);
    }
    printf("rank %d: right after %d\n", rank, round);
    MPI_Finalize();
    return 0;
}
