// SPDX-License-Identifier: Apache-2.0
// Under `resurgo run --ft-mode`: loses as many ranks as its argument says, one after the other. For each loss rank 0
// prints the microseconds from the death until the last survivor knew of it, until MPI_COMM_WORLD was rebuilt at all,
// and until they had used it, with new ranks if there are any.
#include "check.h"
#include <resurgo_ft.h>
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
    int rank, size, *mode, is_there, round = 0, losses = atoi(argv[1]);
    int is_new = MPI_Init(&argc, &argv) == MPI_INIT_RESTARTED_NODE;
    double died = 0, times[3] = {0}, last[3];
    MPI_Comm world;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_get_attr(MPI_COMM_WORLD, FTMPI_COMM_MODE, &mode, &is_there);
    for (;; is_new = 0) {
        if (!is_new) {
            MPI_Comm_rank(MPI_COMM_WORLD, &rank);
            MPI_Comm_size(MPI_COMM_WORLD, &size);
            int victim = *mode == FTMPI_COMM_MODE_BLANK ? size - 1 - round : size - 1;
            int code = MPI_Barrier(MPI_COMM_WORLD);
            CHECK(code == MPI_SUCCESS, "barrier of %d: %d", size, code);
            if (round == losses)
                break;
            struct timespec pause = {.tv_nsec = 20 * 1000 * 1000};
            if (rank == victim) {
                nanosleep(&pause, NULL); // the others wait by then
                died = now();
                MPI_Send(&died, 1, MPI_DOUBLE, 0, 0, MPI_COMM_WORLD);
                raise(SIGKILL);
            }
            if (rank == 0)
                MPI_Recv(&died, 1, MPI_DOUBLE, victim, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            code = MPI_Barrier(MPI_COMM_WORLD);
            times[0] = now();
            CHECK(code != MPI_SUCCESS, "nothing was told");
            CHECK(MPI_Comm_dup(MPI_COMM_WORLD, &world) == MPI_SUCCESS, "rebuilding of %d", size);
            times[1] = now();
            round++;
        }
        int code = MPI_Bcast(&round, 1, MPI_INT, 0, MPI_COMM_WORLD);
        times[2] = now();
        CHECK(code == MPI_SUCCESS, "use after rebuilding: %d", code);
        MPI_Reduce(times, last, 3, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        MPI_Comm_get_attr(MPI_COMM_WORLD, FTMPI_COMM_MODE, &mode, &is_there);
        if (!is_new && rank == 0)
            printf("%.1f %.1f %.1f\n", last[0] - died, last[1] - died, last[2] - died), fflush(stdout);
    }
    MPI_Finalize();
    return 0;
}
