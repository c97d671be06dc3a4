// SPDX-License-Identifier: Apache-2.0
// OpenMP: a team of 4 that waits at its barriers, also with tasks and critical sections.
#include "image.h"

#define SIZE 100000

int main(int argc, char **argv)
{
    start(&argc, &argv);
    double *values = allocate(SIZE * sizeof *values);
    for (int i = 0; i < SIZE; i++)
        values[i] = i;
    uint64_t hash = FNV_START;
    for (int round = 0; round < ROUNDS; round++) {
        int inside = 0, tasks = 0;
#pragma omp parallel num_threads(4)
        {
            for (int pass = 0; pass < 4; pass++) {
#pragma omp for schedule(static)
                for (int i = 0; i < SIZE; i++)
                    values[i] = values[i] * 0.999 + (double)((i + round) % 17);
#pragma omp critical
                {
                    CHECK(inside++ == 0, "two threads in the critical section");
                    inside--;
                }
            }
#pragma omp single
            for (int t = 0; t < 8; t++)
#pragma omp task
            {
#pragma omp atomic
                tasks++;
            }
        }
        CHECK(tasks == 8, "round %d: %d tasks", round, tasks);
        hash = hash_bytes(hash, values, SIZE / 100 * sizeof *values);
        step(hash, 0.005);
    }
    return finish("openmp", hash);
}
