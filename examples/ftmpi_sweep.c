/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parameter sweep of sweep.c by FT-MPI's rules (mode SHRINK); any rank may be lost at any moment, also rank 0.
 *
 *   resurgo run --ft-mode shrink -n 4 ./ftmpi_sweep [ROUNDS [STEPS]]
 *
 * A ball is thrown with drag. Each round has more drag, and tries 64 angles around the best angle of the round before.
 * The ranks share the angles. Put your own work into compute().
 *
 * Hardly any code deals with failures. An error handler, set at the start, leaves the call that has failed by longjmp.
 * MPI_Comm_dup makes MPI_COMM_WORLD whole again, without the lost ranks, and the others agree on the round from which
 * they go on. The answer does not depend on the number of ranks, bit for bit.
 */
#include <math.h>
#include <mpi.h>
#include <resurgo_ft.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ANGLES = 64 };

/* The best angle so far, and the ranges of the best throws: before a round. */
struct state {
    double best, sum;
};

static jmp_buf back;
static struct state now = {45.0, 0.0}, former; /* of this round, and of the one before */
static int done = 0;

/* A rank is lost: every call on every rank ends here, whatever it waited for. */
static void failure(MPI_Comm *comm, int *code, ...)
{
    (void)comm;
    longjmp(back, *code);
}

/* Whether collective calls have a closing barrier: they end well for all ranks, or for none. It takes time, and so is
 * only for the end. Under another launcher there is none, and a loss ends the job. */
static void closing(long mode)
{
    const char *library = getenv("LD_PRELOAD"); /* resurgo run --ft-mode names its library there */
    if (library && strstr(library, "libresurgo-ft"))
        MPI_Comm_set_attr(MPI_COMM_WORLD, FTMPI_COLL_MODE, (void *)mode);
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

/* The survivors rebuild MPI_COMM_WORLD. If another rank is lost meanwhile, they begin again here. */
static void recover(void)
{
    MPI_Comm new;
    int least, size, rank;
    MPI_Comm_dup(MPI_COMM_WORLD, &new); /* from now on MPI_COMM_WORLD is the ranks that are left; so is `new` */
    closing(FTMPI_COLL_MODE_LOOSE);     /* some may have come from the end, others from the last round */
    MPI_Allreduce(&done, &least, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (least < done) { /* some rank lacks the results of the last round: nobody is two rounds ahead */
        done = least;
        now = former;
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rank == 0)
        fprintf(stderr, "ftmpi_sweep: a rank is lost; %d ranks go on with round %d\n", size, done);
}

int main(int words, char **word)
{
    MPI_Errhandler handler;
    MPI_Init(&words, &word);
    int rounds = words > 1 ? atoi(word[1]) : 100, steps = words > 2 ? atoi(word[2]) : 2000;
    MPI_Comm_create_errhandler(failure, &handler);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, handler);
    if (setjmp(back))
        recover();

    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    while (done < rounds) {
        double drag = 0.05 * (done + 1) / rounds, angles[ANGLES], ranges[ANGLES];
        for (int at = 0; at < ANGLES; at++) {
            angles[at] = now.best + 0.05 * (at - ANGLES / 2);
            /* Every size-th angle is mine; the others are zero here, so that the sum is exact. */
            ranges[at] = at % size == rank ? compute(angles[at], drag, steps) : 0.0;
        }
        MPI_Allreduce(MPI_IN_PLACE, ranges, ANGLES, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        int most = 0;
        for (int at = 1; at < ANGLES; at++)
            if (ranges[at] > ranges[most])
                most = at;
        former = now;
        now.best = angles[most];
        now.sum = now.sum + ranges[most];
        if (rank == 0 && done % (rounds / 10 + 1) == 0)
            fprintf(stderr, "ftmpi_sweep: round %d of %d is done by %d ranks\n", done, rounds, size);
        done++;
    }

    /* Rank 0 prints. If one is lost before the end of the barrier, it may have been that one: then all go on, and the
     * next rank 0 prints again. */
    closing(FTMPI_COLL_MODE_STRICT);
    if (rank == 0) {
        printf("ftmpi_sweep: %d rounds, best angle %.16e, sum %.16e\n", rounds, now.best, now.sum);
        fflush(stdout);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    /* Who is lost from here on has done its part. */
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Finalize();
    return 0;
}
