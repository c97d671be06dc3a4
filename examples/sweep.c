/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A parameter sweep in rounds; any rank may be lost at any moment, also rank 0.
 *
 *   resurgo run --ft -n 4 ./sweep [ROUNDS [STEPS]]
 *
 * A ball is thrown with drag. Each round has more drag, and tries 64 angles around the best angle of the round before.
 * The ranks share the angles. STEPS is the number of time steps for one second of flight. Put your own work into
 * compute().
 *
 * After each round the ranks agree whether all of them have its results. If not, those that are left shrink the
 * communicator and repeat the round. All ranks know all results, so that a lost rank takes nothing with it but its part
 * of one round. The answer does not depend on the number of ranks, bit for bit.
 */
#include <math.h>
#include <mpi-ext.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ANGLES = 64 };

static MPI_Comm comm;
static int rank, size;

/* Whether a call has succeeded. If a process is lost, this rank revokes the communicator: others may be waiting in it
 * for this rank. Any other error is a mistake in the program. */
static int good(int code)
{
    int class, length;
    char text[MPI_MAX_ERROR_STRING];
    if (code == MPI_SUCCESS)
        return 1;
    MPI_Error_class(code, &class);
    if (class == MPIX_ERR_PROC_FAILED || class == MPIX_ERR_REVOKED) {
        MPIX_Comm_revoke(comm);
        return 0;
    }
    MPI_Error_string(code, text, &length);
    fprintf(stderr, "sweep: %s\n", text);
    MPI_Abort(comm, 1);
    return 0;
}

/* Whether all ranks say that all is well, and nobody is lost. Every rank gets the same answer, although others may be
 * lost in the middle of it. No other call promises that. */
static int all_good(int flag)
{
    const char *library = getenv("LD_PRELOAD"); /* resurgo run --ft names its library there */
    if (!library || !strstr(library, "libresurgo-ft")) {
        /* Under another launcher a loss ends the job, and MPICH alone has no agreement. */
        MPI_Allreduce(MPI_IN_PLACE, &flag, 1, MPI_INT, MPI_LAND, comm);
        return flag;
    }
    return MPIX_Comm_agree(comm, &flag) == MPI_SUCCESS && flag;
}

/* A communicator of the ranks that are left. */
static void shrink(void)
{
    MPI_Comm fewer;
    if (MPIX_Comm_shrink(comm, &fewer) != MPI_SUCCESS)
        MPI_Abort(comm, 1);
    MPI_Comm_free(&comm);
    comm = fewer;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
}

/* How far a ball flies that is thrown at this angle (in degrees), with this drag. */
static double compute(double angle, double drag, int steps)
{
    double radians = angle * (3.141592653589793 / 180.0), step = 1.0 / steps;
    double x = 0.0, y = 0.0, across = 30.0 * cos(radians), up = 30.0 * sin(radians);
    while (y >= 0.0) {
        double slower = drag * sqrt(across * across + up * up);
        across = across - step * (slower * across);
        up = up - step * (slower * up + 9.81);
        x = x + step * across;
        y = y + step * up;
    }
    return x;
}

int main(int words, char **word)
{
    MPI_Init(&words, &word);
    int rounds = words > 1 ? atoi(word[1]) : 100, steps = words > 2 ? atoi(word[2]) : 2000;
    /* A communicator of our own. Lost ranks leave messages that nobody receives; in MPI_COMM_WORLD these would make
     * MPI_Finalize fail. Before this, the loss of a rank ends the job. */
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    /* From now on calls return errors. Otherwise the first loss would end the job. */
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);

    double best = 45.0, sum = 0.0; /* the best angle so far; the ranges of the best throws */
    for (int round = 0; round < rounds;) {
        double drag = 0.05 * (round + 1) / rounds, angles[ANGLES], ranges[ANGLES];
        for (int at = 0; at < ANGLES; at++) {
            angles[at] = best + 0.05 * (at - ANGLES / 2);
            /* Every size-th angle is mine; the others are zero here, so that the sum is exact. */
            ranges[at] = at % size == rank ? compute(angles[at], drag, steps) : 0.0;
        }
        int done = good(MPI_Allreduce(MPI_IN_PLACE, ranges, ANGLES, MPI_DOUBLE, MPI_SUM, comm));
        if (!all_good(done)) {
            shrink();
            if (rank == 0)
                fprintf(stderr, "sweep: a rank is lost; round %d begins again with %d ranks\n", round, size);
            continue;
        }
        /* Now every rank has the results, and knows that all others have them. */
        int most = 0;
        for (int at = 1; at < ANGLES; at++)
            if (ranges[at] > ranges[most])
                most = at;
        best = angles[most];
        sum = sum + ranges[most];
        if (rank == 0 && round % (rounds / 10 + 1) == 0)
            fprintf(stderr, "sweep: round %d of %d is done by %d ranks\n", round, rounds, size);
        round++;
    }

    /* The lowest rank prints. If one is lost meanwhile, it may have been that one: then the next prints again. */
    for (;;) {
        if (rank == 0) {
            printf("sweep: %d rounds, best angle %.16e, sum %.16e\n", rounds, best, sum);
            fflush(stdout);
        }
        if (all_good(1))
            break;
        shrink();
    }
    MPI_Finalize();
    return 0;
}
