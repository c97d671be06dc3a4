// SPDX-License-Identifier: Apache-2.0
// Under `resurgo run --ft`: loses its last rank again and again, until two are left. For each loss rank 0 prints how
// many ranks there were, and the microseconds from the death until the last survivor knew of it, until all had a
// smaller communicator, and until they had used it.
#include "check.h"
#include <signal.h>
#include <time.h>

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time); // the same for all ranks of a machine
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec * 1e-3;
}

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Comm comm, fewer;
    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    for (;;) {
        MPI_Comm_rank(comm, &rank);
        MPI_Comm_size(comm, &size);
        if (size == 2)
            break;
        double died = 0, times[3], last[3];
        int code = MPI_Barrier(comm);
        CHECK(code == MPI_SUCCESS, "barrier of %d: %d", size, code);
        struct timespec pause = {.tv_nsec = 20 * 1000 * 1000};
        if (rank == size - 1) {
            nanosleep(&pause, NULL); // the others wait by then
            died = now();
            MPI_Send(&died, 1, MPI_DOUBLE, 0, 0, comm);
            raise(SIGKILL);
        }
        if (rank == 0)
            MPI_Recv(&died, 1, MPI_DOUBLE, size - 1, 0, comm, MPI_STATUS_IGNORE);
        code = MPI_Barrier(comm);
        times[0] = now();
        CHECK(code != MPI_SUCCESS, "nothing was told");
        CHECK(MPIX_Comm_shrink(comm, &fewer) == MPI_SUCCESS, "shrink of %d", size);
        times[1] = now();
        code = MPI_Barrier(fewer);
        times[2] = now();
        CHECK(code == MPI_SUCCESS, "barrier after shrink of %d: %d", size, code);
        MPI_Reduce(times, last, 3, MPI_DOUBLE, MPI_MAX, 0, fewer);
        if (rank == 0)
            printf("%d %.1f %.1f %.1f\n", size, last[0] - died, last[1] - died, last[2] - died), fflush(stdout);
        MPI_Comm_free(&comm);
        comm = fewer;
    }
    MPI_Comm_free(&comm);
    MPI_Finalize();
    return 0;
}
