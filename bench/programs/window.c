// SPDX-License-Identifier: Apache-2.0
// What usual benchmarks do: rank 0 sends windows of messages from one buffer, each answered by one message; then both
// send to and fro. Prints a line for each part: megabytes a second of the windows, and half of a round trip in µs.
//   window BYTES ROUNDS PARTS
#include "check.h"
#include "to_and_fro.h"

enum { WINDOW = 64 };

static void windows(int rank, char *buffer, int bytes, long rounds)
{
    MPI_Request requests[WINDOW];
    for (long i = 0; i < rounds; i++) {
        for (int j = 0; j < WINDOW; j++)
            if (rank == 0)
                MPI_Isend(buffer, bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD, &requests[j]);
            else
                MPI_Irecv(buffer, bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD, &requests[j]);
        MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
        if (rank == 0)
            MPI_Recv(NULL, 0, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        else
            MPI_Send(NULL, 0, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
    }
}

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    CHECK(argc == 4 && size == 2, "window BYTES ROUNDS PARTS, two ranks");
    int bytes = (int)argument(argc, argv, 1, 1);
    long rounds = argument(argc, argv, 2, 1), parts = argument(argc, argv, 3, 1);
    char *buffer = allocate((size_t)bytes);
    fill(buffer, (size_t)bytes, 1);
    for (long part = 0; part < parts; part++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double begun = MPI_Wtime();
        windows(rank, buffer, bytes, rounds);
        double wide = MPI_Wtime() - begun;
        MPI_Barrier(MPI_COMM_WORLD);
        begun = MPI_Wtime();
        to_and_fro(rank, buffer, bytes, MPI_BYTE, 10 * rounds);
        double late = MPI_Wtime() - begun;
        if (rank == 0)
            printf("%.3f %.3f\n", 1e-6 * bytes * WINDOW * (double)rounds / wide, 1e6 * late / (20 * (double)rounds));
    }
    free(buffer);
    MPI_Finalize();
}
