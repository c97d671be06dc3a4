/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The master and workers of master_worker.c by FT-MPI's rules (modes BLANK and CONT).
 *
 *   resurgo run --ft-mode blank,cont -n 4 ./ftmpi_master_worker [TASKS [POINTS]]
 *
 * Each task throws POINTS random points at a square and counts those in its circle; together they give pi. Put your own
 * work into compute().
 *
 * With CONT messages between the others go on after a failure, so nothing is rebuilt: a lost worker leaves a gap. A
 * receive from any rank tells the master of each failure once, and an attribute says who is lost.
 *
 * - The task of a lost worker goes to another worker.
 * - When all workers are lost, the master computes the rest.
 * - When the master (rank 0) is lost, the job ends: the results were in its memory.
 */
#include <mpi.h>
#include <resurgo_ft.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { MASTER = 0, NOTHING = -1 };
enum { TASK = 1, RESULT, STOP }; /* tags of messages */

/* Whether a call has failed because a process is lost. Any other error is a mistake in the program. */
static int failed(int code)
{
    int length;
    char text[MPI_MAX_ERROR_STRING];
    if (code == MPI_SUCCESS)
        return 0;
    if (code == MPI_ERR_OTHER)
        return 1;
    MPI_Error_string(code, text, &length);
    fprintf(stderr, "ftmpi_master_worker: %s\n", text);
    MPI_Abort(MPI_COMM_WORLD, 1);
    return 1;
}

/* The work of one task. It has random numbers of its own, so that its result does not depend on the worker. */
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

static int ranks, living; /* all ranks; workers that live */
static int64_t *waiting;  /* tasks that no worker has, as a stack */
static int64_t count;     /* how many these are */
static int64_t *hits;     /* the result of each task; NOTHING: not yet known */
static int64_t *task_of;  /* the task of each worker; NOTHING: it is idle */
static char *lost;        /* which workers are lost */

/* The next task for an idle worker, if there is one. */
static void give(int worker)
{
    if (task_of[worker] != NOTHING || lost[worker] || count == 0)
        return;
    task_of[worker] = waiting[--count];
    /* If the worker is lost, we need not know it here: the next receive tells us. */
    failed(MPI_Send(&task_of[worker], 1, MPI_INT64_T, worker, TASK, MPI_COMM_WORLD));
}

/* Finds the workers that were lost since last time, and gives their tasks to others. */
static void look_for_the_lost(void)
{
    int *state, is_there;
    MPI_Comm_get_attr(MPI_COMM_WORLD, FTMPI_PROC_STATES, &state, &is_there);
    for (int worker = 1; worker < ranks && is_there; worker++) {
        if (lost[worker] || state[worker] == FT_PROC_OK)
            continue;
        lost[worker] = 1;
        living--;
        fprintf(stderr, "ftmpi_master_worker: worker %d is lost; %d are left\n", worker, living);
        if (task_of[worker] != NOTHING)
            waiting[count++] = task_of[worker];
    }
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
            if (failed(MPI_Recv(answer, 2, MPI_INT64_T, MPI_ANY_SOURCE, RESULT, MPI_COMM_WORLD, &status))) {
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
            failed(MPI_Send(&done, 1, MPI_INT64_T, worker, STOP, MPI_COMM_WORLD));
    for (int64_t task = 0; task < tasks; task++)
        sum += hits[task];
    printf("ftmpi_master_worker: %lld of %lld points in %lld tasks: pi is about %.6f\n", (long long)sum,
           (long long)(tasks * points), (long long)tasks, 4.0 * sum / (tasks * points));
    fflush(stdout);
}

/* ---- The worker. ---- */

static void without_master(int rank)
{
    fprintf(stderr, "ftmpi_master_worker: rank %d: the master is lost, and all results with it; the job ends\n", rank);
    MPI_Abort(MPI_COMM_WORLD, 3);
}

static void worker(int rank, int64_t points)
{
    for (;;) {
        int64_t answer[2];
        MPI_Status status;
        if (failed(MPI_Recv(answer, 1, MPI_INT64_T, MASTER, MPI_ANY_TAG, MPI_COMM_WORLD, &status)))
            without_master(rank);
        if (status.MPI_TAG == STOP)
            return;
        answer[1] = compute(answer[0], points);
        if (failed(MPI_Send(answer, 2, MPI_INT64_T, MASTER, RESULT, MPI_COMM_WORLD)))
            without_master(rank);
    }
}

int main(int words, char **word)
{
    int rank;
    MPI_Init(&words, &word);
    int64_t tasks = words > 1 ? atoll(word[1]) : 200, points = words > 2 ? atoll(word[2]) : 100000;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    /* From now on calls return errors. Otherwise the first loss would end the job. */
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    failed(MPI_Barrier(MPI_COMM_WORLD)); /* All ranks have begun. If one is lost already, the master will see that. */
    if (rank == MASTER) {
        fprintf(stderr, "ftmpi_master_worker: %lld tasks for %d workers\n", (long long)tasks, ranks - 1);
        master(tasks, points);
    } else
        worker(rank, points);
    MPI_Finalize();
    return 0;
}
