// SPDX-License-Identifier: Apache-2.0
// Every rank says hello; rank 0 counts them.   hello
#include "check.h"

int main(int argc, char **argv)
{
    int rank, size, sum;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    printf("hello from rank %d of %d\n", rank, size);
    fflush(stdout);
    MPI_Reduce(&rank, &sum, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        CHECK(sum == size * (size - 1) / 2, "%d", sum);
        printf("%d ranks, sum %d\n", size, sum);
    }
    MPI_Finalize();
    return 0;
}
