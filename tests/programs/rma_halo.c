// SPDX-License-Identifier: Apache-2.0
// One-sided communication: a heat halo by put and fence, gets, accumulates, locks, post-start-complete-wait.
//   rma_halo [CELLS_PER_RANK=1000] [STEPS=100]
#include "check.h"

static int rank, size, right, left;

// 1-D heat; halos put into the neighbours' windows between fences. The sum of everything stays what it was.
static uint64_t halo(long cells, long steps)
{
    int64_t *now = NULL, *next = allocate((size_t)(cells + 2) * sizeof *next);
    MPI_Win window;
    MPI_Win_allocate((cells + 2) * 8, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &now, &window);
    int64_t before = 0, after = 0, sums[2], totals[2];
    for (long i = 1; i <= cells; i++)
        before += now[i] = (int64_t)(mixed(5, (uint64_t)(rank * cells + i)) >> 20);
    MPI_Win_fence(0, window);
    for (long step = 0; step < steps; step++) {
        MPI_Put(&now[1], 1, MPI_INT64_T, left, cells + 1, 1, MPI_INT64_T, window);
        MPI_Put(&now[cells], 1, MPI_INT64_T, right, 0, 1, MPI_INT64_T, window);
        MPI_Win_fence(0, window);
        // What flows over an edge is the same number seen from both sides: nothing is lost.
        for (long i = 1; i <= cells; i++)
            next[i] = now[i] + (now[i - 1] - now[i]) / 4 - (now[i] - now[i + 1]) / 4;
        memcpy(now + 1, next + 1, (size_t)cells * 8);
        MPI_Win_fence(0, window);
    }
    for (long i = 1; i <= cells; i++)
        after += now[i];
    uint64_t hash = hash_bytes(FNV_START, now + 1, (size_t)cells * 8);
    sums[0] = before, sums[1] = after;
    MPI_Allreduce(sums, totals, 2, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    CHECK(totals[0] == totals[1], "heat was lost: %lld, then %lld", (long long)totals[0], (long long)totals[1]);
    MPI_Win_free(&window);
    free(next);
    return hash;
}

// Long puts and gets, contiguous and strided.
static void long_transfers(void)
{
    enum { COUNT = 300000 };
    double *base, *local = allocate(COUNT * sizeof *local);
    MPI_Win window;
    MPI_Win_allocate(COUNT * 8, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &window);
    for (int i = 0; i < COUNT; i++)
        local[i] = rank + i * 0.5, base[i] = -1;
    MPI_Win_fence(0, window);
    MPI_Put(local, COUNT, MPI_DOUBLE, right, 0, COUNT, MPI_DOUBLE, window);
    MPI_Win_fence(0, window);
    for (int i = 0; i < COUNT; i++)
        CHECK(base[i] == left + i * 0.5, "put element %d is %g", i, base[i]);
    memset(local, 0, COUNT * sizeof *local);
    MPI_Win_fence(0, window);
    MPI_Get(local, COUNT, MPI_DOUBLE, right, 0, COUNT, MPI_DOUBLE, window);
    MPI_Win_fence(0, window);
    for (int i = 0; i < COUNT; i++)
        CHECK(local[i] == rank + i * 0.5, "got element %d is %g", i, local[i]);
    MPI_Datatype strided;
    MPI_Type_vector(COUNT / 10, 1, 10, MPI_DOUBLE, &strided);
    MPI_Type_commit(&strided);
    MPI_Win_fence(0, window);
    for (int i = 0; i < COUNT; i++)
        local[i] = -rank - i;
    MPI_Put(local, COUNT / 10, MPI_DOUBLE, left, 0, 1, strided, window);
    MPI_Win_fence(0, window);
    for (int i = 0; i < COUNT / 10; i++)
        CHECK(base[i * 10] == -right - i && base[i * 10 + 1] == left + (i * 10 + 1) * 0.5, "strided element %d", i);
    MPI_Type_free(&strided);
    MPI_Win_free(&window);
    free(local);
}

// Accumulates from everybody at once; get_accumulate, fetch_and_op, compare_and_swap under locks.
static void atomics(long rounds)
{
    int64_t *base;
    MPI_Win window;
    MPI_Win_allocate(64 * 8, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &window);
    memset(base, 0, 64 * 8);
    MPI_Win_fence(0, window);
    int64_t values[8], one = 1;
    for (int i = 0; i < 8; i++)
        values[i] = rank + i;
    for (int r = 0; r < size; r++)
        MPI_Accumulate(values, 8, MPI_INT64_T, r, 0, 8, MPI_INT64_T, MPI_SUM, window);
    MPI_Win_fence(0, window);
    for (int i = 0; i < 8; i++)
        CHECK(base[i] == (int64_t)size * (size - 1) / 2 + (int64_t)size * i, "sum %d is %lld", i, (long long)base[i]);
    MPI_Win_fence(0, window);

    // Tickets from a counter on rank 0: each one exactly once, whatever the order.
    int64_t mine = 0, all;
    for (long i = 0; i < rounds; i++) {
        int64_t ticket;
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
        MPI_Fetch_and_op(&one, &ticket, MPI_INT64_T, 0, 16, MPI_SUM, window);
        MPI_Win_unlock(0, window);
        CHECK(ticket >= 0 && ticket < rounds * size, "ticket %lld", (long long)ticket);
        mine += ticket;
    }
    MPI_Allreduce(&mine, &all, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    int64_t tickets = rounds * size;
    CHECK(all == tickets * (tickets - 1) / 2, "tickets add up to %lld", (long long)all);

    // A read-modify-write under an exclusive lock.
    for (long i = 0; i < rounds; i++) {
        linger(i, rounds);
        int target = (int)((rank + i) % size);
        int64_t value;
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, target, 0, window);
        MPI_Get(&value, 1, MPI_INT64_T, target, 20, 1, MPI_INT64_T, window);
        MPI_Win_flush(target, window);
        value += 1;
        MPI_Put(&value, 1, MPI_INT64_T, target, 20, 1, MPI_INT64_T, window);
        MPI_Win_unlock(target, window);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, window);
    int64_t counted = base[20], total;
    MPI_Win_unlock(rank, window);
    MPI_Allreduce(&counted, &total, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    CHECK(total == rounds * size, "%lld increments of %lld", (long long)total, (long long)(rounds * size));

    // Everybody tries to be the one; exactly one is.
    int64_t nobody = 0, me = rank + 1, was;
    MPI_Win_lock_all(0, window);
    MPI_Compare_and_swap(&me, &nobody, &was, MPI_INT64_T, 0, 30, window);
    MPI_Win_flush_all(window);
    int64_t winner = was == 0, winners, sums[8];
    MPI_Get_accumulate(values, 8, MPI_INT64_T, sums, 8, MPI_INT64_T, right, 40, 8, MPI_INT64_T, MPI_MAX, window);
    MPI_Win_flush(right, window);
    MPI_Win_unlock_all(window);
    MPI_Allreduce(&winner, &winners, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    CHECK(winners == 1, "%lld winners", (long long)winners);
    CHECK(sums[0] == 0, "get_accumulate had %lld", (long long)sums[0]);
    MPI_Win_free(&window);
}

// Post, start, complete, wait around the ring; request-based operations under lock_all.
static void general_active(long rounds)
{
    int64_t *base;
    MPI_Win window;
    MPI_Win_create(base = calloc(32, 8), 32 * 8, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    MPI_Group world, from, to;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, 1, &left, &from);
    MPI_Group_incl(world, 1, &right, &to);
    for (long i = 0; i < rounds; i++) {
        int64_t value = rank * 1000 + i;
        MPI_Win_post(from, 0, window);
        MPI_Win_start(to, 0, window);
        MPI_Put(&value, 1, MPI_INT64_T, right, i % 32, 1, MPI_INT64_T, window);
        MPI_Win_complete(window);
        MPI_Win_wait(window);
        CHECK(base[i % 32] == left * 1000 + i, "round %ld: %lld", i, (long long)base[i % 32]);
    }
    MPI_Group_free(&world), MPI_Group_free(&from), MPI_Group_free(&to);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock_all(0, window);
    int64_t value = rank, back = -1;
    MPI_Request request;
    MPI_Rput(&value, 1, MPI_INT64_T, right, 5, 1, MPI_INT64_T, window, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Win_flush_all(window);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Rget(&back, 1, MPI_INT64_T, right, 5, 1, MPI_INT64_T, window, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Win_unlock_all(window);
    CHECK(back == rank, "rget %lld", (long long)back);
    MPI_Win_free(&window);
    free(base);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    right = (rank + 1) % size, left = (rank + size - 1) % size;
    long cells = argument(argc, argv, 1, 1000), steps = argument(argc, argv, 2, 100);
    uint64_t hash = halo(cells, steps), all;
    long_transfers();
    atomics(steps);
    general_active(steps);
    MPI_Reduce(&hash, &all, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("rma_halo cells=%ld steps=%ld hash=%016llx\n", cells, steps, (unsigned long long)all);
    MPI_Finalize();
    return 0;
}
