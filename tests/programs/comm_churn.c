// SPDX-License-Identifier: Apache-2.0
// Communicators made, used and freed over and over.   comm_churn [ROUNDS=200]
#include "check.h"

static uint64_t hash = FNV_START;

// A sum and a ring inside `comm`; `members` of them know the world ranks they expect to add up.
static void use(MPI_Comm comm, int world_rank, long expected)
{
    int rank, size, left;
    long mine = world_rank, sum;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    MPI_Allreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, comm);
    CHECK(sum == expected, "sum %ld, not %ld", sum, expected);
    MPI_Sendrecv(&rank, 1, MPI_INT, (rank + 1) % size, 5, &left, 1, MPI_INT, (rank + size - 1) % size, 5, comm,
                 MPI_STATUS_IGNORE);
    CHECK(left == (rank + size - 1) % size, "left neighbour %d", left);
    hash = hash_bytes(hash, &sum, sizeof sum);
}

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    long rounds = argument(argc, argv, 1, 200);
    long everyone = (long)size * (size - 1) / 2;
    for (long round = 0; round < rounds; round++) {
        linger(round, rounds);
        int colours = 1 + (int)(round % 3);
        MPI_Comm part, twin, later, group_comm, shifted;
        MPI_Comm_split(MPI_COMM_WORLD, rank % colours, -rank, &part);
        long expected = 0;
        for (int r = rank % colours; r < size; r += colours)
            expected += r;
        use(part, rank, expected);

        MPI_Comm_dup(part, &twin);
        MPI_Request request;
        MPI_Comm_idup(part, &later, &request);
        MPI_Comm_free(&part);
        use(twin, rank, expected);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        use(later, rank, expected);
        MPI_Comm_free(&later);

        // A group of the lower half, made without the others.
        int half = (size + 1) / 2, range[1][3] = {{0, half - 1, 1}};
        MPI_Group world, lower;
        MPI_Comm_group(MPI_COMM_WORLD, &world);
        MPI_Group_range_incl(world, 1, range, &lower);
        if (rank < half) {
            MPI_Comm_create_group(MPI_COMM_WORLD, lower, (int)(round % 7), &group_comm);
            use(group_comm, rank, (long)half * (half - 1) / 2);
            MPI_Comm_free(&group_comm);
        }
        MPI_Group_free(&lower);
        MPI_Group_free(&world);

        // Two halves talk over an intercommunicator, then become one.
        if (size >= 2) {
            MPI_Comm side, across, merged;
            int low = rank < half;
            MPI_Comm_split(MPI_COMM_WORLD, low, rank, &side);
            MPI_Intercomm_create(side, 0, MPI_COMM_WORLD, low ? half : 0, 77, &across);
            long mine = rank, theirs;
            MPI_Allreduce(&mine, &theirs, 1, MPI_LONG, MPI_SUM, across);
            long lower_sum = (long)half * (half - 1) / 2;
            CHECK(theirs == (low ? everyone - lower_sum : lower_sum), "the other side has %ld", theirs);
            MPI_Intercomm_merge(across, low, &merged);
            use(merged, rank, everyone);
            MPI_Comm_free(&merged);
            MPI_Comm_free(&across);
            MPI_Comm_free(&side);
        }

        int dims[1] = {size}, periods[1] = {1};
        MPI_Cart_create(MPI_COMM_WORLD, 1, dims, periods, 1, &shifted);
        use(shifted, rank, everyone);
        MPI_Comm_free(&shifted);
        MPI_Comm_free(&twin);
    }
    uint64_t all;
    MPI_Reduce(&hash, &all, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("comm_churn rounds=%ld hash=%016llx\n", rounds, (unsigned long long)all);
    MPI_Finalize();
    return 0;
}
