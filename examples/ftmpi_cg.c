/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The conjugate gradients of cg.c by FT-MPI's rules (mode REBUILD): new ranks come for lost ones.
 *
 *   resurgo run --ft-mode rebuild -n 4 ./ftmpi_cg [N [STEPS]]
 *
 * Solves the Laplace equation on N x N points. The matrix is not stored. The lines of the grid form 24 blocks, and each
 * rank has some neighbouring ones.
 *
 * - Every 20 steps all ranks make a checkpoint: each keeps a copy of its blocks, and another rank has one, too.
 * - When a rank is lost, an error handler leaves the call that has failed by longjmp. MPI_Comm_dup starts a new rank in
 *   its place, which begins the program from its start. Then all ranks get their blocks of the last checkpoint, the new
 *   one those of the lost rank. If that and its partner are lost, all begin again.
 */
#include <mpi.h>
#include <resurgo_ft.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 24, EVERY = 20 };

static jmp_buf back;
static int rank, size;
static int n, block;          /* points in a line, and in a block */
static int first, last;       /* my blocks: first, first + 1, ..., last - 1 */
static double *x, *r, *p, *q; /* of my blocks; p points behind one more line, and has another at the end */
static double rho, norm;      /* r * r; in the end x * x */
static int step;

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

/* Every rank adds the same numbers in the same order: a sum for each block. Those of other ranks are zero here. */
static double dot(const double *a, const double *b)
{
    double sums[BLOCKS] = {0}, sum = 0.0;
    for (int at = first; at < last; at++, a += block, b += block)
        for (int point = 0; point < block; point++)
            sums[at] += a[point] * b[point];
    MPI_Allreduce(MPI_IN_PLACE, sums, BLOCKS, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    for (int at = 0; at < BLOCKS; at++)
        sum += sums[at];
    return sum;
}

/* q = A p, with lines of neighbours above and below. There is nothing (zero) around the grid. */
static void multiply(void)
{
    int above = rank > 0 ? rank - 1 : MPI_PROC_NULL, below = rank < size - 1 ? rank + 1 : MPI_PROC_NULL;
    int lines = (last - first) * (block / n);
    double *end = p + (size_t)lines * n;
    MPI_Sendrecv(p, n, MPI_DOUBLE, above, 1, end, n, MPI_DOUBLE, below, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv(end - n, n, MPI_DOUBLE, below, 2, p - n, n, MPI_DOUBLE, above, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (int line = 0; line < lines; line++) {
        const double *here = p + (size_t)line * n;
        for (int at = 0; at < n; at++) {
            double left = at > 0 ? here[at - 1] : 0.0, right = at < n - 1 ? here[at + 1] : 0.0;
            q[(size_t)line * n + at] = 4.0 * here[at] - left - right - here[at - n] - here[at + n];
        }
    }
}

static void iterate(int until)
{
    size_t mine = (size_t)(last - first) * block;
    for (; step < until; step++) {
        multiply();
        double alpha = rho / dot(p, q);
        for (size_t at = 0; at < mine; at++) {
            x[at] += alpha * p[at];
            r[at] -= alpha * q[at];
        }
        double next = dot(r, r);
        for (size_t at = 0; at < mine; at++)
            p[at] = r[at] + next / rho * p[at];
        rho = next;
    }
}

/* Memory for my blocks, of which checkpoints keep three vectors and a number. */
static void prepare(void)
{
    first = rank * BLOCKS / size;
    last = (rank + 1) * BLOCKS / size;
    size_t mine = (size_t)(last - first) * block;
    double *memory = calloc(4 * mine + 2 * n, sizeof *memory);
    x = memory, r = x + mine, q = r + mine, p = q + mine + n;
    resurgo_ft_protect(0, x, mine, MPI_DOUBLE);
    resurgo_ft_protect(1, r, mine, MPI_DOUBLE);
    resurgo_ft_protect(2, p, mine, MPI_DOUBLE);
    resurgo_ft_protect(3, &rho, 1, MPI_DOUBLE);
}

/* My blocks as they were at the last checkpoint, or at first. */
static void restore(void)
{
    size_t mine = (size_t)(last - first) * block;
    int code = resurgo_ft_restore(MPI_COMM_WORLD, &step);
    int begins = code == RESURGO_FT_NOTHING || code == RESURGO_FT_LOST;
    if (begins) {
        step = 0;
        for (size_t at = 0; at < mine; at++) {
            x[at] = 0.0;
            r[at] = p[at] = 1.0; /* x is zero, so that r is the right side */
        }
    }
    if (rank == 0)
        fprintf(stderr, "ftmpi_cg: %d ranks go on from step %d\n", size, step);
    if (begins)
        rho = dot(r, r);
}

int main(int words, char **word)
{
    MPI_Errhandler handler;
    MPI_Comm new;
    int is_new = MPI_Init(&words, &word) == MPI_INIT_RESTARTED_NODE;
    n = words > 1 ? atoi(word[1]) : 480;
    int steps = words > 2 ? atoi(word[2]) : 500;
    block = n / BLOCKS * n;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (n < BLOCKS || n % BLOCKS || size > BLOCKS) {
        if (rank == 0)
            fprintf(stderr, "ftmpi_cg: N must be a multiple of %d, and there may be %d ranks\n", BLOCKS, BLOCKS);
        MPI_Finalize();
        return 2;
    }
    MPI_Comm_create_errhandler(failure, &handler);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, handler);
    if (is_new)
        fprintf(stderr, "ftmpi_cg: rank %d is new\n", rank);
    prepare();
    if (setjmp(back))
        MPI_Comm_dup(MPI_COMM_WORLD, &new); /* all places are taken again; new ranks come from MPI_Init */
    closing(FTMPI_COLL_MODE_LOOSE);
    restore();
    while (step < steps) {
        resurgo_ft_checkpoint(MPI_COMM_WORLD, step, RESURGO_FT_PARTNER, 1);
        if (rank == 0 && step / EVERY % (steps / EVERY / 10 + 1) == 0)
            fprintf(stderr, "ftmpi_cg: step %d of %d is saved\n", step, steps);
        iterate(step + EVERY < steps ? step + EVERY : steps);
    }
    norm = dot(x, x);

    /* Rank 0 prints. If one is lost before the end of the barrier, all go on from the last checkpoint, and it prints
     * again. */
    closing(FTMPI_COLL_MODE_STRICT);
    if (rank == 0) {
        printf("ftmpi_cg: %d x %d, %d steps, r*r %.16e, x*x %.16e\n", n, n, steps, rho, norm);
        fflush(stdout);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    /* Who is lost from here on has done its part. */
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Finalize();
    return 0;
}
