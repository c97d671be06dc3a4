// SPDX-License-Identifier: Apache-2.0
// Symmetric Gauss-Seidel on an n x n x n grid of five coupled unknowns, in the order of the grid: a wave front passes
// over the ranks, plane by plane, forth and back. Many small messages with little computation between them, as in LU of
// the NAS benchmarks.
//   lu [S|W|A]      1 to 16 ranks, a grid of them in two dimensions
#include "kernel.h"
#include <math.h>

enum { U = 5 }; // unknowns in a cell

static const Class CLASSES[] = {
    {"S", 16, 20, UINT64_C(0x0f30a4deb760955e)},
    {"W", 48, 150, UINT64_C(0xcc1a9eec3b245470)},
    {"A", 96, 500, UINT64_C(0x955da3c90aefadba)},
    {0},
};
static const double DIAGONAL = 7.0, COUPLING = 0.2;

typedef struct {
    long n, nx, ny, x0, y0; // cells of the edge, of this rank, and its first ones
    int west, east, north, south;
    double *u, *b; // [n][ny + 2][nx + 2][U], ghosts around; b the same
    double *edge;
} Grid;

static double *at(const Grid *g, double *field, long k, long j, long i)
{
    return field + (((k + 1) * (g->ny + 2) + j + 1) * (g->nx + 2) + i + 1) * U;
}

// The cell's unknowns from its neighbours: D u = b + sum of neighbours, D = DIAGONAL - COUPLING * (all others).
static void relax(const Grid *g, long k, long j, long i)
{
    const long row = (g->nx + 2) * U, plane = row * (g->ny + 2);
    double *u = at(g, g->u, k, j, i), right[U], sum = 0;
    const double *b = at(g, g->b, k, j, i);
    for (int c = 0; c < U; c++) {
        right[c] = b[c] + u[c - U] + u[c + U] + u[c - row] + u[c + row] + u[c - plane] + u[c + plane];
        sum += right[c];
    }
    // D = a I - e J with a = DIAGONAL + e, J of ones; its inverse is (I + e / (a - U e) J) / a.
    const double a = DIAGONAL + COUPLING, share = COUPLING / (a - U * COUPLING) * sum;
    for (int c = 0; c < U; c++)
        u[c] = (right[c] + share) / a;
}

// Square of the part of this rank of b - A u.
static double residual(const Grid *g)
{
    const long row = (g->nx + 2) * U, plane = row * (g->ny + 2);
    double mine = 0, all;
    for (long k = 0; k < g->n; k++)
        for (long j = 0; j < g->ny; j++)
            for (long i = 0; i < g->nx; i++) {
                const double *u = at(g, g->u, k, j, i), *b = at(g, g->b, k, j, i);
                double sum = u[0] + u[1] + u[2] + u[3] + u[4];
                for (int c = 0; c < U; c++) {
                    double around = u[c - U] + u[c + U] + u[c - row] + u[c + row] + u[c - plane] + u[c + plane];
                    double r = b[c] + around - (DIAGONAL + COUPLING) * u[c] + COUPLING * sum;
                    mine += r * r;
                }
            }
    MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return sqrt(all);
}

static void receive_column(const Grid *g, long k, long i, int from)
{
    if (from == MPI_PROC_NULL)
        return;
    MPI_Recv(g->edge, (int)(g->ny * U), MPI_DOUBLE, from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (long j = 0; j < g->ny; j++)
        memcpy(at(g, g->u, k, j, i), g->edge + j * U, U * sizeof(double));
}

static void send_column(const Grid *g, long k, long i, int to)
{
    if (to == MPI_PROC_NULL)
        return;
    for (long j = 0; j < g->ny; j++)
        memcpy(g->edge + j * U, at(g, g->u, k, j, i), U * sizeof(double));
    MPI_Send(g->edge, (int)(g->ny * U), MPI_DOUBLE, to, 1, MPI_COMM_WORLD);
}

static void forth(const Grid *g)
{
    int row = (int)(g->nx * U);
    for (long k = 0; k < g->n; k++) {
        receive_column(g, k, -1, g->west);
        MPI_Recv(at(g, g->u, k, -1, 0), row, MPI_DOUBLE, g->north, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (long j = 0; j < g->ny; j++)
            for (long i = 0; i < g->nx; i++)
                relax(g, k, j, i);
        send_column(g, k, g->nx - 1, g->east);
        MPI_Send(at(g, g->u, k, g->ny - 1, 0), row, MPI_DOUBLE, g->south, 2, MPI_COMM_WORLD);
    }
}

static void back(const Grid *g)
{
    int row = (int)(g->nx * U);
    for (long k = g->n - 1; k >= 0; k--) {
        receive_column(g, k, g->nx, g->east);
        MPI_Recv(at(g, g->u, k, g->ny, 0), row, MPI_DOUBLE, g->south, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (long j = g->ny - 1; j >= 0; j--)
            for (long i = g->nx - 1; i >= 0; i--)
                relax(g, k, j, i);
        send_column(g, k, 0, g->west);
        MPI_Send(at(g, g->u, k, 0, 0), row, MPI_DOUBLE, g->north, 2, MPI_COMM_WORLD);
    }
}

int main(int argc, char **argv)
{
    int rank, size, px = 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const Class *class = class_of(argc, argv, CLASSES);
    if (!class)
        REFUSE(rank, "lu: no class %s; usage: lu [S|W|A]\n", argv[1]);
    if (size > 16)
        REFUSE(rank, "lu: %d ranks; it runs on 1 to 16\n", size);
    for (int p = 1; p * p <= size; p++)
        if (size % p == 0)
            px = p;
    int py = size / px, x = rank % px, y = rank / px;
    Grid g = {.n = class->n, .x0 = part_of(class->n, px, x), .y0 = part_of(class->n, py, y)};
    g.nx = part_of(g.n, px, x + 1) - g.x0, g.ny = part_of(g.n, py, y + 1) - g.y0;
    g.west = x > 0 ? rank - 1 : MPI_PROC_NULL, g.east = x < px - 1 ? rank + 1 : MPI_PROC_NULL;
    g.north = y > 0 ? rank - px : MPI_PROC_NULL, g.south = y < py - 1 ? rank + px : MPI_PROC_NULL;
    size_t count = (size_t)((g.n + 2) * (g.ny + 2) * (g.nx + 2) * U);
    g.u = calloc(count, sizeof(double)), g.b = calloc(count, sizeof(double));
    g.edge = allocate((size_t)(g.ny * U) * sizeof(double));
    CHECK(g.u && g.b, "out of memory");
    for (long k = 0; k < g.n; k++)
        for (long j = 0; j < g.ny; j++)
            for (long i = 0; i < g.nx; i++)
                for (int c = 0; c < U; c++) {
                    long place = ((k * g.n + g.y0 + j) * g.n + g.x0 + i) * U + c;
                    at(&g, g.b, k, j, i)[c] = (double)(mixed(1, (uint64_t)place) >> 40) / (1 << 24) - 0.5;
                }
    double before = residual(&g);
    for (long step = 0; step < class->steps; step++) {
        linger(step, class->steps);
        forth(&g);
        back(&g);
    }
    double after = residual(&g);
    CHECK(after < 0.5 * before, "residual %g, before %g", after, before);
    uint64_t mine = 0;
    for (long k = 0; k < g.n; k++)
        for (long j = 0; j < g.ny; j++)
            for (long i = 0; i < g.nx; i++)
                for (int c = 0; c < U; c++) {
                    long place = ((k * g.n + g.y0 + j) * g.n + g.x0 + i) * U + c;
                    mine += verified((uint64_t)place, at(&g, g.u, k, j, i)[c]);
                }
    verify("lu", class, mine, rank);
    free(g.u), free(g.b), free(g.edge);
    MPI_Finalize();
    return 0;
}
