// SPDX-License-Identifier: Apache-2.0
// Rank 0 runs a command, perhaps another MPI job of this program, while rank 1 already waits for a message with the tag that
// the inner job uses too.   nested [COMMAND]
#include "check.h"

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const char *which = argc > 1 ? "outer" : "inner";
    uint64_t sent = argc > 1 ? 1 : 99, got = 0;
    if (rank == 0) {
        if (argc > 1) {
            fflush(stdout);
            int status = system(argv[1]);
            printf("command: status %d\n", status);
            fflush(stdout);
        }
        for (int other = 1; other < size; other++)
            MPI_Send(&sent, 1, MPI_UINT64_T, other, 7, MPI_COMM_WORLD);
    } else {
        MPI_Recv(&got, 1, MPI_UINT64_T, 0, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        CHECK(got == sent, "%d", (int)got);
        printf("%s rank %d of %d received %d\n", which, rank, size, (int)got);
        fflush(stdout);
    }
    MPI_Finalize();
    return 0;
}
