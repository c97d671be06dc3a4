// SPDX-License-Identifier: Apache-2.0
// Data with gaps, and one-sided communication, between two ranks: of each pattern, what one message or one put takes, batch by
// batch. Other ranks wait.
//   datatypes BATCHES PATTERN...
//     vector:BLOCK:BLOCKS:ITERATIONS   blocks of so many bytes, with as large gaps; half a round trip
//     struct:COUNT:ITERATIONS          an int, three chars and a double, so many times; half a round trip
//     subarray:EDGE:ITERATIONS         the inner cube of a cube of doubles; half a round trip
//     fence:BYTES:PUTS                 contiguous puts between two fences; one put
//     flush:BYTES:PUTS                 contiguous puts under a lock, then a flush; one put
#include "check.h"
#include "to_and_fro.h"
#include <stddef.h>

typedef struct {
    int number;
    char letters[3];
    double value;
} Mixed;

static MPI_Datatype mixed_type(void)
{
    int lengths[] = {1, 3, 1};
    MPI_Aint places[] = {offsetof(Mixed, number), offsetof(Mixed, letters), offsetof(Mixed, value)};
    MPI_Datatype types[] = {MPI_INT, MPI_CHAR, MPI_DOUBLE}, packed, type;
    MPI_Type_create_struct(3, lengths, places, types, &packed);
    MPI_Type_create_resized(packed, 0, sizeof(Mixed), &type);
    MPI_Type_free(&packed);
    return type;
}

// The seconds of `iterations` round trips, for each of them and each way.
static double way(int rank, char *buffer, int count, MPI_Datatype type, long iterations)
{
    double start = MPI_Wtime();
    to_and_fro(rank, buffer, count, type, iterations);
    return (MPI_Wtime() - start) / (double)iterations / 2;
}

static double put(int rank, const char *from, long bytes, long puts, MPI_Win window, int fences)
{
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    if (fences)
        MPI_Win_fence(0, window);
    else if (rank == 0)
        MPI_Win_lock(MPI_LOCK_SHARED, 1, 0, window);
    for (long i = 0; rank == 0 && i < puts; i++)
        MPI_Put(from, (int)bytes, MPI_BYTE, 1, i % 16 * bytes, (int)bytes, MPI_BYTE, window);
    if (fences) {
        MPI_Win_fence(0, window);
    } else if (rank == 0) {
        MPI_Win_flush(1, window);
        MPI_Win_unlock(1, window);
    }
    double taken = (MPI_Wtime() - start) / (double)puts;
    MPI_Barrier(MPI_COMM_WORLD);
    return taken;
}

static void messages(int rank, const char *name, long count, MPI_Datatype type, long iterations, long batches)
{
    MPI_Aint low, extent;
    MPI_Type_commit(&type);
    MPI_Type_get_extent(type, &low, &extent);
    char *buffer = allocate((size_t)(count * extent)), *before = allocate((size_t)(count * extent));
    fill(buffer, (size_t)(count * extent), 7);
    memcpy(before, buffer, (size_t)(count * extent));
    to_and_fro(rank, buffer, (int)count, type, iterations / 10 + 2);
    if (rank == 0)
        printf("%s", name);
    for (long batch = 0; batch < batches; batch++) {
        double half = way(rank, buffer, (int)count, type, iterations);
        if (rank == 0)
            printf(" %.4f", half * 1e6);
    }
    if (rank == 0)
        printf("\n"), fflush(stdout);
    // The padding of a struct is no data.
    if (strncmp(name, "struct", 6))
        CHECK(memcmp(buffer, before, (size_t)(count * extent)) == 0, "%s came back changed", name);
    free(buffer), free(before);
    MPI_Type_free(&type);
}

static void puts_of(int rank, const char *name, long bytes, long puts, long batches)
{
    char *from = allocate((size_t)bytes), *into;
    MPI_Win window;
    fill(from, (size_t)bytes, 11);
    MPI_Win_allocate(bytes * 16, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &into, &window);
    int fences = !strncmp(name, "fence", 5);
    put(rank, from, bytes, puts / 10 + 2, window, fences);
    if (rank == 0)
        printf("%s", name);
    for (long batch = 0; batch < batches; batch++) {
        double one = put(rank, from, bytes, puts, window, fences);
        if (rank == 0)
            printf(" %.4f", one * 1e6);
    }
    if (rank == 0)
        printf("\n"), fflush(stdout);
    if (rank == 1)
        CHECK(memcmp(into, from, (size_t)bytes) == 0, "%s put something else", name);
    MPI_Win_free(&window);
    free(from);
}

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    CHECK(argc > 2 && size == 2, "datatypes BATCHES PATTERN..., two ranks");
    long batches = argument(argc, argv, 1, 1);
    for (int i = 2; i < argc; i++) {
        long numbers[3] = {0};
        char *rest = strchr(argv[i], ':');
        for (int j = 0; rest && *rest && j < 3; j++)
            numbers[j] = strtol(rest + 1, &rest, 0);
        MPI_Datatype type;
        if (!strncmp(argv[i], "vector", 6)) {
            MPI_Type_vector((int)numbers[1], (int)numbers[0], 2 * (int)numbers[0], MPI_BYTE, &type);
            messages(rank, argv[i], 1, type, numbers[2], batches);
        } else if (!strncmp(argv[i], "struct", 6)) {
            messages(rank, argv[i], numbers[0], mixed_type(), numbers[1], batches);
        } else if (!strncmp(argv[i], "subarray", 8)) {
            int edge = (int)numbers[0], whole[] = {edge, edge, edge}, inner[] = {edge - 2, edge - 2, edge - 2}, first[] = {1, 1, 1};
            MPI_Type_create_subarray(3, whole, inner, first, MPI_ORDER_C, MPI_DOUBLE, &type);
            messages(rank, argv[i], 1, type, numbers[1], batches);
        } else {
            puts_of(rank, argv[i], numbers[0], numbers[1], batches);
        }
    }
    MPI_Finalize();
    return 0;
}
