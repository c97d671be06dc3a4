/* SPDX-License-Identifier: Apache-2.0 */
/*
 * As ulfm_calls, for windows and files: all ranks prepare the object; then one is killed, and the call of each other one
 * must come back with the error.
 *
 *   ulfm_objects FILE SEED CALL...
 */
#include "ulfm.h"
#include <unistd.h>

#define LONG 20000

static MPI_Comm comm;
static MPI_Win win;
static MPI_File file;
static MPI_Group others;
static int rank, size;
static int in[LONG], out[LONG], *room;
static const char *path;

static void fail(const char *what, int code)
{
    end_wrong(rank, size, what, code);
}

static void must(int code, const char *what)
{
    if (code)
        fail(what, code);
}

static int open_file(void)
{
    int code = MPI_File_open(comm, path, MPI_MODE_RDWR | MPI_MODE_CREATE, MPI_INFO_NULL, &file);
    if (!code)
        code = MPI_File_set_errhandler(file, MPI_ERRORS_RETURN);
    return code;
}

static int makes(const char *call)
{
    return is(call, "win_create") || is(call, "win_allocate") || is(call, "win_dynamic") || is(call, "file_open");
}

static void prepare(const char *call, int victim)
{
    win = MPI_WIN_NULL, file = MPI_FILE_NULL, others = MPI_GROUP_NULL;
    if (starts(call, "win_") && !makes(call)) {
        must(MPI_Win_allocate(LONG * sizeof *room, sizeof *room, MPI_INFO_NULL, comm, &room, &win), "MPI_Win_allocate");
        must(MPI_Win_set_errhandler(win, MPI_ERRORS_RETURN), "MPI_Win_set_errhandler");
        MPI_Group all;
        MPI_Comm_group(comm, &all);
        MPI_Group_excl(all, 1, &rank, &others);
        MPI_Group_free(&all);
    }
    if (is(call, "win_flush") || is(call, "win_flush_all") || is(call, "win_unlock_all") || starts(call, "win_r"))
        must(MPI_Win_lock_all(0, win), "MPI_Win_lock_all");
    if (is(call, "win_unlock"))
        must(MPI_Win_lock(MPI_LOCK_SHARED, victim, 0, win), "MPI_Win_lock");
    if (is(call, "win_fence"))
        must(MPI_Win_fence(0, win), "MPI_Win_fence");
    if (is(call, "win_wait") || is(call, "win_test"))
        must(MPI_Win_post(others, 0, win), "MPI_Win_post");
    if (starts(call, "file_") && !makes(call))
        must(open_file(), "MPI_File_open");
    MPI_Barrier(comm); /* nobody dies before all are here */
}

static int add_to(int victim, MPI_Request *request)
{
    MPI_Datatype gapped;
    MPI_Type_vector(LONG / 4, 1, 2, MPI_INT, &gapped);
    MPI_Type_commit(&gapped);
    int code;
    if (request)
        code = MPI_Rget_accumulate(out, LONG / 4, MPI_INT, in, LONG / 4, MPI_INT, victim, 0, 1, gapped, MPI_SUM, win, request);
    else
        code = MPI_Accumulate(out, LONG / 4, MPI_INT, victim, 0, 1, gapped, MPI_SUM, win);
    MPI_Type_free(&gapped);
    return code;
}

static int on_window(const char *call, int victim)
{
    MPI_Request request;
    int code = 0, done = 0;
    /* What one rank can do before the failure it does again. */
    while (!code) {
        if (is(call, "win_create"))
            code = MPI_Win_create(in, sizeof in, sizeof *in, MPI_INFO_NULL, comm, &win);
        else if (is(call, "win_allocate"))
            code = MPI_Win_allocate(sizeof in, sizeof *in, MPI_INFO_NULL, comm, &room, &win);
        else if (is(call, "win_dynamic"))
            code = MPI_Win_create_dynamic(MPI_INFO_NULL, comm, &win);
        else if (is(call, "win_fence")) {
            code = MPI_Put(out, LONG, MPI_INT, (rank + 1) % size, 0, LONG, MPI_INT, win);
            code = code ? code : MPI_Win_fence(0, win);
        } else if (is(call, "win_lock") || is(call, "win_exclusive")) {
            code = MPI_Win_lock(is(call, "win_lock") ? MPI_LOCK_SHARED : MPI_LOCK_EXCLUSIVE, victim, 0, win);
            code = code ? code : MPI_Win_unlock(victim, win);
        } else if (is(call, "win_lock_all")) {
            code = MPI_Win_lock_all(0, win);
            code = code ? code : MPI_Win_unlock_all(win);
        } else if (is(call, "win_start")) {
            code = MPI_Win_start(others, 0, win);
            code = code ? code : MPI_Win_complete(win);
        } else if (is(call, "win_wait"))
            code = MPI_Win_wait(win);
        else if (is(call, "win_test"))
            code = MPI_Win_test(win, &done);
        else if (is(call, "win_unlock")) {
            code = add_to(victim, NULL);
            code = code ? code : MPI_Win_unlock(victim, win);
            code = code ? code : MPI_Win_lock(MPI_LOCK_SHARED, victim, 0, win);
        } else if (is(call, "win_unlock_all")) {
            code = add_to(victim, NULL);
            code = code ? code : MPI_Win_unlock_all(win);
            code = code ? code : MPI_Win_lock_all(0, win);
        } else if (is(call, "win_flush") || is(call, "win_flush_all")) {
            code = add_to(victim, NULL);
            if (!code)
                code = is(call, "win_flush") ? MPI_Win_flush(victim, win) : MPI_Win_flush_all(win);
        } else if (is(call, "win_rwait")) {
            code = add_to(victim, &request);
            code = code ? code : MPI_Wait(&request, MPI_STATUS_IGNORE);
        } else if (is(call, "win_rwaitall")) {
            MPI_Request all[2] = {MPI_REQUEST_NULL};
            MPI_Status statuses[2];
            code = add_to(victim, &all[1]);
            code = code ? code : MPI_Waitall(2, all, statuses);
            if (code == MPI_ERR_IN_STATUS)
                code = statuses[1].MPI_ERROR;
        } else if (is(call, "win_free"))
            return MPI_Win_free(&win);
        else
            fail("no such call", 0);
    }
    return code;
}

static int on_file(const char *call)
{
    MPI_Status status;
    MPI_Request request;
    MPI_Offset place = (MPI_Offset)rank * LONG;
    int code = 0;
    while (!code) {
        if (is(call, "file_open"))
            code = open_file();
        else if (is(call, "file_write_all")) {
            code = MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL);
            code = code ? code : MPI_File_write_all(file, out, LONG, MPI_INT, &status);
        } else if (is(call, "file_spread")) { /* each rank has every size-th number: they go through others */
            MPI_Datatype mine;
            MPI_Type_vector(LONG, 1, size, MPI_INT, &mine);
            MPI_Type_commit(&mine);
            code = MPI_File_set_view(file, rank * (MPI_Offset)sizeof(int), MPI_INT, mine, "native", MPI_INFO_NULL);
            code = code ? code : MPI_File_write_all(file, out, LONG, MPI_INT, &status);
            code = code ? code : MPI_File_seek(file, 0, MPI_SEEK_SET);
            code = code ? code : MPI_File_read_all(file, in, LONG, MPI_INT, &status);
            MPI_Type_free(&mine);
        } else if (is(call, "file_read_at_all"))
            code = MPI_File_read_at_all(file, place, in, LONG, MPI_INT, &status);
        else if (is(call, "file_ordered"))
            code = MPI_File_write_ordered(file, out, 10, MPI_INT, &status);
        else if (is(call, "file_begin")) {
            code = MPI_File_write_at_all_begin(file, place, out, LONG, MPI_INT);
            code = code ? code : MPI_File_write_at_all_end(file, out, &status);
        } else if (is(call, "file_iwrite_all")) {
            code = MPI_File_iwrite_at_all(file, place, out, LONG, MPI_INT, &request);
            code = code ? code : MPI_Wait(&request, MPI_STATUS_IGNORE);
        } else if (is(call, "file_set_size"))
            code = MPI_File_set_size(file, LONG);
        else if (is(call, "file_sync"))
            code = MPI_File_sync(file);
        else if (is(call, "file_close"))
            return MPI_File_close(&file);
        else
            fail("no such call", 0);
    }
    return code;
}

/* The object is broken for each rank; it can be given back, and the survivors make another that works. */
static void shrink(const char *call)
{
    MPI_Comm new;
    MPI_Group failed;
    int before = size, sum, got = -1;
    if (win != MPI_WIN_NULL && !makes(call)) {
        if (MPI_Put(out, 1, MPI_INT, 0, 0, 1, MPI_INT, win) != MPIX_ERR_PROC_FAILED)
            fail("a message to a broken window", 0);
        MPIX_Win_get_failed(win, &failed);
        MPI_Group_size(failed, &sum);
        MPI_Group_free(&failed);
        if (sum < 1)
            fail("failed members of the window", sum);
    }
    if (win != MPI_WIN_NULL) {
        int code = MPI_Win_free(&win);
        if (code != MPIX_ERR_PROC_FAILED && code != MPI_SUCCESS)
            fail("MPI_Win_free", code);
    }
    if (file != MPI_FILE_NULL) {
        int code = MPI_File_close(&file);
        if (code != MPIX_ERR_PROC_FAILED && code != MPI_SUCCESS)
            fail("MPI_File_close", code);
    }
    if (others != MPI_GROUP_NULL)
        MPI_Group_free(&others);
    must(MPIX_Comm_shrink(comm, &new), "MPIX_Comm_shrink");
    MPI_Comm_free(&comm);
    comm = new;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    must(MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, comm), "MPI_Allreduce");
    if (size != before - 1 || sum != size * (size - 1) / 2)
        fail("the answer after shrink", sum);
    must(MPI_Win_allocate(sizeof *room, sizeof *room, MPI_INFO_NULL, comm, &room, &win), "a new window");
    must(MPI_Win_fence(0, win), "MPI_Win_fence");
    must(MPI_Put(&rank, 1, MPI_INT, (rank + 1) % size, 0, 1, MPI_INT, win), "MPI_Put");
    must(MPI_Win_fence(0, win), "MPI_Win_fence");
    got = *room;
    must(MPI_Win_free(&win), "MPI_Win_free of a new window");
    if (got != (rank + size - 1) % size)
        fail("what is in the new window", got);
    must(open_file(), "MPI_File_open of a new file");
    must(MPI_File_write_at_all(file, (MPI_Offset)rank * (MPI_Offset)sizeof rank, &rank, 1, MPI_INT, MPI_STATUS_IGNORE), "write");
    must(MPI_File_sync(file), "MPI_File_sync");
    MPI_Barrier(comm);
    int next = (rank + 1) % size;
    must(MPI_File_read_at_all(file, next * (MPI_Offset)sizeof got, &got, 1, MPI_INT, MPI_STATUS_IGNORE), "read");
    must(MPI_File_close(&file), "MPI_File_close of a new file");
    if (got != next)
        fail("what is in the new file", got);
}

int main(int count, char **words)
{
    int provided;
    MPI_Init_thread(&count, &words, atoi(words[2]) % 2 ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &provided);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    path = words[1];
    srand(atoi(words[2]));
    for (int at = 3; at < count; at++) {
        int victim = rand() % size, soon = rand() % 20000;
        prepare(words[at], victim);
        if (rank == victim) {
            die_in(soon);
            for (;;)
                if (is(words[at], "win_flush") || soon % 2)
                    MPI_Iprobe(0, 77, MPI_COMM_SELF, &(int){0}, MPI_STATUS_IGNORE); /* it serves others meanwhile */
        }
        int code = starts(words[at], "win_") ? on_window(words[at], victim) : on_file(words[at]);
        if (code != MPIX_ERR_PROC_FAILED)
            fail(words[at], code);
        shrink(words[at]);
        if (rank == 0) {
            printf("ok %s %d\n", words[at], size);
            fflush(stdout);
        }
    }
    MPI_Finalize();
    return 0;
}
