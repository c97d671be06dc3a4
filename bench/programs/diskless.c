// SPDX-License-Identifier: Apache-2.0
// The time of a checkpoint in memory, beside a copy of the same data and MPI_Sendrecv of that to another rank.
//   diskless ROUNDS MIB SCHEME LOSSES
// Prints, of each round, the seconds of the copy with MPI_Sendrecv, and of the checkpoint, as the slowest rank has them.
#include "check.h"
#include <resurgo_ft.h>

static double slowest(double began)
{
    double mine = MPI_Wtime() - began, all;
    MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return all;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank, size, rounds = (int)argument(argc, argv, 1, 10);
    size_t bytes = (size_t)argument(argc, argv, 2, 64) << 20;
    int scheme = (int)argument(argc, argv, 3, RESURGO_FT_PARTNER), losses = (int)argument(argc, argv, 4, 1);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    char *data = allocate(bytes), *copy = allocate(bytes), *other = allocate(bytes);
    fill(data, bytes, (uint64_t)rank);
    int to = (rank + size / 2) % size, from = (rank + size - size / 2) % size;
    resurgo_ft_protect(0, data, (MPI_Count)bytes, MPI_BYTE);
    for (int round = -2; round < rounds; round++) { // the first two find no memory that is used
        MPI_Barrier(MPI_COMM_WORLD);
        double began = MPI_Wtime();
        memcpy(copy, data, bytes);
        MPI_Sendrecv(copy, (int)bytes, MPI_BYTE, to, 0, other, (int)bytes, MPI_BYTE, from, 0, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        double plain = slowest(began);
        MPI_Barrier(MPI_COMM_WORLD);
        began = MPI_Wtime();
        int code = resurgo_ft_checkpoint(MPI_COMM_WORLD, round + 2, scheme, losses);
        double taken = slowest(began);
        CHECK(code == MPI_SUCCESS, "code %d", code);
        if (rank == 0 && round >= 0)
            printf("%.6f %.6f\n", plain, taken);
    }
    int version;
    data[0] ^= 1, data[bytes - 1] ^= 1;
    CHECK(resurgo_ft_restore(MPI_COMM_WORLD, &version) == MPI_SUCCESS && version == rounds + 1, "version %d", version);
    CHECK(first_wrong(data, bytes, (uint64_t)rank) < 0, "byte %lld", first_wrong(data, bytes, (uint64_t)rank));
    MPI_Finalize();
    return 0;
}
