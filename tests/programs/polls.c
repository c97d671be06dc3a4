// SPDX-License-Identifier: Apache-2.0
// What calls cost that look for something and find nothing, in a program that has other things to do meanwhile. Prints for each kind of
// call the time of a round of work and call, as a multiple of the work alone: the best of several tries.
//   polls [ROUNDS=2000]
#include "check.h"

static const double WORK = 3e-6;
static MPI_Win window;
static MPI_Request request;

static void probe(void)
{
    int flag;
    MPI_Iprobe(MPI_ANY_SOURCE, 1, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
    CHECK(!flag, "a message that nobody has sent");
}

static void test(void)
{
    int flag;
    MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
    CHECK(!flag, "a message that nobody has sent");
}

static void flush(void)
{
    MPI_Win_flush_all(window);
}

static double rounds(int count, void (*call)(void))
{
    const double start = MPI_Wtime();
    for (int round = 0; round < count; round++) {
        const double from = MPI_Wtime();
        while (MPI_Wtime() - from < WORK)
            ;
        if (call)
            call();
    }
    return MPI_Wtime() - start;
}

int main(int argc, char **argv)
{
    static const struct { const char *name; void (*call)(void); } KINDS[] = {{"probe", probe}, {"test", test}, {"flush", flush}};
    const int tries = 5;
    double *memory, number;
    int rank;
    MPI_Init(&argc, &argv);
    const int count = (int)argument(argc, argv, 1, 2000);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Win_allocate(4096, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
    MPI_Win_lock_all(0, window);
    MPI_Irecv(&number, 1, MPI_DOUBLE, MPI_ANY_SOURCE, 2, MPI_COMM_WORLD, &request);
    for (size_t kind = 0; kind < sizeof KINDS / sizeof *KINDS; kind++) {
        double alone = 1e9, with = 1e9;
        for (int try = 0; try < tries; try++) {
            const double work = rounds(count, NULL), both = rounds(count, KINDS[kind].call);
            alone = work < alone ? work : alone;
            with = both < with ? both : with;
        }
        if (rank == 0)
            printf("%s %.2f\n", KINDS[kind].name, with / alone);
    }
    MPI_Cancel(&request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Win_unlock_all(window);
    MPI_Win_free(&window);
    MPI_Finalize();
    return 0;
}
