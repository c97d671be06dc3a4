// SPDX-License-Identifier: Apache-2.0
// A ring in which one rank, or several, dies in a chosen way at a chosen place.
//   crash WHO HOW WHERE WHEN [ITERATIONS=200]
//     WHO    a rank, several as 0,2,3, or all
//     HOW    segv | abort | fpe | kill | term | exit0 | exit3 | _exit5
//     WHERE  constructor | before-init | after-init | K (at iteration K) | before-finalize | after-finalize
//     WHEN   always, or the name of a marker file: only in the life that makes the file (FILE.RANK)
#include "check.h"
#include <signal.h>

static int is_one_of(const char *list, int rank)
{
    if (strcmp(list, "all") == 0)
        return 1;
    for (const char *p = list; *p;) {
        char *end;
        if (strtol(p, &end, 10) == rank && end != p)
            return 1;
        p = *end ? end + 1 : end;
    }
    return 0;
}

static void die(const char *how)
{
    volatile uintptr_t nowhere = 8;
    if (strcmp(how, "segv") == 0)
        *(volatile int *)nowhere = 1;
    else if (strcmp(how, "abort") == 0)
        abort();
    else if (strcmp(how, "fpe") == 0)
        raise(SIGFPE);
    else if (strcmp(how, "kill") == 0)
        kill(getpid(), SIGKILL);
    else if (strcmp(how, "term") == 0)
        kill(getpid(), SIGTERM);
    else if (strcmp(how, "exit0") == 0)
        exit(0);
    else if (strcmp(how, "exit3") == 0)
        exit(3);
    else if (strcmp(how, "_exit5") == 0)
        _exit(5);
    fprintf(stderr, "no such way to die: %s\n", how);
    _exit(99);
}

static void perhaps_die(char **argv, int rank, const char *where)
{
    if (strcmp(argv[3], where) != 0 || !is_one_of(argv[1], rank))
        return;
    if (strcmp(argv[4], "always") != 0) {
        char path[4096];
        snprintf(path, sizeof path, "%s.%d", argv[4], rank);
        if (!is_first(path)) // an earlier life has been here
            return;
    }
    die(argv[2]);
}

// glibc hands argc, argv and envp to constructors, too.
__attribute__((constructor)) static void first_of_all(int argc, char **argv)
{
    const char *rank = getenv("PMI_RANK");
    if (argc > 4 && rank)
        perhaps_die(argv, atoi(rank), "constructor");
}

int main(int argc, char **argv)
{
    if (argc < 5) {
        fprintf(stderr, "usage: crash WHO HOW WHERE WHEN [ITERATIONS]\n");
        return 98;
    }
    const char *pmi_rank = getenv("PMI_RANK");
    if (pmi_rank)
        perhaps_die(argv, atoi(pmi_rank), "before-init");
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    perhaps_die(argv, rank, "after-init");
    long iterations = argument(argc, argv, 5, 200);
    uint64_t value = (uint64_t)rank, sum;
    for (long k = 0; k < iterations; k++) {
        char where[32];
        snprintf(where, sizeof where, "%ld", k);
        perhaps_die(argv, rank, where);
        uint64_t in;
        MPI_Sendrecv(&value, 1, MPI_UINT64_T, (rank + 1) % size, 1, &in, 1, MPI_UINT64_T, (rank + size - 1) % size, 1,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        value = mixed(in, (uint64_t)k);
        if (k % 10 == 9)
            MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_UINT64_T, MPI_BXOR, MPI_COMM_WORLD);
        if (k % 50 == 0)
            printf("rank %d iteration %ld value %016llx\n", rank, k, (unsigned long long)value), fflush(stdout);
        value += (uint64_t)rank;
        linger(k, iterations);
    }
    MPI_Reduce(&value, &sum, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("crash iterations=%ld sum=%016llx\n", iterations, (unsigned long long)sum), fflush(stdout);
    perhaps_die(argv, rank, "before-finalize");
    MPI_Finalize();
    perhaps_die(argv, rank, "after-finalize");
    return 0;
}
