// SPDX-License-Identifier: Apache-2.0
// Solves a dense system of linear equations as the Linpack benchmark does: LU factors with partial pivoting, in blocks
// that lie cyclically on two rows of processes. Prints the seconds, a hash of the solution, and how many messages of
// which size one process sent on average.
//   linpack N BLOCK
#include "check.h"
#include <math.h>

static int rank, size, rows, columns, row, column; // the grid of processes, and the place of this one
static MPI_Comm along_row, along_column;
static int n, nb;
static int height, width; // of this process's part, the right side included
static double *a;         // column by column
static long sent[4];      // messages up to 4 KiB, above 20 KB, above 100 KB, above 1 MB

static void tally(long messages, size_t bytes)
{
    sent[0] += bytes <= 4096 ? messages : 0;
    sent[1] += bytes > 20000 && bytes <= 100000 ? messages : 0;
    sent[2] += bytes > 100000 && bytes <= 1000000 ? messages : 0;
    sent[3] += bytes > 1000000 ? messages : 0;
}

// Of the first `count` rows or columns, how many lie before this process's place `at` of `parts`.
static int part(int count, int at, int parts)
{
    int blocks = count / nb, whole = blocks / parts * nb, rest = blocks % parts;
    return whole + (at < rest ? nb : at == rest ? count % nb : 0);
}

static int owner(int index, int parts)
{
    return index / nb % parts;
}

static int local(int index, int parts)
{
    return index / nb / parts * nb + index % nb;
}

static int global(int index, int at, int parts)
{
    return (index / nb * parts + at) * nb + index % nb;
}

static double entry(int i, int j)
{
    return (double)(mixed(7, (uint64_t)i * (uint64_t)n + (uint64_t)j) >> 11) * 0x1p-53 - 0.5;
}

// Swaps two rows, of which each may lie on another row of processes, in so many columns from `from` on.
static void swap(int one, int other, int from, int count, double *mine, double *theirs)
{
    int of_one = owner(one, rows), of_other = owner(other, rows);
    if (one == other || count == 0 || (row != of_one && row != of_other))
        return;
    double *first = a + (size_t)from * (size_t)height;
    if (of_one == of_other) {
        double *p = first + local(one, rows), *q = first + local(other, rows);
        for (int j = 0; j < count; j++, p += height, q += height) {
            double kept = *p;
            *p = *q, *q = kept;
        }
        return;
    }
    double *p = first + local(row == of_one ? one : other, rows);
    for (int j = 0; j < count; j++)
        mine[j] = p[(size_t)j * (size_t)height];
    int peer = row == of_one ? of_other : of_one;
    tally(1, (size_t)count * sizeof *mine);
    MPI_Sendrecv(mine, count, MPI_DOUBLE, peer, 1, theirs, count, MPI_DOUBLE, peer, 1, along_column, MPI_STATUS_IGNORE);
    for (int j = 0; j < count; j++)
        p[(size_t)j * (size_t)height] = theirs[j];
}

static void share(void *data, size_t bytes, int from, MPI_Comm comm)
{
    int of, me;
    MPI_Comm_size(comm, &of);
    MPI_Comm_rank(comm, &me);
    tally(me == from ? of - 1 : 0, bytes);
    MPI_Bcast(data, (int)bytes, MPI_BYTE, from, comm);
}

// Factors the panel of `count` columns that begins at `k`; its processes are one column of the grid.
static void factor(int k, int count, int *pivots, double *line, double *other)
{
    int first = local(k, columns);
    for (int j = 0; j < count; j++) {
        double *at = a + (size_t)(first + j) * (size_t)height;
        struct {
            double value;
            int index;
        } best = {-1, n};
        for (int i = part(k + j, row, rows); i < height; i++)
            if (fabs(at[i]) > best.value)
                best.value = fabs(at[i]), best.index = global(i, row, rows);
        tally(1, sizeof best);
        MPI_Allreduce(MPI_IN_PLACE, &best, 1, MPI_DOUBLE_INT, MPI_MAXLOC, along_column);
        CHECK(best.value > 0, "the matrix is singular");
        pivots[j] = best.index;
        swap(k + j, best.index, first, count, line, other);
        int holder = owner(k + j, rows);
        if (row == holder)
            for (int l = j; l < count; l++)
                line[l] = a[(size_t)(first + l) * (size_t)height + (size_t)local(k + j, rows)];
        share(line + j, (size_t)(count - j) * sizeof *line, holder, along_column);
        for (int i = part(k + j + 1, row, rows); i < height; i++)
            at[i] /= line[j];
        for (int l = j + 1; l < count; l++) {
            double *to = a + (size_t)(first + l) * (size_t)height;
            for (int i = part(k + j + 1, row, rows); i < height; i++)
                to[i] -= at[i] * line[l];
        }
    }
}

// Subtracts from the part behind the panel the product of the panel's columns and the rows beside it.
static void update(int k, int count, const double *panel, double *beside, int from)
{
    int top = part(k, row, rows), below = part(k + count, row, rows), high = height - top;
    int holder = owner(k, rows), wide = width - from;
    if (row == holder)
        for (int j = 0; j < wide; j++) {
            double *to = a + (size_t)(from + j) * (size_t)height + (size_t)local(k, rows);
            for (int l = 0; l < count; l++)
                for (int i = l + 1; i < count; i++)
                    to[i] -= panel[(size_t)l * (size_t)high + (size_t)i] * to[l];
            memcpy(beside + (size_t)j * (size_t)count, to, (size_t)count * sizeof *to);
        }
    share(beside, (size_t)wide * (size_t)count * sizeof *beside, holder, along_column);
    for (int j = 0; j < wide; j++) {
        double *to = a + (size_t)(from + j) * (size_t)height;
        for (int l = 0; l < count; l++) {
            const double *by = panel + (size_t)l * (size_t)high - top;
            double factor = beside[(size_t)j * (size_t)count + (size_t)l];
            for (int i = below; i < height; i++)
                to[i] -= by[i] * factor;
        }
    }
}

static void decompose(void)
{
    int *pivots = allocate((size_t)nb * sizeof *pivots);
    double *line = allocate((size_t)(width + nb) * sizeof *line), *other = allocate((size_t)(width + nb) * sizeof *other);
    double *panel = allocate((size_t)(height + 1) * (size_t)nb * sizeof *panel);
    double *beside = allocate((size_t)(width + 1) * (size_t)nb * sizeof *beside);
    for (int k = 0; k < n; k += nb) {
        int count = n - k < nb ? n - k : nb, holder = owner(k, columns), top = part(k, row, rows), high = height - top;
        if (column == holder) {
            factor(k, count, pivots, line, other);
            for (int l = 0; l < count; l++)
                memcpy(panel + (size_t)l * (size_t)high, a + (size_t)(local(k, columns) + l) * (size_t)height + top,
                       (size_t)high * sizeof *panel);
        }
        share(pivots, (size_t)count * sizeof *pivots, holder, along_row);
        share(panel, (size_t)high * (size_t)count * sizeof *panel, holder, along_row);
        int from = part(k + count, column, columns);
        for (int j = 0; j < count; j++)
            swap(k + j, pivots[j], from, width - from, line, other);
        update(k, count, panel, beside, from);
    }
    free(pivots), free(line), free(other), free(panel), free(beside);
}

// Solves with the upper factor; the right side is the last column.
static void substitute(double *x)
{
    double *right = allocate((size_t)(height + 1) * sizeof *right), *done = allocate((size_t)(height + 1) * sizeof *done);
    double *block = allocate((size_t)nb * sizeof *block);
    int holder = owner(n, columns);
    if (column == holder)
        memcpy(right, a + (size_t)local(n, columns) * (size_t)height, (size_t)height * sizeof *right);
    share(right, (size_t)height * sizeof *right, holder, along_row);
    memset(done, 0, (size_t)(height + 1) * sizeof *done);
    for (int k = (n - 1) / nb * nb; k >= 0; k -= nb) {
        int count = n - k < nb ? n - k : nb, of_row = owner(k, rows), of_column = owner(k, columns);
        const double *u = a + (size_t)local(k, columns) * (size_t)height;
        if (row == of_row) {
            double *own = right + local(k, rows);
            tally(column != of_column, (size_t)count * sizeof *own);
            MPI_Reduce(done + local(k, rows), block, count, MPI_DOUBLE, MPI_SUM, of_column, along_row);
            for (int i = count - 1; column == of_column && i >= 0; i--) {
                const double *by = u + (size_t)i * (size_t)height + local(k, rows) + i;
                x[k + i] = own[i] - block[i];
                for (int l = i + 1; l < count; l++)
                    x[k + i] -= by[(size_t)(l - i) * (size_t)height] * x[k + l];
                x[k + i] /= by[0];
            }
        }
        share(x + k, (size_t)count * sizeof *x, of_row * columns + of_column, MPI_COMM_WORLD);
        for (int l = 0; column == of_column && l < count; l++)
            for (int i = 0; i < part(k, row, rows); i++)
                done[i] += u[(size_t)l * (size_t)height + (size_t)i] * x[k + l];
    }
    free(right), free(done), free(block);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    CHECK(argc > 2, "linpack N BLOCK");
    n = (int)argument(argc, argv, 1, 1), nb = (int)argument(argc, argv, 2, 1);
    rows = size % 2 ? 1 : 2, columns = size / rows;
    row = rank / columns, column = rank % columns;
    MPI_Comm_split(MPI_COMM_WORLD, row, column, &along_row);
    MPI_Comm_split(MPI_COMM_WORLD, column, row, &along_column);
    height = part(n, row, rows), width = part(n + 1, column, columns);
    a = allocate((size_t)(height + 1) * (size_t)(width + 1) * sizeof *a);
    for (int j = 0; j < width; j++)
        for (int i = 0; i < height; i++) {
            int across = global(j, column, columns), down = global(i, row, rows);
            double *at = a + (size_t)j * (size_t)height + (size_t)i;
            *at = across < n ? entry(down, across) : 0;
            for (int l = 0; across == n && l < n; l++) // the solution is 1 everywhere
                *at += entry(down, l);
        }
    double *x = allocate((size_t)n * sizeof *x);
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    decompose();
    substitute(x);
    MPI_Barrier(MPI_COMM_WORLD);
    double seconds = MPI_Wtime() - start;
    for (int i = 0; rank == 0 && i < n; i++)
        CHECK(fabs(x[i] - 1) < 1e-6, "unknown %d is %g", i, x[i]);
    long all[4];
    MPI_Reduce(sent, all, 4, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%.6f %016llx %ld %ld %ld %ld\n", seconds, (unsigned long long)hash_bytes(FNV_START, x, (size_t)n * sizeof *x),
               all[0] / size, all[1] / size, all[2] / size, all[3] / size);
    free(a), free(x);
    MPI_Finalize();
    return 0;
}
