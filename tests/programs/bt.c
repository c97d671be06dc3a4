// SPDX-License-Identifier: Apache-2.0
// Alternating direction implicit steps on an n x n x n grid of five coupled unknowns: in each step, block tridiagonal
// systems along x, y and z. The q x q ranks share the grid's q x q x q cells so that every rank has one in each slab of
// each direction, and all work all the time. Few, large messages with much computation between them, as in BT of the NAS
// benchmarks.
//   bt [S|W|A]      1, 4, 9 or 16 ranks
#include "kernel.h"
#include <math.h>

enum { U = 5, UU = U * U, LINE = U + UU, TAG = 1 };

static const Class CLASSES[] = {
    {"S", 12, 20, UINT64_C(0xece1bb8f41e18d25)},
    {"W", 32, 40, UINT64_C(0xd52315917e8547b9)},
    {"A", 64, 80, UINT64_C(0x1ad739e6e7b8375f)},
    {0},
};
static const double DT = 0.4;

typedef struct {
    long part[3];  // its place among the cells
    long size[3];  // points in x, y, z
    long first[3]; // its first point in the grid
    double *u;     // [size + 2 in each direction][U], ghosts around
    double *r;     // [points][U]: right-hand side, then the change of u
    double *c;     // [points][UU]: what is left of the upper blocks
} Cell;

static int rank, q;
static int next[3], before[3]; // ranks with the next cells in each direction
static long n;
static Cell cells[4];
static double coupling[UU]; // of a neighbour's unknowns
static double *buffers[4];

static double *u_at(const Cell *cell, long x, long y, long z)
{
    return cell->u + (((z + 1) * (cell->size[1] + 2) + y + 1) * (cell->size[0] + 2) + x + 1) * U;
}

// Of this rank, the cell in slab `stage` of a direction.
static Cell *cell_in(int direction, int stage)
{
    for (int s = 0; s < q; s++)
        if (cells[s].part[direction] == stage)
            return &cells[s];
    return NULL;
}

static void share_out(void)
{
    int a = rank / q, b = rank % q;
    for (int s = 0; s < q; s++) {
        Cell *cell = &cells[s];
        cell->part[0] = s, cell->part[1] = (a + s) % q, cell->part[2] = (b + s) % q;
        size_t points = 1, with_ghosts = 1;
        for (int d = 0; d < 3; d++) {
            cell->first[d] = part_of(n, q, (int)cell->part[d]);
            cell->size[d] = part_of(n, q, (int)cell->part[d] + 1) - cell->first[d];
            points *= (size_t)cell->size[d], with_ghosts *= (size_t)cell->size[d] + 2;
        }
        cell->u = calloc(with_ghosts * U, sizeof(double));
        cell->r = allocate(points * U * sizeof(double));
        cell->c = allocate(points * UU * sizeof(double));
        CHECK(cell->u, "out of memory");
    }
    next[0] = (a + q - 1) % q * q + (b + q - 1) % q, before[0] = (a + 1) % q * q + (b + 1) % q;
    next[1] = (a + 1) % q * q + b, before[1] = (a + q - 1) % q * q + b;
    next[2] = a * q + (b + 1) % q, before[2] = a * q + (b + q - 1) % q;
    long edge = (n + q - 1) / q;
    for (int i = 0; i < 4; i++)
        buffers[i] = allocate((size_t)(q * edge * edge * LINE) * sizeof(double));
    for (int i = 0; i < U; i++)
        for (int j = 0; j < U; j++)
            coupling[i * U + j] = (i == j ? 1.0 : 0.0) + 0.1 / (1 + abs(i - j));
}

// The layer of points at `at` in a direction, out of u or into it; returns where the buffer goes on.
static double *layer(const Cell *cell, int direction, long at, double *buffer, int out)
{
    int d1 = direction == 0 ? 1 : 0, d2 = direction == 2 ? 1 : 2;
    for (long j = 0; j < cell->size[d2]; j++)
        for (long i = 0; i < cell->size[d1]; i++, buffer += U) {
            long p[3];
            p[direction] = at, p[d1] = i, p[d2] = j;
            double *u = u_at(cell, p[0], p[1], p[2]);
            memcpy(out ? buffer : u, out ? u : buffer, U * sizeof(double));
        }
    return buffer;
}

// The ghosts of u: in each direction, both ways, all cells in one message.
static void exchange(void)
{
    if (q == 1)
        return;
    for (int d = 0; d < 3; d++) {
        double *up = buffers[0], *down = buffers[1];
        for (int stage = 0; stage < q; stage++) {
            const Cell *cell = cell_in(d, stage);
            if (stage < q - 1)
                up = layer(cell, d, cell->size[d] - 1, up, 1);
            if (stage > 0)
                down = layer(cell, d, 0, down, 1);
        }
        MPI_Request requests[4];
        int most = (int)((n + q - 1) / q * ((n + q - 1) / q) * q * U);
        MPI_Irecv(buffers[2], most, MPI_DOUBLE, before[d], TAG, MPI_COMM_WORLD, &requests[0]);
        MPI_Irecv(buffers[3], most, MPI_DOUBLE, next[d], TAG + 1, MPI_COMM_WORLD, &requests[1]);
        MPI_Isend(buffers[0], (int)(up - buffers[0]), MPI_DOUBLE, next[d], TAG, MPI_COMM_WORLD, &requests[2]);
        MPI_Isend(buffers[1], (int)(down - buffers[1]), MPI_DOUBLE, before[d], TAG + 1, MPI_COMM_WORLD, &requests[3]);
        MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
        up = buffers[2], down = buffers[3];
        for (int stage = 0; stage < q; stage++) {
            const Cell *cell = cell_in(d, stage);
            if (stage > 0)
                up = layer(cell, d, -1, up, 0);
            if (stage < q - 1)
                down = layer(cell, d, cell->size[d], down, 0);
        }
    }
}

// r = dt (f + coupling * (sum of neighbours - 6 u)) at all points; the square of the norm of this rank's part.
static double right_hand_sides(void)
{
    double norm = 0;
    for (int s = 0; s < q; s++) {
        const Cell *cell = &cells[s];
        const long row = (cell->size[0] + 2) * U, plane = row * (cell->size[1] + 2);
        double *r = cell->r;
        for (long z = 0; z < cell->size[2]; z++)
            for (long y = 0; y < cell->size[1]; y++)
                for (long x = 0; x < cell->size[0]; x++, r += U) {
                    const double *u = u_at(cell, x, y, z);
                    double bend[U];
                    for (int i = 0; i < U; i++)
                        bend[i] = u[i - U] + u[i + U] + u[i - row] + u[i + row] + u[i - plane] + u[i + plane] - 6 * u[i];
                    long place = ((z + cell->first[2]) * n + y + cell->first[1]) * n + x + cell->first[0];
                    for (int i = 0; i < U; i++) {
                        double f = (double)(mixed(1, (uint64_t)(place * U + i)) >> 40) / (1 << 24) - 0.5;
                        for (int j = 0; j < U; j++)
                            f += coupling[i * U + j] * bend[j];
                        r[i] = DT * f;
                        norm += r[i] * r[i];
                    }
                }
    }
    return norm;
}

// One point of a line: from what is left of the point before (NULL: none), c = M^-1 C and r = M^-1 (r - A r_before),
// with M = B - A c_before.
static void eliminate(const double *u, const double *left, double *c, double *r)
{
    double m[U][U + U + 1];
    for (int i = 0; i < U; i++) {
        for (int j = 0; j < U; j++) {
            double off = -DT * coupling[i * U + j];
            m[i][j] = (i == j ? 1.0 : 0.0) - 2 * off + DT * 0.05 * u[i] * u[j];
            m[i][U + j] = off;
        }
        m[i][2 * U] = r[i];
        if (left)
            for (int k = 0; k < U; k++) {
                double a = -DT * coupling[i * U + k];
                for (int j = 0; j < U; j++)
                    m[i][j] -= a * left[k * U + j];
                m[i][2 * U] -= a * left[UU + k];
            }
    }
    for (int p = 0; p < U; p++) {
        double scale = 1 / m[p][p];
        for (int j = p + 1; j < 2 * U + 1; j++)
            m[p][j] *= scale;
        for (int i = 0; i < U; i++)
            if (i != p)
                for (int j = p + 1; j < 2 * U + 1; j++)
                    m[i][j] -= m[i][p] * m[p][j];
    }
    for (int i = 0; i < U; i++) {
        for (int j = 0; j < U; j++)
            c[i * U + j] = m[i][U + j];
        r[i] = m[i][2 * U];
    }
}

typedef struct {
    long step, lines[2], along[2]; // between points of a line; lines across, and between them
} Strides;

static Strides strides_of(const Cell *cell, int d)
{
    long by[3] = {1, cell->size[0], cell->size[0] * cell->size[1]};
    int d1 = d == 0 ? 1 : 0, d2 = d == 2 ? 1 : 2;
    return (Strides){by[d], {cell->size[d1], cell->size[d2]}, {by[d1], by[d2]}};
}

// All lines of a cell forth; `edge` holds what is left of the points before and then of the last ones.
static long forth(const Cell *cell, int d, double *edge, int first)
{
    Strides s = strides_of(cell, d);
    double *at = edge, left[LINE];
    for (long j = 0; j < s.lines[1]; j++)
        for (long i = 0; i < s.lines[0]; i++, at += LINE) {
            memcpy(left, at, sizeof left);
            for (long k = 0; k < cell->size[d]; k++) {
                long point = i * s.along[0] + j * s.along[1] + k * s.step;
                long x = point % cell->size[0], yz = point / cell->size[0];
                double *c = cell->c + point * UU, *r = cell->r + point * U;
                const double *u = u_at(cell, x, yz % cell->size[1], yz / cell->size[1]);
                eliminate(u, first && k == 0 ? NULL : left, c, r);
                memcpy(left, c, UU * sizeof(double)), memcpy(left + UU, r, U * sizeof(double));
            }
            memcpy(at, left, sizeof left);
        }
    return at - edge;
}

// And back: `edge` holds the result of the points after and then of the first ones.
static long back(const Cell *cell, int d, double *edge, int last)
{
    Strides s = strides_of(cell, d);
    double *at = edge;
    for (long j = 0; j < s.lines[1]; j++)
        for (long i = 0; i < s.lines[0]; i++, at += U) {
            for (long k = cell->size[d] - 1; k >= 0; k--) {
                long point = i * s.along[0] + j * s.along[1] + k * s.step;
                double *r = cell->r + point * U;
                const double *c = cell->c + point * UU;
                if (!last || k < cell->size[d] - 1)
                    for (int a = 0; a < U; a++)
                        for (int b = 0; b < U; b++)
                            r[a] -= c[a * U + b] * at[b];
                memcpy(at, r, U * sizeof(double));
            }
        }
    return at - edge;
}

static void solve(int d)
{
    double *edge = buffers[0];
    int most = (int)((n + q - 1) / q * ((n + q - 1) / q) * LINE);
    for (int stage = 0; stage < q; stage++) {
        if (stage > 0)
            MPI_Recv(edge, most, MPI_DOUBLE, before[d], TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        long count = forth(cell_in(d, stage), d, edge, stage == 0);
        if (stage < q - 1)
            MPI_Send(edge, (int)count, MPI_DOUBLE, next[d], TAG, MPI_COMM_WORLD);
    }
    for (int stage = q - 1; stage >= 0; stage--) {
        if (stage < q - 1)
            MPI_Recv(edge, most, MPI_DOUBLE, next[d], TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        long count = back(cell_in(d, stage), d, edge, stage == q - 1);
        if (stage > 0)
            MPI_Send(edge, (int)count, MPI_DOUBLE, before[d], TAG, MPI_COMM_WORLD);
    }
}

static void step(void)
{
    for (int d = 0; d < 3; d++)
        solve(d);
    for (int s = 0; s < q; s++) {
        const double *r = cells[s].r;
        for (long z = 0; z < cells[s].size[2]; z++)
            for (long y = 0; y < cells[s].size[1]; y++) {
                double *u = u_at(&cells[s], 0, y, z);
                for (long i = 0; i < cells[s].size[0] * U; i++)
                    u[i] += *r++;
            }
    }
}

static double residual(void)
{
    exchange();
    double mine = right_hand_sides(), all;
    MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return sqrt(all);
}

static uint64_t verification(void)
{
    uint64_t sum = 0;
    for (int s = 0; s < q; s++)
        for (long z = 0; z < cells[s].size[2]; z++)
            for (long y = 0; y < cells[s].size[1]; y++)
                for (long x = 0; x < cells[s].size[0]; x++)
                    for (int i = 0; i < U; i++) {
                        long place = ((z + cells[s].first[2]) * n + y + cells[s].first[1]) * n + x + cells[s].first[0];
                        sum += verified((uint64_t)(place * U + i), u_at(&cells[s], x, y, z)[i]);
                    }
    return sum;
}

int main(int argc, char **argv)
{
    int size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const Class *class = class_of(argc, argv, CLASSES);
    if (!class)
        REFUSE(rank, "bt: no class %s; usage: bt [S|W|A]\n", argv[1]);
    for (q = 1; q * q < size; q++)
        ;
    if (q * q != size || size > 16)
        REFUSE(rank, "bt: %d ranks; it runs on 1, 4, 9 or 16\n", size);
    n = class->n;
    share_out();
    double start = residual();
    for (long i = 0; i < class->steps; i++) {
        linger(i, class->steps);
        if (i > 0) {
            exchange();
            right_hand_sides();
        }
        step();
    }
    double end = residual();
    CHECK(end < 0.5 * start, "residual %g, before %g", end, start);
    verify("bt", class, verification(), rank);
    for (int s = 0; s < q; s++)
        free(cells[s].u), free(cells[s].r), free(cells[s].c);
    for (int i = 0; i < 4; i++)
        free(buffers[i]);
    MPI_Finalize();
    return 0;
}
