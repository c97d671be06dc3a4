// SPDX-License-Identifier: Apache-2.0
// What one operation takes, in microseconds. It is repeated in batches that double until one of them takes long enough;
// then one more batch of that length is measured.
//   crowd SECONDS allreduce:BYTES:MOST | alltoall:BYTES:MOST | pingpong:BYTES:MOST ...
// MOST bounds the length of a batch. In `pingpong` ranks 0 and 1 exchange messages while the others wait in a barrier;
// half a round trip is printed.
#include "check.h"

static int rank, size;
static char *out, *in;

static void repeat(const char *what, int bytes, long count)
{
    for (long i = 0; i < count; i++) {
        if (what[0] == 'p') {
            if (rank == 0)
                MPI_Send(out, bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
            MPI_Recv(in, bytes, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            if (rank == 1)
                MPI_Send(out, bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
        } else if (what[2] == 'l' && what[3] == 'r') {
            MPI_Allreduce(out, in, bytes / 8, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        } else {
            MPI_Alltoall(out, bytes, MPI_BYTE, in, bytes, MPI_BYTE, MPI_COMM_WORLD);
        }
    }
}

// Rank 0's clock decides for all whether the batch was long enough.
static double measure(const char *what, int bytes, long most, double enough, MPI_Comm comm)
{
    double seconds;
    repeat(what, bytes, 2);
    for (long count = 1;; count *= 2) {
        count = count < most ? count : most;
        double start = MPI_Wtime();
        repeat(what, bytes, count);
        seconds = MPI_Wtime() - start;
        MPI_Bcast(&seconds, 1, MPI_DOUBLE, 0, comm);
        if (seconds >= enough / 2 || count >= most) {
            start = MPI_Wtime();
            repeat(what, bytes, count);
            return (MPI_Wtime() - start) / (double)count;
        }
    }
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    CHECK(argc > 2 && size > 1, "crowd SECONDS OPERATION:BYTES:MOST..., two ranks or more");
    MPI_Comm pair;
    MPI_Comm_split(MPI_COMM_WORLD, rank < 2, rank, &pair);
    for (int i = 2; i < argc; i++) {
        char *rest = strchr(argv[i], ':');
        CHECK(rest, "%s", argv[i]);
        long bytes = strtol(rest + 1, &rest, 0), most = strtol(rest + 1, NULL, 0);
        out = calloc((size_t)size, (size_t)bytes), in = calloc((size_t)size, (size_t)bytes);
        CHECK(out && in, "out of memory");
        double seconds = 0;
        int two = argv[i][0] == 'p';
        MPI_Barrier(MPI_COMM_WORLD);
        if (!two || rank < 2)
            seconds = measure(argv[i], (int)bytes, most, atof(argv[1]), two ? pair : MPI_COMM_WORLD);
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 0)
            printf("%s %.4f\n", argv[i], seconds * 1e6 / (two ? 2 : 1)), fflush(stdout);
        free(out), free(in);
    }
    MPI_Comm_free(&pair);
    MPI_Finalize();
    return 0;
}
