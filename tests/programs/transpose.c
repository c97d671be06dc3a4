// SPDX-License-Identifier: Apache-2.0
// Transposes a square matrix, rows shared out among the ranks, by Alltoall, Alltoallv, Ialltoall and Alltoallw in turn.
//   transpose [ROWS_PER_RANK=64] [ROUNDS=40]
#include "check.h"

static uint64_t entry(long i, long j, long round)
{
    return mixed((uint64_t)round, (uint64_t)i << 32 | (uint64_t)j);
}

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    long m = argument(argc, argv, 1, 64), rounds = argument(argc, argv, 2, 40), n = m * size;
    uint64_t *a = allocate((size_t)(m * n) * 8), *packed = allocate((size_t)(m * n) * 8);
    uint64_t *b = allocate((size_t)(m * n) * 8), hash = FNV_START, all;
    int *counts = allocate((size_t)size * sizeof *counts), *places = allocate((size_t)size * sizeof *places);
    int *byte_places = allocate((size_t)size * sizeof *byte_places), *ones = allocate((size_t)size * sizeof *ones);
    MPI_Datatype block, *blocks = allocate((size_t)size * sizeof *blocks);
    MPI_Datatype *words = allocate((size_t)size * sizeof *words);
    MPI_Type_vector((int)m, (int)m, (int)n, MPI_UINT64_T, &block);
    MPI_Type_commit(&block);
    for (int r = 0; r < size; r++) {
        counts[r] = (int)(m * m), places[r] = (int)(r * m * m), ones[r] = 1;
        blocks[r] = block, words[r] = MPI_UINT64_T, byte_places[r] = (int)(r * m * 8);
    }
    for (long round = 0; round < rounds; round++) {
        linger(round, rounds);
        for (long i = 0; i < m; i++)
            for (long j = 0; j < n; j++)
                a[i * n + j] = entry(rank * m + i, j, round);
        for (int r = 0; r < size; r++)
            for (long i = 0; i < m; i++)
                memcpy(packed + r * m * m + i * m, a + i * n + r * m, (size_t)m * 8);
        memset(b, 0, (size_t)(m * n) * 8);
        MPI_Request request;
        int *displacements;
        switch (round % 4) {
        case 0:
            MPI_Alltoall(packed, (int)(m * m), MPI_UINT64_T, b, (int)(m * m), MPI_UINT64_T, MPI_COMM_WORLD);
            break;
        case 1:
            MPI_Alltoallv(packed, counts, places, MPI_UINT64_T, b, counts, places, MPI_UINT64_T, MPI_COMM_WORLD);
            break;
        case 2:
            MPI_Ialltoall(packed, (int)(m * m), MPI_UINT64_T, b, (int)(m * m), MPI_UINT64_T, MPI_COMM_WORLD, &request);
            MPI_Wait(&request, MPI_STATUS_IGNORE);
            break;
        default: // strided straight from the matrix
            displacements = allocate((size_t)size * sizeof *displacements);
            for (int r = 0; r < size; r++)
                displacements[r] = (int)(r * m * m * 8);
            MPI_Alltoallw(a, ones, byte_places, blocks, b, counts, displacements, words, MPI_COMM_WORLD);
            free(displacements);
        }
        for (int r = 0; r < size; r++)
            for (long i = 0; i < m; i++)
                for (long j = 0; j < m; j++)
                    CHECK(b[r * m * m + i * m + j] == entry(r * m + i, rank * m + j, round),
                          "round %ld, block of %d, %ld, %ld", round, r, i, j);
        hash = hash_bytes(hash, b, (size_t)(m * n) * 8);
    }
    MPI_Reduce(&hash, &all, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("transpose n=%ld rounds=%ld hash=%016llx\n", n, rounds, (unsigned long long)all);
    MPI_Type_free(&block);
    free(a), free(b), free(packed), free(counts), free(places), free(byte_places), free(ones), free(blocks), free(words);
    MPI_Finalize();
    return 0;
}
