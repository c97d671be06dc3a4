// SPDX-License-Identifier: Apache-2.0
// The heat equation on a periodic n x n x n grid by Fourier transforms in three dimensions: each step is a transform
// forth and one back, and in each of them all ranks exchange all they have (a transpose by MPI_Alltoallv), as in FT of
// the NAS benchmarks.
//   ft [S|W|A]      1 to 16 ranks, slabs
#include "kernel.h"
#include <complex.h>
#include <math.h>

typedef double complex Number;

static const Class CLASSES[] = {
    {"S", 32, 3, UINT64_C(0x5f72aa90e8c852d6)},
    {"W", 64, 40, UINT64_C(0xb728c1abdb1b8c2a)},
    {"A", 128, 120, UINT64_C(0xf74e70c71c6e8388)},
    {0},
};

static int rank, size;
static long n;
static Number *roots; // e^(2 pi i k / n) for k < n / 2
static Number *line;
static int *counts, *places; // numbers that each rank gets from this one and gives to it

static Number times(Number a, Number b)
{
    return CMPLX(creal(a) * creal(b) - cimag(a) * cimag(b), creal(a) * cimag(b) + cimag(a) * creal(b));
}

// By halves of angles: sqrt is exact to the last bit everywhere, sin and cos are not.
static void make_roots(void)
{
    roots = allocate((size_t)(n / 2) * sizeof *roots);
    roots[0] = 1;
    double cosine = -1;
    for (long step = n / 2; step > 0; step /= 2) { // e^(2 pi i step / n), from half a turn on
        double sine = sqrt((1 - cosine) * (1 + cosine));
        if (step < n / 2)
            for (long k = 0; k < n / 2; k += 2 * step)
                roots[k + step] = k == 0 ? CMPLX(cosine, sine) : times(roots[k], CMPLX(cosine, sine));
        cosine = sqrt((1 + cosine) / 2);
    }
}

// In place, radix 2; `sign` -1 forth, 1 back, not scaled. `gap` between the numbers of the line.
static void transform(Number *data, long gap, int sign)
{
    for (long i = 0, j = 0; i < n; i++) {
        line[j] = data[i * gap];
        long bit = n >> 1;
        for (; j & bit; bit >>= 1)
            j ^= bit;
        j |= bit;
    }
    for (long half = 1; half < n; half *= 2)
        for (long k = 0; k < half; k++) {
            Number root = roots[k * (n / 2 / half)];
            root = sign > 0 ? root : conj(root);
            for (long i = k; i < n; i += 2 * half) {
                Number odd = times(root, line[i + half]);
                line[i + half] = line[i] - odd;
                line[i] += odd;
            }
        }
    for (long i = 0; i < n; i++)
        data[i * gap] = line[i];
}

static long first(int r)
{
    return part_of(n, size, r);
}

// From [z of mine][y][x] to [x of mine][y][z], and with the two slabs exchanged the same way back.
static void transpose(const Number *from, Number *to, Number *packed)
{
    long mine = first(rank + 1) - first(rank);
    Number *next = packed;
    for (int r = 0; r < size; r++)
        for (long x = first(r); x < first(r + 1); x++)
            for (long y = 0; y < n; y++)
                for (long z = 0; z < mine; z++)
                    *next++ = from[(z * n + y) * n + x];
    MPI_Alltoallv(packed, counts, places, MPI_C_DOUBLE_COMPLEX, to, counts, places, MPI_C_DOUBLE_COMPLEX,
                  MPI_COMM_WORLD);
    // What came from r: [x of mine][y][z of r].
    memcpy(packed, to, (size_t)(mine * n * n) * sizeof *to);
    next = packed;
    for (int r = 0; r < size; r++)
        for (long x = 0; x < mine; x++)
            for (long y = 0; y < n; y++)
                for (long z = first(r); z < first(r + 1); z++)
                    to[(x * n + y) * n + z] = *next++;
}

// In three dimensions: `field` in one slab's order, the result in `spectrum` in the other's.
static void transform_all(Number *field, Number *spectrum, Number *packed, int sign)
{
    long mine = first(rank + 1) - first(rank);
    if (sign < 0)
        for (long z = 0; z < mine; z++) {
            for (long y = 0; y < n; y++)
                transform(field + (z * n + y) * n, 1, sign);
            for (long x = 0; x < n; x++)
                transform(field + z * n * n + x, n, sign);
        }
    else
        for (long line = 0; line < mine * n; line++)
            transform(field + line * n, 1, sign);
    transpose(field, spectrum, packed);
    if (sign < 0)
        for (long line = 0; line < mine * n; line++)
            transform(spectrum + line * n, 1, sign);
    else
        for (long z = 0; z < mine; z++) {
            for (long x = 0; x < n; x++)
                transform(spectrum + z * n * n + x, n, sign);
            for (long y = 0; y < n; y++)
                transform(spectrum + (z * n + y) * n, 1, sign);
        }
}

static double square(long k)
{
    double frequency = (double)(k < n / 2 ? k : k - n);
    return frequency * frequency;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const Class *class = class_of(argc, argv, CLASSES);
    if (!class)
        REFUSE(rank, "ft: no class %s; usage: ft [S|W|A]\n", argv[1]);
    if (size > 16)
        REFUSE(rank, "ft: %d ranks; it runs on 1 to 16\n", size);
    n = class->n;
    long mine = first(rank + 1) - first(rank), count = mine * n * n;
    make_roots();
    line = allocate((size_t)n * sizeof *line);
    counts = allocate((size_t)size * sizeof(int)), places = allocate((size_t)size * sizeof(int));
    for (int r = 0, place = 0; r < size; r++) {
        counts[r] = (int)((first(r + 1) - first(r)) * n * mine), places[r] = place;
        place += counts[r];
    }
    Number *field = allocate((size_t)count * sizeof *field), *spectrum = allocate((size_t)count * sizeof *field);
    Number *packed = allocate((size_t)count * sizeof *field);
    double heat = 0, total;
    for (long i = 0; i < count; i++) {
        uint64_t place = (uint64_t)(first(rank) * n * n + i);
        field[i] = CMPLX((double)(mixed(1, place) >> 40) / (1 << 24), (double)(mixed(2, place) >> 40) / (1 << 24));
        heat += creal(field[i]);
    }
    MPI_Allreduce(&heat, &total, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    for (long step = 0; step < class->steps; step++) {
        linger(step, class->steps);
        transform_all(field, spectrum, packed, -1);
        for (long x = 0; x < mine; x++)
            for (long y = 0; y < n; y++)
                for (long z = 0; z < n; z++) {
                    double k2 = square(first(rank) + x) + square(y) + square(z);
                    spectrum[(x * n + y) * n + z] *= 1 / ((double)(n * n * n) * (1 + 1e-3 * k2));
                }
        transform_all(spectrum, field, packed, 1);
    }
    // Heat is spread, and not lost.
    double left = 0, left_total;
    for (long i = 0; i < count; i++)
        left += creal(field[i]);
    MPI_Allreduce(&left, &left_total, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    CHECK(fabs(left_total - total) < 1e-9 * total, "heat %.17g, before %.17g", left_total, total);
    uint64_t hash = 0;
    for (long i = 0; i < count; i++) {
        uint64_t place = 2 * (uint64_t)(first(rank) * n * n + i);
        hash += verified(place, creal(field[i])) + verified(place + 1, cimag(field[i]));
    }
    verify("ft", class, hash, rank);
    free(field), free(spectrum), free(packed), free(line), free(roots), free(counts), free(places);
    MPI_Finalize();
    return 0;
}
