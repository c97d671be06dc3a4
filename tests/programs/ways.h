// SPDX-License-Identifier: Apache-2.0
// What programs of many ways have in common: each rank's total, which depends on all that it has found, and goes round.
// Before this ROW and SEEN say how many numbers they have room for.
#include "check.h"

#define MANY 48 // numbers in a row
#define WORLD MPI_COMM_WORLD
#define DONE MPI_STATUS_IGNORE

static int rank, size, beside, before;
static long steps, pause_us;
static uint64_t total, row[ROW], seen[SEEN];

static void talk(uint64_t found)
{
    total = mixed(total, found);
    uint64_t in = 0;
    MPI_Sendrecv(&total, 1, MPI_UINT64_T, beside, 7, &in, 1, MPI_UINT64_T, before, 7, WORLD, DONE);
    total = mixed(total, in);
}

static void rest(long step)
{
    if (pause_us)
        usleep((useconds_t)pause_us);
    linger(step, steps);
}

static uint64_t *new_row(void)
{
    fill(row, sizeof row, total);
    return row;
}

static uint64_t look(const void *what, size_t bytes)
{
    return hash_bytes(FNV_START, what, bytes);
}
