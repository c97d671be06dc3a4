/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conjugate gradients with checkpoints in memory; any rank may be lost at any moment, also rank 0.
 *
 *   resurgo run --ft -n 4 ./cg [N [STEPS]]
 *
 * Solves the Laplace equation on N x N points. The matrix is not stored. The lines of the grid form 24 blocks. Each
 * rank has some neighbouring blocks; with fewer ranks each has more.
 *
 * - Every 20 steps all ranks make a checkpoint: each keeps a copy of its blocks, and another rank has one, too.
 * - After a loss the ranks that are left share the blocks anew, and each asks for the numbers of its blocks. Those of a
 *   lost rank come from its partner. If both are lost, all begin again.
 * - Sums are made block by block, in the same order with any number of ranks. So the answer is the same, bit for bit.
 */
#include <mpi-ext.h>
#include <mpi.h>
#include <resurgo_ft.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 24, EVERY = 20 };

static MPI_Comm comm;
static int rank, size;

static int n, block;           /* points in a line, and in a block */
static int first, last;        /* my blocks: first, first + 1, ..., last - 1 */
static double *x, *r, *p, *q;  /* of my blocks; p points behind one more line, and has another at the end */
static double *memory;         /* where they are */
static double rho, norm;       /* r * r; in the end x * x */
static int step;

/* good(), all_good() and shrink(): as in sweep.c, which explains them. */

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
    fprintf(stderr, "cg: %s\n", text);
    MPI_Abort(comm, 1);
    return 0;
}

static int all_good(int flag)
{
    const char *library = getenv("LD_PRELOAD");
    if (!library || !strstr(library, "libresurgo-ft")) {
        MPI_Allreduce(MPI_IN_PLACE, &flag, 1, MPI_INT, MPI_LAND, comm);
        return flag;
    }
    return MPIX_Comm_agree(comm, &flag) == MPI_SUCCESS && flag;
}

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

/* ---- Checkpoints. ---- */

static int save(void)
{
    return good(resurgo_ft_checkpoint(comm, step, RESURGO_FT_PARTNER, 1));
}

static int dot(const double *a, const double *b, double *sum);

/* Shares the blocks among the ranks and fills them: from the last checkpoint, or as they are at first. */
static int restore(void)
{
    first = rank * BLOCKS / size;
    last = (rank + 1) * BLOCKS / size;
    size_t mine = (size_t)(last - first) * block;
    free(memory);
    memory = calloc(4 * mine + 2 * n, sizeof *memory);
    x = memory, r = x + mine, q = r + mine, p = q + mine + n;
    double *vectors[] = {x, r, p};
    /* Each block of each vector has a number of its own, whichever rank it belongs to. */
    resurgo_ft_unprotect(RESURGO_FT_ALL);
    for (int at = first; at < last; at++)
        for (int which = 0; which < 3; which++)
            resurgo_ft_protect(3 * at + which, vectors[which] + (size_t)(at - first) * block, block, MPI_DOUBLE);
    resurgo_ft_protect(3 * BLOCKS, &rho, 1, MPI_DOUBLE);
    int code = resurgo_ft_restore(comm, &step), is_new = code == RESURGO_FT_NOTHING || code == RESURGO_FT_LOST;
    if (!is_new && !good(code))
        return 0;
    if (is_new)
        step = 0;
    if (rank == 0)
        fprintf(stderr, "cg: %d ranks go on from step %d\n", size, step);
    if (!is_new)
        return 1;
    for (size_t at = 0; at < mine; at++)
        r[at] = p[at] = 1.0; /* x is zero, so that r is the right side */
    return dot(r, r, &rho);
}

/* ---- The solver. Each function tells whether all calls of MPI have succeeded. ---- */

/* Every rank adds the same numbers in the same order: a sum for each block. Those of other ranks are zero here. */
static int dot(const double *a, const double *b, double *sum)
{
    double sums[BLOCKS] = {0};
    for (int at = first; at < last; at++, a += block, b += block)
        for (int point = 0; point < block; point++)
            sums[at] += a[point] * b[point];
    if (!good(MPI_Allreduce(MPI_IN_PLACE, sums, BLOCKS, MPI_DOUBLE, MPI_SUM, comm)))
        return 0;
    *sum = 0.0;
    for (int at = 0; at < BLOCKS; at++)
        *sum += sums[at];
    return 1;
}

/* q = A p, with lines of neighbours above and below. There is nothing (zero) around the grid. */
static int multiply(void)
{
    int above = rank > 0 ? rank - 1 : MPI_PROC_NULL, below = rank < size - 1 ? rank + 1 : MPI_PROC_NULL;
    int lines = (last - first) * (block / n);
    double *end = p + (size_t)lines * n;
    if (!good(MPI_Sendrecv(p, n, MPI_DOUBLE, above, 1, end, n, MPI_DOUBLE, below, 1, comm, MPI_STATUS_IGNORE)) ||
        !good(MPI_Sendrecv(end - n, n, MPI_DOUBLE, below, 2, p - n, n, MPI_DOUBLE, above, 2, comm, MPI_STATUS_IGNORE)))
        return 0;
    for (int line = 0; line < lines; line++) {
        const double *here = p + (size_t)line * n;
        for (int at = 0; at < n; at++) {
            double left = at > 0 ? here[at - 1] : 0.0, right = at < n - 1 ? here[at + 1] : 0.0;
            q[(size_t)line * n + at] = 4.0 * here[at] - left - right - here[at - n] - here[at + n];
        }
    }
    return 1;
}

static int iterate(int until)
{
    size_t mine = (size_t)(last - first) * block;
    for (; step < until; step++) {
        double pq, next;
        if (!multiply() || !dot(p, q, &pq))
            return 0;
        double alpha = rho / pq;
        for (size_t at = 0; at < mine; at++) {
            x[at] += alpha * p[at];
            r[at] -= alpha * q[at];
        }
        if (!dot(r, r, &next))
            return 0;
        for (size_t at = 0; at < mine; at++)
            p[at] = r[at] + next / rho * p[at];
        rho = next;
    }
    return dot(x, x, &norm);
}

int main(int words, char **word)
{
    MPI_Init(&words, &word);
    n = words > 1 ? atoi(word[1]) : 480;
    int steps = words > 2 ? atoi(word[2]) : 500;
    block = n / BLOCKS * n;
    /* A communicator of our own. Lost ranks leave messages that nobody receives; in MPI_COMM_WORLD these would make
     * MPI_Finalize fail. Before this, the loss of a rank ends the job. */
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    if (n < BLOCKS || n % BLOCKS || size > BLOCKS) {
        if (rank == 0)
            fprintf(stderr, "cg: N must be a multiple of %d, and there may be %d ranks\n", BLOCKS, BLOCKS);
        MPI_Finalize();
        return 2;
    }
    /* From now on calls return errors. Otherwise the first loss would end the job. */
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);

    for (int fine = restore();;) {
        fine = fine && save();
        if (!all_good(fine)) {
            shrink();
            fine = restore();
            continue;
        }
        if (step >= steps)
            break;
        if (rank == 0 && step / EVERY % (steps / EVERY / 10 + 1) == 0)
            fprintf(stderr, "cg: step %d of %d is saved\n", step, steps);
        fine = iterate(step + EVERY < steps ? step + EVERY : steps);
    }

    /* The lowest rank prints. If one is lost meanwhile, it may have been that one: then the next prints again. */
    for (;;) {
        if (rank == 0) {
            printf("cg: %d x %d, %d steps, r*r %.16e, x*x %.16e\n", n, n, steps, rho, norm);
            fflush(stdout);
        }
        if (all_good(1))
            break;
        shrink();
    }
    MPI_Finalize();
    return 0;
}
