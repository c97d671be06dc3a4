// SPDX-License-Identifier: Apache-2.0
// Ranks that start others, work with them, and let them go.   spawn [ROUNDS=6] [CHILDREN=2] [WORK=50]
//
// Rounds take turns: all ranks together start CHILDREN processes; one rank by itself does; all together start two
// programs by MPI_Comm_spawn_multiple, whose processes start one more each. Everyone checks what it gets, and prints a
// hash of it.
#include "check.h"

// What parents and children do together, the same on both sides: sums of doubles over all of them, whose last bits depend
// on their order, and messages between the two sides.
static uint64_t work_together(MPI_Comm other_side, int is_child, long work, long seed)
{
    MPI_Comm all;
    int rank, size, others;
    uint64_t hash = FNV_START;
    MPI_Intercomm_merge(other_side, is_child, &all);
    MPI_Comm_rank(all, &rank);
    MPI_Comm_size(all, &size);
    for (long i = 0; i < work; i++) {
        double mine[3], sums[3], again[3] = {0};
        for (int k = 0; k < 3; k++)
            mine[k] = 1.0 / (1.0 + (double)(mixed((uint64_t)seed + (uint64_t)rank, (uint64_t)(3 * i + k)) % 100003));
        MPI_Allreduce(mine, sums, 3, MPI_DOUBLE, MPI_SUM, all);
        for (int r = 0; r < size; r++)
            for (int k = 0; k < 3; k++)
                again[k] += 1.0 / (1.0 + (double)(mixed((uint64_t)seed + (uint64_t)r, (uint64_t)(3 * i + k)) % 100003));
        for (int k = 0; k < 3; k++)
            CHECK(sums[k] > again[k] * (1 - 1e-12) && sums[k] < again[k] * (1 + 1e-12), "%g, not %g", sums[k], again[k]);
        hash = hash_bytes(hash, sums, sizeof sums);
    }
    MPI_Comm_free(&all);

    // Everyone sends to everyone of the other side; long messages too.
    int own_rank;
    MPI_Comm_rank(other_side, &own_rank);
    MPI_Comm_remote_size(other_side, &others);
    for (long bytes = 1; bytes < 1000000; bytes = bytes * 31 + 7) {
        char *out = allocate((size_t)bytes), *in = allocate((size_t)bytes);
        for (int other = 0; other < others; other++) {
            MPI_Request sending;
            fill(out, (size_t)bytes, (uint64_t)(seed + own_rank));
            MPI_Isend(out, (int)bytes, MPI_CHAR, other, 7, other_side, &sending);
            MPI_Recv(in, (int)bytes, MPI_CHAR, other, 7, other_side, MPI_STATUS_IGNORE);
            MPI_Wait(&sending, MPI_STATUS_IGNORE);
            CHECK(first_wrong(in, (size_t)bytes, (uint64_t)(seed + other)) < 0, "from %d, %ld bytes", other, bytes);
            hash = hash_bytes(hash, in, (size_t)bytes);
        }
        free(out);
        free(in);
    }
    // What arrives first depends on time, and its sum does not.
    long sum = 0;
    MPI_Request requests[64];
    long numbers[64];
    CHECK(others <= 64, "%d", others);
    for (int other = 0; other < others; other++) {
        numbers[other] = own_rank + 1;
        MPI_Isend(&numbers[other], 1, MPI_LONG, other, 8, other_side, &requests[other]);
    }
    for (int other = 0; other < others; other++) {
        long number;
        MPI_Recv(&number, 1, MPI_LONG, MPI_ANY_SOURCE, 8, other_side, MPI_STATUS_IGNORE);
        sum += number;
    }
    MPI_Waitall(others, requests, MPI_STATUSES_IGNORE);
    CHECK(sum == (long)others * (others + 1) / 2, "%ld", sum);
    return hash;
}

static MPI_Comm start(MPI_Comm comm, int root, char *program, int children, long work, long seed, int nested)
{
    char work_text[32], seed_text[32], nested_text[32];
    snprintf(work_text, sizeof work_text, "%ld", work);
    snprintf(seed_text, sizeof seed_text, "%ld", seed);
    snprintf(nested_text, sizeof nested_text, "%d", nested);
    char *arguments[] = {"child", work_text, seed_text, nested_text, NULL};
    MPI_Comm started;
    int errors[64];
    if (nested) {
        char *programs[] = {program, program}, **both[] = {arguments, arguments};
        int counts[] = {1, children};
        MPI_Info infos[] = {MPI_INFO_NULL, MPI_INFO_NULL};
        MPI_Comm_spawn_multiple(2, programs, both, counts, infos, root, comm, &started, errors);
    } else {
        MPI_Comm_spawn(program, arguments, children, MPI_INFO_NULL, root, comm, &started, errors);
    }
    return started;
}

static int child(int argc, char **argv, MPI_Comm parent)
{
    long work = argument(argc, argv, 2, 1), seed = argument(argc, argv, 3, 1), nested = argument(argc, argv, 4, 0);
    int rank, size, *program, found;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_APPNUM, &program, &found);
    CHECK(found && *program == (nested && rank > 0), "program %d", found ? *program : -1);
    uint64_t hash = work_together(parent, 1, work, seed);
    printf("child %d of %d of round %ld: %016llx\n", rank, size, seed, (unsigned long long)hash);
    if (nested) {
        MPI_Comm grandchild = start(MPI_COMM_SELF, 0, argv[0], 1, 3, seed * 1000 + rank, 0);
        hash = work_together(grandchild, 0, 3, seed * 1000 + rank);
        MPI_Comm_disconnect(&grandchild);
        printf("child %d of %d of round %ld: own child %016llx\n", rank, size, seed, (unsigned long long)hash);
    }
    MPI_Comm_disconnect(&parent);
    MPI_Finalize();
    return 0;
}

int main(int argc, char **argv)
{
    MPI_Comm parent;
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_get_parent(&parent);
    if (parent != MPI_COMM_NULL)
        return child(argc, argv, parent);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    long rounds = argument(argc, argv, 1, 6), children = argument(argc, argv, 2, 2), work = argument(argc, argv, 3, 50);
    CHECK(children <= 63, "at most 63 children");
    for (long round = 1; round <= rounds; round++) {
        int alone = round % 3 == 2, chosen = (int)(round % size);
        if (!alone || rank == chosen) {
            MPI_Comm started = start(alone ? MPI_COMM_SELF : MPI_COMM_WORLD, alone ? 0 : chosen, argv[0],
                                     (int)children, work, round, round % 3 == 0);
            uint64_t hash = work_together(started, 0, work, round);
            MPI_Comm_disconnect(&started);
            printf("rank %d of round %ld: %016llx\n", rank, round, (unsigned long long)hash);
        }
        long sum, one = rank + round;
        MPI_Allreduce(&one, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        CHECK(sum == (long)size * (size - 1) / 2 + size * round, "%ld", sum);
    }
    printf("rank %d is done\n", rank);
    MPI_Finalize();
    return 0;
}
