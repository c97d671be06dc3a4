// SPDX-License-Identifier: Apache-2.0
// Much output in awkward pieces: lines across several writes, long lines, several lines in a write, stderr, no newline
// at the end; rank 0 reads its stdin to the end and echoes it with line numbers.
// Each rank's own lines are the same in every run; messages go round between them, so that a kill falls in the middle.
//   output [LINES_PER_RANK=500] [PAUSE_MICROSECONDS=0]
#include "check.h"
#include <unistd.h>

static void put(int file, const char *text, size_t bytes)
{
    while (bytes > 0) {
        ssize_t written = write(file, text, bytes);
        CHECK(written > 0, "write to %d", file);
        text += written;
        bytes -= (size_t)written;
    }
}

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    long lines = argument(argc, argv, 1, 500), pause = argument(argc, argv, 2, 0);
    char *text = allocate(200000), *line = NULL;
    long echoed = 0;
    if (rank == 0) {
        size_t room = 0;
        ssize_t got;
        while ((got = getline(&line, &room, stdin)) > 0)
            printf("rank 0 stdin %ld: %.*s\n", ++echoed, (int)got - (line[got - 1] == '\n'), line), fflush(stdout);
        free(line);
    }
    MPI_Bcast(&echoed, 1, MPI_LONG, 0, MPI_COMM_WORLD);
    for (long i = 0; i < lines; i++) {
        uint64_t choice = mixed((uint64_t)rank, (uint64_t)i);
        int n = snprintf(text, 200, "rank %d line %ld %016llx", rank, i, (unsigned long long)choice);
        switch (choice % 5) {
        case 0: // one line in three writes
            put(1, text, 5);
            put(1, text + 5, (size_t)n - 5);
            put(1, "\n", 1);
            break;
        case 1: // a long line
            if (choice % 25 == 1) {
                memset(text + n, 'x', 100000);
                n += 100000;
            }
            text[n++] = '\n';
            put(1, text, (size_t)n);
            break;
        case 2: // two lines and a half in one write, then the rest
            n += snprintf(text + n, 200, "\nrank %d again %ld\nrank %d half ", rank, i, rank);
            put(1, text, (size_t)n);
            put(1, "and half\n", 9);
            break;
        case 3: // to stderr, in two writes
            put(2, text, 9);
            text[n++] = '\n';
            put(2, text + 9, (size_t)n - 9);
            break;
        default:
            printf("%s\n", text), fflush(stdout);
        }
        if (i % 20 == 0) {
            long sum;
            MPI_Allreduce(&i, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
            CHECK(sum == i * size, "sum %ld", sum);
        }
        if (pause > 0)
            usleep((useconds_t)pause);
    }
    free(text);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == size - 1)
        printf("rank %d last words without a newline", rank);
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
