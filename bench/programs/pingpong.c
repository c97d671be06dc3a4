// SPDX-License-Identifier: Apache-2.0
// Rank 0 and rank 1 send messages to and fro; what half a round trip takes is printed batch by batch.
// Other ranks wait in the barrier at the end.
//   pingpong BATCHES BYTES:ITERATIONS...
#include "check.h"

static void exchange(int rank, char *buffer, int bytes, long iterations)
{
    for (long i = 0; i < iterations; i++) {
        if (rank == 0)
            MPI_Send(buffer, bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
        MPI_Recv(buffer, bytes, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (rank == 1)
            MPI_Send(buffer, bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
    }
}

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    CHECK(argc > 2 && size > 1, "pingpong BATCHES BYTES:ITERATIONS..., two ranks");
    long batches = argument(argc, argv, 1, 1);
    double *half = allocate((size_t)batches * sizeof *half);
    for (int i = 2; rank < 2 && i < argc; i++) {
        char *rest;
        long bytes = strtol(argv[i], &rest, 0), iterations = strtol(rest + 1, NULL, 0);
        char *buffer = allocate((size_t)bytes);
        fill(buffer, (size_t)bytes, (uint64_t)i);
        exchange(rank, buffer, (int)bytes, iterations / 10 + 2);
        for (long batch = 0; batch < batches; batch++) {
            double start = MPI_Wtime();
            exchange(rank, buffer, (int)bytes, iterations);
            half[batch] = (MPI_Wtime() - start) / (double)iterations / 2;
        }
        CHECK(first_wrong(buffer, (size_t)bytes, (uint64_t)i) < 0, "%ld bytes came back changed", bytes);
        if (rank == 0) {
            printf("%ld", bytes);
            for (long batch = 0; batch < batches; batch++)
                printf(" %.4f", half[batch] * 1e6);
            printf("\n"), fflush(stdout);
        }
        free(buffer);
    }
    free(half);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
