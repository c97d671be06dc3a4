// SPDX-License-Identifier: Apache-2.0
// Prints how long each round took: other digits, and another number of them, in every life.
//   times [ROUNDS=200] [PAUSE_MICROSECONDS=5000]
#include "check.h"
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    long rounds = argument(argc, argv, 1, 200), pause = argument(argc, argv, 2, 5000), sum = 0;
    for (long i = 0; i < rounds; i++) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        printf("rank %d round %ld took %.*f", rank, i, (int)(now.tv_nsec % 12), 1e-9 * (double)now.tv_nsec);
        if (i % 3)
            fflush(stdout);
        MPI_Allreduce(&i, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        CHECK(sum == i * size, "sum %ld", sum);
        printf(" s\nrank %d round %ld has %ld\n", rank, i, sum);
        fflush(stdout);
        usleep((useconds_t)pause);
    }
    printf("rank %d has ended\n", rank);
    MPI_Finalize();
    return 0;
}
