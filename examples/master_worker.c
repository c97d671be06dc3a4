/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A master gives tasks to workers; workers may be lost at any moment.
 *
 *   resurgo run --ft -n 4 ./master_worker [TASKS [POINTS]]
 *
 * Each task throws POINTS random points at a square and counts those in its circle; together they give pi. A task has
 * random numbers of its own, so that its result does not depend on the worker. Put your own work into compute().
 *
 * - The task of a lost worker goes to another worker.
 * - When all workers are lost, the master computes the rest.
 * - When the master (rank 0) is lost, the job ends: the results were in its memory.
 */
#include <mpi-ext.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { MASTER = 0, NOTHING = -1 };
enum { TASK = 1, RESULT, STOP }; /* tags of messages */

static MPI_Comm comm;

/* Whether a call has failed because a process is lost. Any other error is a mistake in the program. */
static int failed(int code)
{
    int class, length;
    char text[MPI_MAX_ERROR_STRING];
    if (code == MPI_SUCCESS)
        return 0;
    MPI_Error_class(code, &class);
    if (class == MPIX_ERR_PROC_FAILED)
        return 1;
    MPI_Error_string(code, text, &length);
    fprintf(stderr, "master_worker: %s\n", text);
    MPI_Abort(comm, 1);
    return 1;
}

/* The work of one task. */
static int64_t compute(int64_t task, int64_t points)
{
    int64_t hits = 0, random = 1 + task * 7919 % 2147483646;
    for (int64_t point = 0; point < points; point++) {
        random = random * 16807 % 2147483647;
        double x = random / 2147483647.0;
        random = random * 16807 % 2147483647;
        double y = random / 2147483647.0;
        hits += x * x + y * y < 1.0;
    }
    return hits;
}

/* ---- What the master knows. ---- */

static int ranks, living;      /* all ranks; workers that live */
static int64_t *waiting;       /* tasks that no worker has, as a stack */
static int64_t count;          /* how many these are */
static int64_t *hits;          /* the result of each task; NOTHING: not yet known */
static int64_t *task_of;       /* the task of each worker; NOTHING: it is idle */
static char *lost;             /* which workers are lost */

/* The next task for an idle worker, if there is one. */
static void give(int worker)
{
    if (task_of[worker] != NOTHING || lost[worker] || count == 0)
        return;
    task_of[worker] = waiting[--count];
    /* If the worker is lost, we need not know it here: the next receive tells us. */
    failed(MPI_Send(&task_of[worker], 1, MPI_INT64_T, worker, TASK, comm));
}

/* Finds the workers that were lost since last time, and gives their tasks to others. */
static void look_for_the_lost(void)
{
    MPI_Group all, gone;
    int number;
    /* "I know of these failures": from now on MPI_ANY_SOURCE waits for the ranks that are left. */
    MPIX_Comm_failure_ack(comm);
    MPIX_Comm_failure_get_acked(comm, &gone);
    MPI_Comm_group(comm, &all);
    MPI_Group_size(gone, &number);
    for (int at = 0; at < number; at++) {
        int worker; /* the rank in `comm` of member `at` of the group */
        MPI_Group_translate_ranks(gone, 1, &at, all, &worker);
        if (lost[worker])
            continue;
        lost[worker] = 1;
        living--;
        fprintf(stderr, "master_worker: worker %d is lost; %d are left\n", worker, living);
        if (task_of[worker] != NOTHING)
            waiting[count++] = task_of[worker];
    }
    MPI_Group_free(&gone);
    MPI_Group_free(&all);
    for (int worker = 1; worker < ranks; worker++)
        give(worker);
}

static void master(int64_t tasks, int64_t points)
{
    int64_t done = 0, sum = 0;
    waiting = malloc(tasks * sizeof *waiting);
    hits = malloc(tasks * sizeof *hits);
    task_of = malloc(ranks * sizeof *task_of);
    lost = calloc(ranks, 1);
    for (int64_t task = tasks - 1; task >= 0; task--) {
        waiting[count++] = task;
        hits[task] = NOTHING;
    }
    living = ranks - 1;
    for (int worker = 1; worker < ranks; worker++) {
        task_of[worker] = NOTHING;
        give(worker);
    }
    while (done < tasks) {
        int64_t answer[2]; /* a task and its result */
        if (living == 0) {
            answer[0] = waiting[--count];
            answer[1] = compute(answer[0], points);
        } else {
            MPI_Status status;
            if (failed(MPI_Recv(answer, 2, MPI_INT64_T, MPI_ANY_SOURCE, RESULT, comm, &status))) {
                look_for_the_lost();
                continue;
            }
            /* This may be the last message of a worker that is lost by now. give() sends such a worker nothing. */
            task_of[status.MPI_SOURCE] = NOTHING;
            give(status.MPI_SOURCE);
        }
        /* A lost worker's task goes to another although its result may still arrive. So it may come twice. */
        if (hits[answer[0]] == NOTHING) {
            hits[answer[0]] = answer[1];
            done++;
        }
    }
    for (int worker = 1; worker < ranks; worker++)
        if (!lost[worker])
            failed(MPI_Send(&done, 1, MPI_INT64_T, worker, STOP, comm));
    for (int64_t task = 0; task < tasks; task++)
        sum += hits[task];
    printf("master_worker: %lld of %lld points in %lld tasks: pi is about %.6f\n", (long long)sum,
           (long long)(tasks * points), (long long)tasks, 4.0 * sum / (tasks * points));
    fflush(stdout);
}

/* ---- The worker. ---- */

static void without_master(int rank)
{
    fprintf(stderr, "master_worker: rank %d: the master is lost, and all results with it; the job ends\n", rank);
    MPI_Abort(comm, 3);
}

static void worker(int rank, int64_t points)
{
    for (;;) {
        int64_t answer[2];
        MPI_Status status;
        if (failed(MPI_Recv(answer, 1, MPI_INT64_T, MASTER, MPI_ANY_TAG, comm, &status)))
            without_master(rank);
        if (status.MPI_TAG == STOP)
            return;
        answer[1] = compute(answer[0], points);
        if (failed(MPI_Send(answer, 2, MPI_INT64_T, MASTER, RESULT, comm)))
            without_master(rank);
    }
}

int main(int words, char **word)
{
    int rank;
    MPI_Init(&words, &word);
    int64_t tasks = words > 1 ? atoll(word[1]) : 200, points = words > 2 ? atoll(word[2]) : 100000;
    /* A communicator of our own. Lost ranks leave messages that nobody receives; in MPI_COMM_WORLD these would make
     * MPI_Finalize fail. Before this, the loss of a rank ends the job. */
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &ranks);
    /* From now on calls return errors. Otherwise the first loss would end the job. */
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    failed(MPI_Barrier(comm)); /* All ranks have begun. If one is lost already, the master will see that. */
    if (rank == MASTER) {
        fprintf(stderr, "master_worker: %lld tasks for %d workers\n", (long long)tasks, ranks - 1);
        master(tasks, points);
    } else
        worker(rank, points);
    MPI_Finalize();
    return 0;
}
