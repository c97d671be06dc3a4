// SPDX-License-Identifier: Apache-2.0
// The heat equation on a plate, cut into blocks; halos travel as rows and as strided columns.
// The plate at the end is the same, bit for bit, for any number of ranks.
//   heat [NX=256] [NY=256] [STEPS=500] [RESULT_FILE]
#include "check.h"
#include <math.h>

int main(int argc, char **argv)
{
    int rank, size, dims[2] = {0, 0}, periods[2] = {0, 0}, at[2], north, south, west, east;
    MPI_Init(&argc, &argv);
    long nx = argument(argc, argv, 1, 256), ny = argument(argc, argv, 2, 256);
    long steps = argument(argc, argv, 3, 500);
    const char *path = argc > 4 ? argv[4] : NULL;
    MPI_Comm grid;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Dims_create(size, 2, dims);
    MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 0, &grid);
    MPI_Comm_rank(grid, &rank);
    MPI_Cart_coords(grid, rank, 2, at);
    MPI_Cart_shift(grid, 0, 1, &north, &south);
    MPI_Cart_shift(grid, 1, 1, &west, &east);
    long top = nx * at[0] / dims[0], rows = nx * (at[0] + 1) / dims[0] - top;
    long left = ny * at[1] / dims[1], columns = ny * (at[1] + 1) / dims[1] - left;
    CHECK(rows > 0 && columns > 0, "the plate is too small for %d ranks", size);
    long width = columns + 2;
    double *now = calloc((size_t)((rows + 2) * width), sizeof *now);
    double *next = calloc((size_t)((rows + 2) * width), sizeof *next);
    CHECK(now && next, "out of memory");
    for (long i = 1; i <= rows; i++)
        for (long j = 1; j <= columns; j++)
            now[i * width + j] =
                (double)(mixed(7, (uint64_t)((top + i) * ny + left + j)) >> 44) / (1 << 20);

    MPI_Datatype column;
    MPI_Type_vector((int)rows, 1, (int)width, MPI_DOUBLE, &column);
    MPI_Type_commit(&column);
    for (long step = 0; step < steps; step++) {
        linger(step, steps);
        MPI_Request requests[8];
        MPI_Irecv(now + 1, (int)columns, MPI_DOUBLE, north, 0, grid, &requests[0]);
        MPI_Irecv(now + (rows + 1) * width + 1, (int)columns, MPI_DOUBLE, south, 1, grid, &requests[1]);
        MPI_Irecv(now + width, 1, column, west, 2, grid, &requests[2]);
        MPI_Irecv(now + width + columns + 1, 1, column, east, 3, grid, &requests[3]);
        MPI_Isend(now + rows * width + 1, (int)columns, MPI_DOUBLE, south, 0, grid, &requests[4]);
        MPI_Isend(now + width + 1, (int)columns, MPI_DOUBLE, north, 1, grid, &requests[5]);
        MPI_Isend(now + width + columns, 1, column, east, 2, grid, &requests[6]);
        MPI_Isend(now + width + 1, 1, column, west, 3, grid, &requests[7]);
        MPI_Waitall(8, requests, MPI_STATUSES_IGNORE);
        for (long i = 1; i <= rows; i++)
            for (long j = 1; j <= columns; j++) {
                const double *c = now + i * width + j;
                next[i * width + j] = c[0] + 0.2 * ((c[-width] + c[width]) + (c[-1] + c[1]) - 4 * c[0]);
            }
        double *swap = now;
        now = next;
        next = swap;
        if (step % 50 == 49) {
            double mine = 0, peak;
            for (long i = 1; i <= rows; i++)
                for (long j = 1; j <= columns; j++)
                    mine = fmax(mine, now[i * width + j]);
            MPI_Allreduce(&mine, &peak, 1, MPI_DOUBLE, MPI_MAX, grid);
            CHECK(peak >= 0 && peak <= 1, "heat came from nowhere: %g", peak);
            if (rank == 0 && step % 500 == 499)
                printf("step %ld peak %.17g\n", step + 1, peak), fflush(stdout);
        }
    }

    // Rank 0 puts the plate together, block by block.
    double *block = allocate((size_t)(rows * columns) * sizeof *block);
    for (long i = 0; i < rows; i++)
        memcpy(block + i * columns, now + (i + 1) * width + 1, (size_t)columns * sizeof *block);
    if (rank != 0) {
        MPI_Send(block, (int)(rows * columns), MPI_DOUBLE, 0, 9, grid);
    } else {
        double *plate = allocate((size_t)(nx * ny) * sizeof *plate), sum = 0;
        for (int r = 0; r < size; r++) {
            int where[2];
            MPI_Cart_coords(grid, r, 2, where);
            long t = nx * where[0] / dims[0], h = nx * (where[0] + 1) / dims[0] - t;
            long l = ny * where[1] / dims[1], w = ny * (where[1] + 1) / dims[1] - l;
            double *part = r == 0 ? block : allocate((size_t)(h * w) * sizeof *part);
            if (r != 0)
                MPI_Recv(part, (int)(h * w), MPI_DOUBLE, r, 9, grid, MPI_STATUS_IGNORE);
            for (long i = 0; i < h; i++)
                memcpy(plate + (t + i) * ny + l, part + i * w, (size_t)w * sizeof *part);
            if (r != 0)
                free(part);
        }
        for (long i = 0; i < nx * ny; i++)
            sum += plate[i];
        printf("heat %ldx%ld steps=%ld sum=%.17g hash=%016llx\n", nx, ny, steps, sum,
               (unsigned long long)hash_bytes(FNV_START, plate, (size_t)(nx * ny) * sizeof *plate));
        if (path) {
            FILE *file = fopen(path, "w");
            CHECK(file, "cannot write %s", path);
            CHECK(fwrite(plate, sizeof *plate, (size_t)(nx * ny), file) == (size_t)(nx * ny), "short write");
            CHECK(fclose(file) == 0, "close");
        }
        free(plate);
    }
    free(block), free(now), free(next);
    MPI_Type_free(&column);
    MPI_Comm_free(&grid);
    MPI_Finalize();
    return 0;
}
