// SPDX-License-Identifier: Apache-2.0
// Long messages in all the ways that MPICH carries them after a rendezvous: contiguous or strided at either side, found by probes,
// and longer than their receive. All receives name their source: with MPI_ANY_SOURCE, MPICH itself waits for ever.
//   rendezvous [ROUNDS=12]
#include "check.h"

enum { BLOCK = 96, GAP = 32 };

static MPI_Datatype strided(size_t blocks)
{
    MPI_Datatype type;
    MPI_Type_vector((int)blocks, BLOCK, BLOCK + GAP, MPI_BYTE, &type);
    MPI_Type_commit(&type);
    return type;
}

// Copies between the contiguous bytes of a message and a buffer with gaps.
static void spread(unsigned char *gapped, unsigned char *whole, size_t blocks, int gathers)
{
    for (size_t i = 0; i < blocks; i++)
        if (gathers)
            memcpy(whole + i * BLOCK, gapped + i * (BLOCK + GAP), BLOCK);
        else
            memcpy(gapped + i * (BLOCK + GAP), whole + i * BLOCK, BLOCK);
}

int main(int argc, char **argv)
{
    static const size_t lengths[] = {40, 300, 2731, 12000};
    const size_t most = 12000;
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    long rounds = argument(argc, argv, 1, 12);
    int next = (rank + 1) % size, before = (rank + size - 1) % size;
    unsigned char *out = allocate(most * (BLOCK + GAP)), *in = allocate(most * (BLOCK + GAP)), *whole = allocate(most * BLOCK);
    uint64_t hash = FNV_START, all;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    for (long round = 0; round < rounds; round++) {
        linger(round, rounds);
        for (int way = 0; way < 8; way++) {
            size_t blocks = lengths[(round + way) % 4], bytes = blocks * BLOCK;
            int sends_gaps = way & 1, receives_gaps = way >> 1 & 1, probes = way >> 2;
            int tag = (int)(round * 8 + way);
            MPI_Datatype type = strided(blocks);
            MPI_Request request;
            MPI_Status status;
            MPI_Message message;
            fill(whole, bytes, (uint64_t)rank << 32 | (uint64_t)tag);
            if (sends_gaps)
                spread(out, whole, blocks, 0);
            else
                memcpy(out, whole, bytes);
            memset(in, 0xee, blocks * (BLOCK + GAP));
            MPI_Isend(out, sends_gaps ? 1 : (int)bytes, sends_gaps ? type : MPI_BYTE, next, tag, MPI_COMM_WORLD, &request);
            if (probes) {
                int count;
                MPI_Mprobe(before, tag, MPI_COMM_WORLD, &message, &status);
                MPI_Get_count(&status, MPI_BYTE, &count);
                CHECK((size_t)count == bytes, "%d of %zu bytes", count, bytes);
                MPI_Mrecv(in, receives_gaps ? 1 : (int)bytes, receives_gaps ? type : MPI_BYTE, &message, &status);
            } else {
                MPI_Recv(in, receives_gaps ? 1 : (int)bytes, receives_gaps ? type : MPI_BYTE, before, tag, MPI_COMM_WORLD, &status);
            }
            MPI_Wait(&request, MPI_STATUS_IGNORE);
            CHECK(status.MPI_SOURCE == before, "from %d", status.MPI_SOURCE);
            if (receives_gaps) {
                spread(in, whole, blocks, 1);
                for (size_t i = 0; i < blocks; i++)
                    for (size_t j = BLOCK; i + 1 < blocks && j < BLOCK + GAP; j++)
                        CHECK(in[i * (BLOCK + GAP) + j] == 0xee, "gap %zu of way %d", i, way);
            } else {
                memcpy(whole, in, bytes);
                CHECK(in[bytes] == 0xee, "behind the message of way %d", way);
            }
            long long wrong = first_wrong(whole, bytes, (uint64_t)before << 32 | (uint64_t)tag);
            CHECK(wrong < 0, "byte %lld of way %d", wrong, way);
            hash = hash_bytes(hash, whole, 64);
            MPI_Type_free(&type);
        }
        // One that is longer than its receive.
        int error, class, tag = (int)(round + 16000);
        MPI_Request request;
        MPI_Isend(out, (int)(most * BLOCK), MPI_BYTE, next, tag, MPI_COMM_WORLD, &request);
        memset(in, 0xee, most * BLOCK);
        error = MPI_Recv(in, 100000, MPI_BYTE, before, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Error_class(error, &class);
        CHECK(class == MPI_ERR_TRUNCATE, "%d", class);
        CHECK(in[100000] == 0xee, "behind a message that is too long");
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    MPI_Reduce(&hash, &all, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("rendezvous rounds=%ld hash=%016llx\n", rounds, (unsigned long long)all);
    free(out), free(in), free(whole);
    MPI_Finalize();
    return 0;
}
