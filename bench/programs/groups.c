// SPDX-License-Identifier: Apache-2.0
// The model program of Gao 2007, §6.1: ranks exchange blocking messages all the time, in groups of GROUP ranks only, with
// some computation in between; each rank has MIB of memory, all written. Every PERIOD rounds all meet in a barrier (0: never).
//   groups GROUP ROUNDS MIB [PERIOD]
#include "check.h"

enum { BYTES = 1024, WORK = 20000 };

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int group = (int)argument(argc, argv, 1, 2);
    long rounds = argument(argc, argv, 2, 1000), period = argument(argc, argv, 4, 0);
    size_t bytes = (size_t)argument(argc, argv, 3, 16) << 20;
    CHECK(group > 0 && size % group == 0, "groups of %d ranks do not share out %d", group, size);
    unsigned char *memory = allocate(bytes);
    fill(memory, bytes, (uint64_t)rank);
    int first = rank / group * group, next = first + (rank + 1) % group, before = first + (rank + group - 1) % group;
    uint64_t state = (uint64_t)rank, out[BYTES / 8], in[BYTES / 8] = {0};
    for (long round = 0; round < rounds; round++) {
        for (int i = 0; i < WORK; i++) {
            state = mixed(state, (uint64_t)round);
            memory[state % bytes] ^= (unsigned char)state;
        }
        if (group > 1) {
            for (size_t i = 0; i < BYTES / 8; i++)
                out[i] = state + i;
            MPI_Sendrecv(out, BYTES, MPI_BYTE, next, 1, in, BYTES, MPI_BYTE, before, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            state ^= in[0];
        }
        if (period > 0 && (round + 1) % period == 0)
            MPI_Barrier(MPI_COMM_WORLD);
    }
    uint64_t all;
    MPI_Reduce(&state, &all, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("groups of %d, state %016llx\n", group, (unsigned long long)all);
    free(memory);
    MPI_Finalize();
    return 0;
}
