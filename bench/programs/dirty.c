// SPDX-License-Identifier: Apache-2.0
// A heap that is written to all the time. In each round: every page, or one of EVERY here and there, is written, the
// process forks by itself, and both ranks meet, every millisecond. Prints how long its forks took, in milliseconds, one a line.
//   dirty MIB ROUNDS [EVERY [PAUSES]]
#include "check.h"
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e3 + 1e-6 * (double)time.tv_nsec;
}

int main(int argc, char **argv)
{
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    size_t bytes = (size_t)argument(argc, argv, 1, 1024) << 20;
    long rounds = argument(argc, argv, 2, 10);
    size_t every = (size_t)argument(argc, argv, 3, 1);
    long pauses = argument(argc, argv, 4, 25); // of 20 ms, time for images and messages
    char *heap = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(heap != MAP_FAILED, "no memory");
    if (rank == 0)
        for (long round = 0; round < rounds; round++) {
            for (size_t page = 0; page < bytes >> 12; page++)
                if (round == 0 || (page * 0x9e3779b97f4a7c15 + (size_t)round * 0xbf58476d1ce4e5b9) >> 32 <= UINT32_MAX / every)
                    heap[page << 12] = (char)(round + 1);
            double before = now();
            pid_t child = fork();
            if (child == 0)
                _exit(0);
            double after = now();
            CHECK(child > 0 && waitpid(child, NULL, 0) == child, "cannot fork");
            printf("%.3f\n", after - before);
            fflush(stdout);
            for (long i = 0; i < 20 * pauses; i++) {
                usleep(1000);
                MPI_Barrier(MPI_COMM_WORLD);
            }
        }
    else
        for (long i = 0; i < 20 * pauses * rounds; i++)
            MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
