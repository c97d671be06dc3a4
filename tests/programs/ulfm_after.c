/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps with messages of several kinds. After each, all agree whether it was good; if it was not, they shrink and repeat
 * it. Every few steps they also agree by requests, whose ends the program looks for. What each rank has received, and how
 * often it looked, goes into a hash. It is sent on with the next message, so a rank that does not repeat what it did is
 * found out.
 *
 *   ulfm_after STEPS [revoke STEP | differ RANK]
 *
 * In that step rank 0 revokes the communicator, without any failure; that rank sends what depends on its process.
 */
#include "ulfm.h"
#include <unistd.h>

static MPI_Comm comm;
static int rank, size, world;
static unsigned long hash = 1469598103934665603ul;

static void mix(unsigned long value)
{
    hash = (hash ^ value) * 1099511628211ul;
}

static int sum(int step)
{
    long all = 0, part = rank + 1 + step;
    int code = MPI_Allreduce(&part, &all, 1, MPI_LONG, MPI_SUM, comm);
    if (!code && all != (long)size * (size + 1) / 2 + (long)size * step)
        end_wrong(rank, size, "sum", step);
    mix(all);
    return code;
}

/* Rank 0 hears the others in any order, and tells them which. */
static int gathered(int step)
{
    unsigned long order[64] = {hash}, got;
    MPI_Status status;
    int code = 0;
    if (rank)
        code = MPI_Send(&hash, 1, MPI_UNSIGNED_LONG, 0, step, comm);
    for (int at = 1; !rank && at < size && !code; at++) {
        code = MPI_Recv(&got, 1, MPI_UNSIGNED_LONG, MPI_ANY_SOURCE, step, comm, &status);
        order[at] = got + status.MPI_SOURCE;
    }
    if (!code)
        code = MPI_Bcast(order, 64, MPI_UNSIGNED_LONG, 0, comm);
    for (int at = 0; at < size; at++)
        mix(order[at]);
    return code;
}

/* Two agreements at once; the program does other things meanwhile. */
static int agreed(void)
{
    int flags[2] = {7, 5}, done = 0, looks = 0, code = 0;
    MPI_Request requests[2];
    MPIX_Comm_iagree(comm, flags, requests);
    MPIX_Comm_iagree(comm, flags + 1, requests + 1);
    while (!done && !code) {
        int found;
        MPI_Iprobe(MPI_ANY_SOURCE, 4711, comm, &found, MPI_STATUS_IGNORE);
        code = MPI_Testall(2, requests, &done, MPI_STATUSES_IGNORE);
        looks++;
    }
    mix(looks);
    if (!code && (flags[0] != 7 || flags[1] != 5))
        end_wrong(rank, size, "agreed", flags[0]);
    return code;
}

int main(int argc, char **argv)
{
    int steps = atoi(argv[1]), shrunk = 0;
    int revoked = argc > 3 && is(argv[2], "revoke") ? atoi(argv[3]) : -1;
    int differs = argc > 3 && is(argv[2], "differ") ? atoi(argv[3]) : -1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &world);
    if (world == differs)
        mix(getpid());
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    for (int step = 0; step < steps;) {
        int code = sum(step);
        if (!code)
            code = gathered(step);
        if (!code && step % 3 == 1)
            code = agreed();
        if (step == revoked && world == 0) {
            revoked = -1;
            code = MPIX_ERR_REVOKED;
        }
        if (code)
            MPIX_Comm_revoke(comm);
        int good = !code;
        if (MPIX_Comm_agree(comm, &good) == MPI_SUCCESS && good) {
            if (world == 1 && step % 10 == 0) {
                printf("step %d\n", step);
                fflush(stdout);
            }
            step++;
            continue;
        }
        MPI_Comm fewer;
        if (MPIX_Comm_shrink(comm, &fewer))
            end_wrong(rank, size, "shrink", step);
        comm = fewer;
        MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
        MPI_Comm_rank(comm, &rank);
        MPI_Comm_size(comm, &size);
        shrunk++;
    }
    printf("rank %d: %d of %d, shrunk %d times\n", world, rank, size, shrunk);
    MPI_Finalize();
    return 0;
}
