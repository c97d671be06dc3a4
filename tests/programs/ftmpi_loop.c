/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls on MPI_COMM_WORLD and on communicators made from it, each with an answer that every rank knows. Some ranks are
 * killed at random moments; the others rebuild MPI_COMM_WORLD and go on from a step that all have reached.
 *
 *   ftmpi_loop SEED STEPS KILLS MILLISECONDS LOWEST HOW [MORE FILE]
 *
 * KILLS ranks, drawn from SEED, die within so many milliseconds; rank 0 is one of them if LOWEST is 1. HOW: "codes":
 * the program looks at what calls return, and rebuilds by MPI_Comm_dup; "split", "create": the same by that call;
 * "jump": an error handler, set at the start, leaves by longjmp. With the modes
 * that start new ranks about MORE others die, as survivors while they rebuild or as newcomers before they have joined;
 * FILE, which is empty at first, counts them. One rank never dies.
 */
#include "ftmpi.h"
#include <limits.h>
#include <setjmp.h>
#include <sys/stat.h>
#include <unistd.h>

#define LONG 20000
#define MOST 64
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        int code_ = call;                                                                                              \
        if (code_)                                                                                                     \
            return code_;                                                                                              \
    } while (0)

static int rank, size, world, mode, is_new, never_dies, alive[MOST];
static const char *more = "0", *file, *how;
static MPI_Comm part = MPI_COMM_NULL;
static volatile int in_world = 1;
static jmp_buf back;

static void fail(const char *what, int step, long got)
{
    printf("WRONG: rank %d (%d of %d): %s in step %d: %ld\n", world, rank, size, what, step, got);
    fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, 3);
}

static void handle(MPI_Comm *comm, int *code, ...)
{
    if (in_world && *comm != MPI_COMM_WORLD)
        fail("communicator", *code, *comm);
    longjmp(back, *code);
}

/* The rank that lives, from this one on, in steps of this width. */
static int living(int from, int width)
{
    while (!alive[from])
        from = (from + width + size) % size;
    return from;
}

static int sums(int step)
{
    static int in[LONG], out[LONG];
    int count = step % 7 ? 3 : LONG, all = 0, root = living(step % size, 1);
    for (int at = 0; at < size; at++)
        all += alive[at] ? at + step : 0;
    for (int at = 0; at < count; at++)
        out[at] = rank + step;
    if (step % 3 == 0)
        TRY(MPI_Allreduce(out, in, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
    else if (step % 3 == 1) {
        MPI_Request request;
        TRY(MPI_Iallreduce(out, in, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request));
        TRY(MPI_Wait(&request, MPI_STATUS_IGNORE));
    } else {
        TRY(MPI_Reduce(out, in, count, MPI_INT, MPI_SUM, root, MPI_COMM_WORLD));
        TRY(MPI_Bcast(in, count, MPI_INT, root, MPI_COMM_WORLD));
    }
    for (int at = 0; at < count; at++)
        if (in[at] != all)
            fail("sum", step, in[at]);
    return 0;
}

/* Nothing comes from the dead, and what is in their places stays. */
static void check_table(const char *what, int step, const int *in, int factor, int plus)
{
    for (int at = 0; at < size; at++)
        if (in[at] != (alive[at] ? factor * at + plus : -1))
            fail(what, step, in[at]);
}

static int tables(int step)
{
    int out[MOST], in[MOST], one = -1, counts[MOST], starts[MOST], root = living(step % size, 1);
    MPI_Request request;
    for (int at = 0; at < size; at++) {
        out[at] = 100 * rank + at + step;
        counts[at] = 1;
        starts[at] = at;
    }
    memset(in, -1, sizeof in);
    TRY(MPI_Alltoall(out, 1, MPI_INT, in, 1, MPI_INT, MPI_COMM_WORLD));
    check_table("alltoall", step, in, 100, rank + step);
    memset(in, -1, sizeof in);
    TRY(MPI_Ialltoallv(out, counts, starts, MPI_INT, in, counts, starts, MPI_INT, MPI_COMM_WORLD, &request));
    TRY(MPI_Wait(&request, MPI_STATUS_IGNORE));
    check_table("alltoallv", step, in, 100, rank + step);
    memset(in, -1, sizeof in);
    TRY(MPI_Allgather(out, 1, MPI_INT, in, 1, MPI_INT, MPI_COMM_WORLD));
    check_table("allgather", step, in, 100, step);
    memset(in, -1, sizeof in);
    TRY(MPI_Gather(out, 1, MPI_INT, in, 1, MPI_INT, root, MPI_COMM_WORLD));
    if (rank == root)
        check_table("gather", step, in, 100, step);
    memset(in, -1, sizeof in);
    TRY(MPI_Gatherv(out, 1, MPI_INT, in, counts, starts, MPI_INT, root, MPI_COMM_WORLD));
    if (rank == root)
        check_table("gatherv", step, in, 100, step);
    TRY(MPI_Scatter(out, 1, MPI_INT, &one, 1, MPI_INT, root, MPI_COMM_WORLD));
    if (one != 100 * root + rank + step)
        fail("scatter", step, one);
    TRY(MPI_Reduce_scatter_block(out, &one, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD));
    if (one != 100 * living(size - 1, -1) + rank + step)
        fail("reduce_scatter", step, one);
    return 0;
}

static int ring(int step)
{
    static int in[LONG], out[LONG];
    int right = living((rank + 1) % size, 1), left = living((rank + size - 1) % size, -1), count = step % 5 ? 4 : LONG;
    MPI_Status statuses[2];
    MPI_Request requests[2];
    for (int at = 0; at < count; at++)
        out[at] = rank * 1000 + step + at;
    if (step % 2) {
        TRY(MPI_Irecv(in, count, MPI_INT, left, step, MPI_COMM_WORLD, &requests[0]));
        TRY(MPI_Isend(out, count, MPI_INT, right, step, MPI_COMM_WORLD, &requests[1]));
        TRY(MPI_Waitall(2, requests, statuses));
    } else if (step % 4) {
        TRY(MPI_Sendrecv(out, count, MPI_INT, right, step, in, count, MPI_INT, MPI_ANY_SOURCE, step, MPI_COMM_WORLD,
                         &statuses[0]));
    } else {
        TRY(MPI_Isend(out, count, MPI_INT, right, step, MPI_COMM_WORLD, &requests[1]));
        TRY(MPI_Probe(MPI_ANY_SOURCE, step, MPI_COMM_WORLD, &statuses[0]));
        TRY(MPI_Recv(in, count, MPI_INT, statuses[0].MPI_SOURCE, step, MPI_COMM_WORLD, &statuses[0]));
        TRY(MPI_Wait(&requests[1], &statuses[1]));
    }
    if (statuses[0].MPI_SOURCE != left)
        fail("source", step, statuses[0].MPI_SOURCE);
    for (int at = 0; at < count; at++)
        if (in[at] != left * 1000 + step + at)
            fail("ring", step, in[at]);
    return 0;
}

static int parts(int step)
{
    int of, sum, all = 0, members = 0, other = rank ^ 2, place = 0, got = -1;
    MPI_Comm twin;
    if (part == MPI_COMM_NULL)
        TRY(MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &part));
    MPI_Comm_size(part, &of);
    TRY(MPI_Comm_dup(part, &twin));
    TRY(MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, twin));
    for (int number = rank % 2; number < size; number += 2) {
        members += alive[number];
        all += alive[number] ? number : 0;
        place += number < other && alive[number];
    }
    if (sum != all || of != members)
        fail("parts", step, sum);
    if (other < size && alive[other]) {
        TRY(MPI_Sendrecv(&rank, 1, MPI_INT, place, 7, &got, 1, MPI_INT, place, 7, twin, MPI_STATUS_IGNORE));
        if (got != other)
            fail("other", step, got);
    }
    TRY(MPI_Comm_free(&twin));
    return 0;
}

/* Perhaps this process dies soon. */
static void perhaps_die(void)
{
    struct stat status;
    if (never_dies || !file || stat(file, &status) || status.st_size > atoi(more) || rand() % 2)
        return;
    FILE *counter = fopen(file, "a");
    fputc('+', counter);
    fclose(counter);
    die_in(rand() % 80000);
}

/* Each way rebuilds MPI_COMM_WORLD, and two of them make another communicator from it. */
static int rebuild(void)
{
    MPI_Comm new = MPI_COMM_WORLD;
    MPI_Group group;
    int finds_it_whole = is_new == 2, members, one = 1, all, code;
    if (!strcmp(how, "split"))
        TRY(MPI_Comm_split(MPI_COMM_WORLD, 0, world, &new));
    else if (!strcmp(how, "create")) {
        MPI_Comm_group(MPI_COMM_WORLD, &group);
        code = MPI_Comm_create(MPI_COMM_WORLD, group, &new);
        MPI_Group_free(&group);
        TRY(code);
    } else if (!finds_it_whole)
        TRY(MPI_Comm_dup(MPI_COMM_WORLD, &new));
    is_new = is_new != 0;
    if (new == MPI_COMM_WORLD)
        return 0;
    MPI_Comm_size(new, &members);
    MPI_Comm_free(&new);
    TRY(MPI_Allreduce(&one, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
    if (members != all)
        fail("members", all, members);
    return 0;
}

/* The paper's way: rebuild MPI_COMM_WORLD, then all that was made from it. */
static int recover(int *step)
{
    int before = size, mine = is_new ? INT_MAX : *step, fills = mode >= FTMPI_COMM_MODE_REBUILD;
    if (fills)
        perhaps_die();
    TRY(rebuild());
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int failed = attribute(MPI_COMM_WORLD, FTMPI_NUM_FAILED_PROCS, 0);
    for (int at = 0; at < size; at++)
        alive[at] = attribute(MPI_COMM_WORLD, FTMPI_PROC_STATES, at) == FT_PROC_OK;
    if (before && (mode == FTMPI_COMM_MODE_SHRINK ? size >= before : size != before))
        fail("size", *step, before);
    if ((mode == FTMPI_COMM_MODE_BLANK || mode == FTMPI_COMM_MODE_REBUILD) && rank != world)
        fail("place", *step, world);
    if (failed < 1 || attribute(MPI_COMM_WORLD, FTMPI_COMM_STATE, 0) == FT_OK)
        fail("rebuilt", *step, failed);
    TRY(MPI_Allreduce(&mine, step, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD));
    is_new = 0;
    if (part != MPI_COMM_NULL)
        MPI_Comm_free(&part);
    return 0;
}

int main(int count, char **words)
{
    MPI_Errhandler handler;
    MPI_Comm parent;
    if (count > 8) {
        struct stat status;
        more = words[7], file = words[8];
        srand(getpid() * 7919 + time(NULL));
        if (!stat(file, &status) && status.st_size)
            perhaps_die(); /* within MPI_Init */
    }
    how = words[6];
    int code = MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_get_parent(&parent);
    is_new = code == MPI_INIT_RESTARTED_NODE ? 2 : 0;
    world = rank;
    mode = attribute(MPI_COMM_WORLD, FTMPI_COMM_MODE, 0);
    if ((code && !is_new) || parent != MPI_COMM_NULL)
        fail("begin", code, parent);
    for (int at = 0; at < size; at++)
        alive[at] = 1;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (!is_new) {
        MPI_Barrier(MPI_COMM_WORLD); /* nobody dies before all have come here, but while some are still in it */
        srand(atoi(words[1]));
    }
    int steps = atoi(words[2]), kills = atoi(words[3]), most = atoi(words[4]), lowest = atoi(words[5]);
    int jumps = !strcmp(how, "jump"), dies[MOST] = {0};
    MPI_Comm_create_errhandler(handle, &handler);
    if (jumps)
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, handler);
    if (!is_new) {
        int saved = 1 + rand() % (size - 1);
        dies[saved] = 1;
        never_dies = rank == saved;
        if (file && never_dies) { /* from now on all that begin are new */
            FILE *counter = fopen(file, "a");
            fputc('+', counter);
            fclose(counter);
        }
    }
    for (int kill = 0; kill < kills && !is_new;) {
        int victim = lowest && !kill ? 0 : rand() % size;
        long when = rand() % (most * 1000L);
        if (dies[victim]++)
            continue;
        kill++;
        if (victim == rank)
            die_in(when);
    }
    int (*const calls[])(int) = {sums, ring, tables, parts};
    volatile int recoveries = 0, is_hurt = is_new, step = 0;
    code = setjmp(back);
    while (step < steps) {
        int next = step;
        if (code) {
            if (code != MPI_ERR_OTHER)
                fail("code", step, code);
            is_hurt = 1;
        }
        if (is_hurt) {
            recoveries++;
            in_world = 1;
            code = recover(&next);
            is_hurt = code != 0;
            step = code ? step : next; /* what came with an error means nothing */
        } else {
            in_world = step % 4 != 3;
            code = calls[step % 4](step);
            step += !code;
        }
    }
    printf("rank %d: done, %d of %d, %d recoveries\n", world, rank, size, recoveries);
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
