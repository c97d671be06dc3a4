/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The last rank dies while each other one is blocked in another call, in which it waits for a rank that lives, in a
 * communicator without the dead one. By FT-MPI's rules every call comes back with MPI_ERR_OTHER.
 *
 *   ftmpi_blocked
 */
#include "ftmpi.h"
#include <unistd.h>

static int blocked(MPI_Comm comm, int how)
{
    int value = 0, index, flag = 0, code;
    MPI_Request request;
    MPI_Status status;
    switch (how) {
    case 0:
        // A send does not block: it is told of what it can know.
        while (attribute(MPI_COMM_WORLD, FTMPI_COMM_STATE, 0) == FT_OK)
            usleep(1000);
        return MPI_Send(&value, 1, MPI_INT, 1, 9, comm);
    case 1:
        return MPI_Recv(&value, 1, MPI_INT, 0, 1, comm, &status);
    case 2:
        return MPI_Recv(&value, 1, MPI_INT, MPI_ANY_SOURCE, 1, comm, MPI_STATUS_IGNORE);
    case 3:
        return MPI_Probe(0, 1, comm, &status);
    case 4:
        return MPI_Barrier(comm);
    case 5:
        code = MPI_Irecv(&value, 1, MPI_INT, MPI_ANY_SOURCE, 1, comm, &request);
        return code ? code : MPI_Waitany(1, &request, &index, &status);
    case 6:
        return MPI_Ssend(&value, 1, MPI_INT, 0, 1, comm);
    case 7:
        code = MPI_Ibarrier(comm, &request);
        return code ? code : MPI_Wait(&request, MPI_STATUS_IGNORE);
    case 8:
        code = MPI_Irecv(&value, 1, MPI_INT, 0, 1, comm, &request);
        return code ? code : MPI_Waitall(1, &request, &status);
    case 9:
        code = MPI_Irecv(&value, 1, MPI_INT, 0, 1, comm, &request);
        while (!code && !flag)
            code = MPI_Test(&request, &flag, &status);
        return code;
    case 10:
        return MPI_Comm_split(comm, 0, 0, &comm);
    default:
        return MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_INT, MPI_SUM, comm);
    }
}

int main(int count, char **words)
{
    int rank, size, sum, code;
    MPI_Comm comm, new, comms[16];
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_split(MPI_COMM_WORLD, rank == size - 1, rank, &comm);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    for (int number = 0; number < size; number++)
        MPI_Comm_dup(comm, &comms[number]);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == size - 1) {
        usleep(50000);
        exit(9);
    }
    code = blocked(comms[rank], rank);
    if (code != MPI_ERR_OTHER)
        printf("WRONG: rank %d: %d\n", rank, code);
    code = MPI_Comm_dup(MPI_COMM_WORLD, &new);
    if (!code)
        code = MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (code || sum != (size - 1) * (size - 2) / 2)
        printf("WRONG: rank %d: %d, %d\n", rank, code, sum);
    printf("back %d\n", rank);
    MPI_Finalize();
    return 0;
}
