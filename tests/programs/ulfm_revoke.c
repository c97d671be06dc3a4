/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank revokes a communicator, while each other one is blocked in another call on it. No rank fails. The user's
 * error handler is called, and may leave by longjmp.
 *
 *   ulfm_revoke FILE
 */
#include <mpi-ext.h>
#include <mpi.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static jmp_buf back;
static int handled;

static void handle(MPI_Comm *comm, int *code, ...)
{
    int class;
    (void)comm;
    MPI_Error_class(*code, &class);
    handled = class;
    if (class == MPIX_ERR_REVOKED)
        longjmp(back, 1);
}

static int blocked(MPI_Comm comm, int how)
{
    int value = 0, index;
    MPI_Request request;
    MPI_Status status;
    int code;
    switch (how) {
    case 1:
        return MPI_Recv(&value, 1, MPI_INT, 0, 1, comm, &status);
    case 2:
        return MPI_Recv(&value, 1, MPI_INT, MPI_ANY_SOURCE, 1, comm, MPI_STATUS_IGNORE);
    case 3:
        return MPI_Probe(MPI_ANY_SOURCE, 1, comm, &status);
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
    default:
        return MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_INT, MPI_SUM, comm);
    }
}

static void must_be_revoked(const char *what, int rank, int code)
{
    if (code != MPIX_ERR_REVOKED) {
        printf("WRONG: rank %d: %s: code %d\n", rank, what, code);
        MPI_Abort(MPI_COMM_WORLD, 3);
    }
}

/* The same for a window, which rank 0 has locked, and for a file. */
static void objects(int rank, const char *path)
{
    static int number;
    int *room;
    MPI_Win win;
    MPI_File file;
    MPI_Win_allocate(sizeof *room, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &room, &win);
    MPI_Win_set_errhandler(win, MPI_ERRORS_RETURN);
    if (rank == 0)
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, win);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        usleep(3000);
        MPIX_Win_revoke(win);
        MPI_Barrier(MPI_COMM_WORLD);
        must_be_revoked("MPI_Win_unlock", rank, MPI_Win_unlock(0, win));
    } else {
        must_be_revoked("MPI_Win_lock", rank, MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, win));
        MPI_Barrier(MPI_COMM_WORLD);
    }
    must_be_revoked("MPI_Win_free", rank, MPI_Win_free(&win));
    if (MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDWR | MPI_MODE_CREATE, MPI_INFO_NULL, &file))
        must_be_revoked("MPI_File_open", rank, MPI_SUCCESS);
    /* Otherwise some may still be opening it. */
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        usleep(3000);
        MPIX_File_revoke(file);
    } else
        must_be_revoked("MPI_File_set_size", rank, MPI_File_set_size(file, 100));
    MPI_Barrier(MPI_COMM_WORLD);
    must_be_revoked("MPI_File_write_at", rank, MPI_File_write_at(file, 0, &number, 1, MPI_INT, MPI_STATUS_IGNORE));
    must_be_revoked("MPI_File_close", rank, MPI_File_close(&file));
    if (win != MPI_WIN_NULL || file != MPI_FILE_NULL)
        must_be_revoked("what is left", rank, MPI_SUCCESS);
}

int main(int count, char **words)
{
    int rank, size, is_revoked = 0, sum, flag = 1;
    MPI_Comm comm, new;
    MPI_Errhandler handler;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_create_errhandler(handle, &handler);
    for (int round = 0; round < 20; round++) {
        MPI_Comm_dup(MPI_COMM_WORLD, &comm);
        MPI_Comm_set_errhandler(comm, round % 2 ? handler : MPI_ERRORS_RETURN);
        volatile int code = MPI_SUCCESS;
        handled = 0;
        if (rank == 0) {
            usleep(round * 300);
            MPIX_Comm_revoke(comm);
        } else if (!setjmp(back)) {
            code = blocked(comm, rank);
        } else
            code = handled;
        if (rank && (code != MPIX_ERR_REVOKED || (round % 2 && handled != code))) {
            printf("WRONG: rank %d round %d: code %d, handled %d\n", rank, round, code, handled);
            MPI_Abort(MPI_COMM_WORLD, 3);
        }
        MPIX_Comm_is_revoked(comm, &is_revoked);
        MPI_Comm_set_errhandler(comm, MPI_ERRORS_ARE_FATAL);
        MPIX_Comm_agree(comm, &flag);
        MPIX_Comm_shrink(comm, &new);
        MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, new);
        if (!is_revoked || flag != 1 || sum != size * (size - 1) / 2) {
            printf("WRONG: rank %d round %d: %d %d %d\n", rank, round, is_revoked, flag, sum);
            MPI_Abort(MPI_COMM_WORLD, 3);
        }
        MPI_Comm_free(&new);
        MPI_Comm_free(&comm);
    }
    for (int round = 0; round < 5; round++)
        objects(rank, words[1]);
    if (rank == 0)
        printf("revoked\n");
    MPI_Finalize();
    return 0;
}
