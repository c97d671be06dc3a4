/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Agreements without end, in which ranks are killed. Each rank prints what it has learnt: all that learn the result of
 * an agreement must learn the same.
 *
 *   ulfm_agree SEED ROUNDS KILLS MILLISECONDS
 */
#include "ulfm.h"

int main(int count, char **words)
{
    int rank, size;
    MPI_Init(&count, &words);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Barrier(MPI_COMM_WORLD); /* nobody dies before all have come here */
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    srand(atoi(words[1]));
    int rounds = atoi(words[2]), kills = atoi(words[3]), most = atoi(words[4]);
    for (int victim = size - kills; victim < size; victim++) {
        long when = rand() % (most * 1000L);
        if (victim == rank)
            die_in(when);
    }
    for (int round = 0; round < rounds; round++) {
        int flag = rand() ^ 1 << (rank + round) % 31;
        int code = MPIX_Comm_agree(MPI_COMM_WORLD, &flag);
        printf("agreed %d: %x, %d\n", round, flag, code);
        if (round % 3 == 0)
            MPIX_Comm_failure_ack(MPI_COMM_WORLD);
    }
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
