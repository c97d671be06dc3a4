// SPDX-License-Identifier: Apache-2.0
// Writes checkpoints of its own, and goes on from them if all ranks have the same: then it prints less than in its first life.
//   own_checkpoints [STEPS=30] [PAUSE_MICROSECONDS=15000]
#include "check.h"
#include <unistd.h>

struct state {
    long step;
    uint64_t value;
};

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    long steps = argument(argc, argv, 1, 30), pause = argument(argc, argv, 2, 15000), oldest, newest;
    struct state state = {0, (uint64_t)rank};
    char file[64], new[64];
    snprintf(file, sizeof file, "own.%d", rank);
    snprintf(new, sizeof new, "own.%d.new", rank);
    FILE *stream = fopen(file, "r");
    if (stream) {
        CHECK(fread(&state, sizeof state, 1, stream) == 1, "%s", file);
        fclose(stream);
    }
    MPI_Allreduce(&state.step, &oldest, 1, MPI_LONG, MPI_MIN, MPI_COMM_WORLD);
    MPI_Allreduce(&state.step, &newest, 1, MPI_LONG, MPI_MAX, MPI_COMM_WORLD);
    if (oldest != newest)
        state = (struct state){0, (uint64_t)rank};
    if (rank == 0)
        printf(state.step ? "going on from step %ld\n" : "a new run, %ld steps done\n", state.step);
    while (state.step < steps) {
        uint64_t in = 0;
        state.value = mixed(state.value, (uint64_t)state.step++);
        MPI_Sendrecv(&state.value, 1, MPI_UINT64_T, (rank + 1) % size, 7, &in, 1, MPI_UINT64_T, (rank + size - 1) % size, 7,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        state.value = mixed(state.value, in);
        usleep((useconds_t)pause);
        if (rank == 0) {
            printf("step %ld of %ld: value %016llx\n", state.step, steps, (unsigned long long)state.value);
            fflush(stdout);
        }
        if (state.step % 10 == 0) {
            stream = fopen(new, "w");
            CHECK(stream && fwrite(&state, sizeof state, 1, stream) == 1 && fclose(stream) == 0, "%s", new);
            CHECK(rename(new, file) == 0, "%s", file);
            MPI_Barrier(MPI_COMM_WORLD);
        }
    }
    uint64_t sum = 0;
    MPI_Reduce(&state.value, &sum, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("result %016llx\n", (unsigned long long)sum);
    MPI_Finalize();
    return 0;
}
