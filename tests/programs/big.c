// SPDX-License-Identifier: Apache-2.0
// One very long message from rank 0 to rank 1 (or to itself), as a large count, then as a derived type.
//   big [BYTES=2147483653] [both|count|type]
#include "check.h"

// Every 64-bit word says where it is; sampled densely enough to see a shifted or missing piece.
static void write_words(uint64_t *words, size_t count, uint64_t seed)
{
    for (size_t i = 0; i < count; i++)
        words[i] = seed ^ i * UINT64_C(0x9e3779b97f4a7c15);
}

static void check_words(const uint64_t *words, size_t count, uint64_t seed)
{
    for (size_t i = 0; i < count; i++)
        CHECK(words[i] == (seed ^ i * UINT64_C(0x9e3779b97f4a7c15)), "word %zu of %zu", i, count);
}

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    size_t bytes = argc > 1 ? strtoull(argv[1], NULL, 0) : (size_t)2147483653;
    const char *how = argc > 2 ? argv[2] : "both";
    int receiver = size > 1 ? 1 : 0;
    size_t words = (bytes + 7) / 8;
    uint64_t *out = rank == 0 ? allocate(words * 8) : NULL, *in = rank == receiver ? allocate(words * 8) : NULL;
    MPI_Request requests[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    MPI_Status statuses[2];
    MPI_Count count;

    if (strcmp(how, "type") != 0) {
        if (rank == receiver) {
            memset(in, 0, words * 8);
            MPI_Irecv_c(in, (MPI_Count)bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD, &requests[0]);
        }
        if (rank == 0) {
            write_words(out, words, 1);
            MPI_Isend_c(out, (MPI_Count)bytes, MPI_BYTE, receiver, 1, MPI_COMM_WORLD, &requests[1]);
        }
        MPI_Waitall(2, requests, statuses);
        if (rank == receiver) {
            MPI_Get_count_c(&statuses[0], MPI_BYTE, &count);
            CHECK((size_t)count == bytes, "%lld bytes came", (long long)count);
            check_words(in, bytes / 8, 1);
        }
    }
    if (strcmp(how, "count") != 0) {
        MPI_Datatype chunk;
        MPI_Type_contiguous(1 << 20, MPI_BYTE, &chunk);
        MPI_Type_commit(&chunk);
        int chunks = (int)(bytes >> 20);
        if (rank == receiver) {
            memset(in, 0, words * 8);
            MPI_Irecv(in, chunks, chunk, MPI_ANY_SOURCE, 2, MPI_COMM_WORLD, &requests[0]);
        }
        if (rank == 0) {
            write_words(out, words, 2);
            MPI_Isend(out, chunks, chunk, receiver, 2, MPI_COMM_WORLD, &requests[1]);
        }
        MPI_Waitall(2, requests, statuses);
        if (rank == receiver) {
            MPI_Get_count_c(&statuses[0], chunk, &count);
            CHECK(count == chunks, "%lld chunks came", (long long)count);
            check_words(in, ((size_t)chunks << 20) / 8, 2);
        }
        MPI_Type_free(&chunk);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("big bytes=%zu ok\n", bytes);
    free(out), free(in);
    MPI_Finalize();
    return 0;
}
