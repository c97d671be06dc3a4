// SPDX-License-Identifier: Apache-2.0
// Rank 0 and rank 1 send messages to and fro; what half a round trip takes is printed batch by batch.
// Other ranks wait in the barrier at the end.
//   pingpong BATCHES BYTES:ITERATIONS...
#include "check.h"
#include "to_and_fro.h"

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
        to_and_fro(rank, buffer, (int)bytes, MPI_BYTE, iterations / 10 + 2);
        for (long batch = 0; batch < batches; batch++) {
            double start = MPI_Wtime();
            to_and_fro(rank, buffer, (int)bytes, MPI_BYTE, iterations);
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
