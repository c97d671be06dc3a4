// SPDX-License-Identifier: Apache-2.0
// Conjugate gradient for the 5-point Laplacian on an n x n grid, rows shared out among the ranks.
// The true residual at the end must agree with the one the recurrence carried.
//   cg [N=256] [ITERATIONS=200]
#include "check.h"
#include <math.h>

static int rank, size;

static double dot(const double *a, const double *b, long count)
{
    double mine = 0, all;
    for (long i = 0; i < count; i++)
        mine += a[i] * b[i];
    MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

// out = A v. `v` has one ghost row before and one after its `rows` rows of n.
static void apply(double *v, double *out, long rows, long n)
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
    long n = argument(argc, argv, 1, 256);
    long iterations = argument(argc, argv, 2, 200);
    CHECK(n >= size, "fewer rows than ranks");
    long first = n * rank / size, rows = n * (rank + 1) / size - first, count = rows * n;

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
    double start = dot(b, b, count), rho = start;
    for (long k = 0; k < iterations; k++) {
        apply(p, q, rows, n);
        double alpha = rho / dot(p + n, q, count);
        for (long i = 0; i < count; i++) {
            x[n + i] += alpha * p[n + i];
            r[i] -= alpha * q[i];
        }
        double next = dot(r, r, count), beta = next / rho;
        rho = next;
        for (long i = 0; i < count; i++)
            p[n + i] = r[i] + beta * p[n + i];
        if (rho < start * 1e-24)
            break;
    }
    apply(x, q, rows, n);
    for (long i = 0; i < count; i++)
        q[i] = b[i] - q[i];
    double residual = sqrt(dot(q, q, count) / start), carried = sqrt(rho / start);
    CHECK(fabs(residual - carried) <= 1e-6 * carried + 1e-12, "%g against %g", residual, carried);
    double norm = sqrt(dot(x + n, x + n, count));
    if (rank == 0)
        printf("cg n=%ld iterations=%ld residual=%.17g norm=%.17g\n", n, iterations, carried, norm);
    free(x), free(p), free(b), free(r), free(q);
    MPI_Finalize();
    return 0;
}
