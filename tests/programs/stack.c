// SPDX-License-Identifier: Apache-2.0
// A field on the stack that is larger in each round, as Fortran's automatic arrays are: needs an unlimited stack (ulimit -s).
//   stack [MIB=64] [ROUNDS=30]      the field is MIB larger in each fifth round
#include "check.h"

static uint64_t round_of(int rank, int size, int round, size_t bytes)
{
    volatile uint64_t field[bytes / 8];
    const size_t step = 4096 / 8;
    for (size_t i = 0; i < bytes / 8; i += step)
        field[i] = mixed(rank + round, i);
    uint64_t sent = FNV_START, got;
    for (size_t i = 0; i < bytes / 8; i += step)
        sent = (sent ^ field[i]) * UINT64_C(0x100000001b3);
    MPI_Sendrecv(&sent, 1, MPI_UINT64_T, (rank + 1) % size, 0, &got, 1, MPI_UINT64_T, (rank + size - 1) % size, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    // What was there before the message is still there.
    for (size_t i = 0; i < bytes / 8; i += step)
        CHECK(field[i] == mixed(rank + round, i), "round %d, word %zu", round, i);
    return got;
}

int main(int argc, char **argv)
{
    const size_t mib = argc > 1 ? strtoul(argv[1], NULL, 10) : 64;
    const int rounds = argc > 2 ? atoi(argv[2]) : 30;
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    uint64_t sum = 0;
    for (int round = 0; round < rounds; round++) {
        sum += round_of(rank, size, round, (1 + round / 5) * mib << 20);
        linger(round, rounds);
    }
    uint64_t all;
    MPI_Reduce(&sum, &all, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%d rounds, sum %016llx\n", rounds, (unsigned long long)all);
    MPI_Finalize();
    return 0;
}
