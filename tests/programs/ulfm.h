/* SPDX-License-Identifier: Apache-2.0 */
/* What the programs that deal with failures share. */
#ifndef ULFM_H
#define ULFM_H

#include <mpi-ext.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The kernel kills this process after so many microseconds, wherever it is. */
static inline void die_in(long microseconds)
{
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
    struct itimerspec when = {.it_value = {microseconds / 1000000, microseconds % 1000000 * 1000 + 1}};
    timer_t timer;
    timer_create(CLOCK_MONOTONIC, &event, &timer);
    timer_settime(timer, 0, &when, NULL);
}

/* This rank has seen what must not be: an error of this code. It ends the job. */
static inline void end_wrong(int rank, int size, const char *what, int code)
{
    int class = -1;
    MPI_Error_class(code, &class);
    printf("WRONG: rank %d of %d: %s: class %d\n", rank, size, what, class);
    fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, 3);
}

static inline int is(const char *call, const char *name)
{
    return !strcmp(call, name);
}

static inline int starts(const char *call, const char *with)
{
    return !strncmp(call, with, strlen(with));
}

#endif
