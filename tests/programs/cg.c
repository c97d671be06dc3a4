// SPDX-License-Identifier: Apache-2.0
// Conjugate gradient for the 5-point Laplacian on an n x n grid, rows shared out among the ranks: a neighbour's row and
// two sums over all ranks in each iteration, as in CG of the NAS benchmarks.
// The true residual at the end must agree with the one the recurrence carried.
//   cg [N=256] [ITERATIONS=200]
//   cg S|W|A        1 to 16 ranks
#include "kernel.h"
#include <math.h>

enum { BLOCKS = 16 };

static const Class CLASSES[] = {
    {"S", 128, 150, UINT64_C(0x136ddfc7ba352ef5)},
    {"W", 512, 600, UINT64_C(0x22d79b1ce068a6c4)},
    {"A", 1024, 6000, UINT64_C(0x4689c2ecd6164c8b)},
    {0},
};

static int rank, size, blocks;
static long n;

// The sum over all ranks is added up block by block, whoever has them: it is the same on any number of ranks.
static double dot(const double *a, const double *b)
{
    double sums[blocks], all[blocks], total = 0;
    memset(sums, 0, sizeof sums);
    for (int block = part_of(blocks, size, rank); block < part_of(blocks, size, rank + 1); block++)
        for (long i = part_of(n, blocks, block) * n; i < part_of(n, blocks, block + 1) * n; i++)
            sums[block] += *a++ * *b++;
    MPI_Allreduce(sums, all, blocks, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    for (int block = 0; block < blocks; block++)
        total += all[block];
    return total;
}

// out = A v. `v` has one ghost row before and one after its `rows` rows of n.
static void apply(double *v, double *out, long rows)
{
    int up = rank > 0 ? rank - 1 : MPI_PROC_NULL;
    int down = rank < size - 1 ? rank + 1 : MPI_PROC_NULL;
    MPI_Request requests[4];
    MPI_Irecv(v, (int)n, MPI_DOUBLE, up, 1, MPI_COMM_WORLD, &requests[0]);
    MPI_Irecv(v + (rows + 1) * n, (int)n, MPI_DOUBLE, down, 2, MPI_COMM_WORLD, &requests[1]);
    MPI_Isend(v + n, (int)n, MPI_DOUBLE, up, 2, MPI_COMM_WORLD, &requests[2]);
    MPI_Isend(v + rows * n, (int)n, MPI_DOUBLE, down, 1, MPI_COMM_WORLD, &requests[3]);
    MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
    for (long i = 1; i <= rows; i++)
        for (long j = 0; j < n; j++) {
            const double *c = v + i * n + j;
            double sum = 4 * c[0] - c[-n] - c[n];
            if (j > 0)
                sum -= c[-1];
            if (j < n - 1)
                sum -= c[1];
            out[(i - 1) * n + j] = sum;
        }
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const Class *class = argc == 2 ? class_of(argc, argv, CLASSES) : NULL;
    n = class ? class->n : argument(argc, argv, 1, 256);
    long iterations = class ? class->steps : argument(argc, argv, 2, 200);
    if (class && size > BLOCKS)
        REFUSE(rank, "cg: %d ranks; the classes run on 1 to %d\n", size, BLOCKS);
    blocks = size > BLOCKS ? size : BLOCKS;
    if (n < blocks)
        REFUSE(rank, "cg: %ld rows are too few, or there is no class %s; usage: cg [N] [ITERATIONS] or cg S|W|A\n", n,
               argc > 1 ? argv[1] : "");
    long first = part_of(n, blocks, (int)part_of(blocks, size, rank));
    long rows = part_of(n, blocks, (int)part_of(blocks, size, rank + 1)) - first, count = rows * n;

    double *x = calloc((size_t)((rows + 2) * n), sizeof *x);
    double *p = calloc((size_t)((rows + 2) * n), sizeof *p);
    double *b = allocate((size_t)count * sizeof *b);
    double *r = allocate((size_t)count * sizeof *r);
    double *q = allocate((size_t)count * sizeof *q);
    CHECK(x && p, "out of memory");
    for (long i = 0; i < count; i++) {
        b[i] = (double)(mixed(1, (uint64_t)(first * n + i)) >> 40) / (1 << 24) - 0.5;
        r[i] = p[n + i] = b[i];
    }
    double start = dot(b, b), rho = start;
    for (long k = 0; k < iterations; k++) {
        linger(k, iterations);
        apply(p, q, rows);
        double alpha = rho / dot(p + n, q);
        for (long i = 0; i < count; i++) {
            x[n + i] += alpha * p[n + i];
            r[i] -= alpha * q[i];
        }
        double next = dot(r, r), beta = next / rho;
        rho = next;
        for (long i = 0; i < count; i++)
            p[n + i] = r[i] + beta * p[n + i];
        if (rho < start * 1e-24)
            break;
    }
    apply(x, q, rows);
    for (long i = 0; i < count; i++)
        q[i] = b[i] - q[i];
    double residual = sqrt(dot(q, q) / start), carried = sqrt(rho / start);
    CHECK(fabs(residual - carried) <= 1e-6 * carried + 1e-12, "%g against %g", residual, carried);
    double norm = sqrt(dot(x + n, x + n));
    if (class) {
        uint64_t mine = 0;
        for (long i = 0; i < count; i++)
            mine += verified((uint64_t)(first * n + i), x[n + i]);
        verify("cg", class, mine, rank);
    } else if (rank == 0)
        printf("cg n=%ld iterations=%ld residual=%.17g norm=%.17g\n", n, iterations, carried, norm);
    free(x), free(p), free(b), free(r), free(q);
    MPI_Finalize();
    return 0;
}
