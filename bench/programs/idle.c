// SPDX-License-Identifier: Apache-2.0
// All ranks have exchanged messages with all others, then wait in a barrier for rank 0, which sleeps.
//   idle [SECONDS=1]
#include "check.h"
#include <unistd.h>

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int *out = calloc((size_t)size, sizeof *out), *in = calloc((size_t)size, sizeof *in);
    CHECK(out && in, "out of memory");
    MPI_Alltoall(out, 1, MPI_INT, in, 1, MPI_INT, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        printf("waiting\n"), fflush(stdout);
        usleep((useconds_t)(1e6 * (argc > 1 ? atof(argv[1]) : 1.0)));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    free(out), free(in);
    MPI_Finalize();
    return 0;
}
