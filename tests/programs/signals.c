// SPDX-License-Identifier: Apache-2.0
// A ring whose ranks tell what signals they get, and save themselves on SIGTERM and SIGINT. It ends when a file is there, or
// after the signal that saves them.   signals FILE [handled (default all) | none]
#include "check.h"
#include <signal.h>
#include <unistd.h>

static volatile sig_atomic_t got[65];

static void note(int number)
{
    got[number] = 1;
}

int main(int argc, char **argv)
{
    static const int all[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT, SIGTSTP};
    const char *handled = argc > 2 ? argv[2] : "all";
    struct sigaction action = {.sa_handler = note, .sa_flags = SA_RESTART};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(handled, "all") == 0)
            sigaction(all[i], &action, NULL);
    int rank, size, saved = 0, over = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    uint64_t value = (uint64_t)rank;
    for (int round = 0; !over; round++) {
        int ends = access(argv[1], F_OK) == 0 || saved;
        MPI_Allreduce(&ends, &over, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD);
        MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
        if (rank == 0 && round == 0)
            printf("ready\n"), fflush(stdout);
        usleep(10000);
        for (int number = 1; number < 65; number++)
            if (got[number]) {
                got[number] = 0;
                saved |= number == SIGTERM || number == SIGINT;
                printf("rank %d got signal %d\n", rank, number), fflush(stdout);
            }
    }
    if (rank == 0)
        printf("over\n");
    MPI_Finalize();
    return 0;
}
