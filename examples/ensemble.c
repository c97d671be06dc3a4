/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An ensemble of simulations in teams of two ranks; any rank may be lost at any moment, also rank 0.
 *
 *   resurgo run --ft -n 4 ./ensemble [N [CYCLES]]
 *
 * 12 members compute the weather on a ring of N points (Lorenz 1996), from slightly different beginnings. A team has
 * some of the members, and shares the points of each. After 20 steps all teams meet: the members' mean draws each of
 * them a little, as observations would. Put your own model into slopes().
 *
 * - Each team has a communicator of its own. Whoever sees a loss revokes both: its team, and all teams together.
 * - Every cycle begins with a checkpoint in memory. After a loss the ranks that are left form teams anew, and share
 *   members and points anew; those of a lost rank come from its partner. If both are lost, all begin again.
 * - The answer is the same, bit for bit, with any number of ranks and teams.
 */
#include <math.h>
#include <mpi-ext.h>
#include <mpi.h>
#include <resurgo_ft.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MEMBERS = 12, BLOCKS = 8, EVERY = 20, TEAM = 2, EDGE = 2 };

static MPI_Comm comm, team = MPI_COMM_NULL;
static int rank, size, seat, seats; /* of all; in my team */

static int n, block;             /* points of a member, and of a block */
static int first, last;          /* my team's members: first, first + 1, ..., last - 1 */
static int low, high, mine;      /* my blocks of each: low, ..., high - 1; and how many points they have */
static double *memory;           /* of my members: points, with EDGE more on the left, and one more on the right */
static double *next, *k1, *k2;   /* the same of one member */
static double mean, spread;
static int cycle;

/* good(), all_good() and shrink(): as in sweep.c, which explains them. */

static int good(int code)
{
    int class, length;
    char text[MPI_MAX_ERROR_STRING];
    if (code == MPI_SUCCESS)
        return 1;
    MPI_Error_class(code, &class);
    if (class == MPIX_ERR_PROC_FAILED || class == MPIX_ERR_REVOKED) {
        MPIX_Comm_revoke(comm);
        if (team != MPI_COMM_NULL)
            MPIX_Comm_revoke(team);
        return 0;
    }
    MPI_Error_string(code, text, &length);
    fprintf(stderr, "ensemble: %s\n", text);
    MPI_Abort(comm, 1);
    return 0;
}

static int all_good(int flag)
{
    const char *library = getenv("LD_PRELOAD");
    if (!library || !strstr(library, "libresurgo-ft")) {
        MPI_Allreduce(MPI_IN_PLACE, &flag, 1, MPI_INT, MPI_LAND, comm);
        return flag;
    }
    return MPIX_Comm_agree(comm, &flag) == MPI_SUCCESS && flag;
}

static void shrink(void)
{
    MPI_Comm fewer;
    if (MPIX_Comm_shrink(comm, &fewer) != MPI_SUCCESS)
        MPI_Abort(comm, 1);
    MPI_Comm_free(&comm);
    comm = fewer;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
}

/* ---- Teams. ---- */

static int teams, my_team;

/* A communicator counts when all ranks agree that it is there: a loss may leave some with it and others without. */
static void form_teams(void)
{
    for (;;) {
        if (team != MPI_COMM_NULL)
            MPI_Comm_free(&team);
        team = MPI_COMM_NULL;
        teams = size < TEAM ? 1 : size / TEAM;
        my_team = rank * teams / size;
        if (all_good(good(MPI_Comm_split(comm, my_team, rank, &team))))
            break;
        shrink();
    }
    MPI_Comm_rank(team, &seat);
    MPI_Comm_size(team, &seats);
}

/* ---- Checkpoints. ---- */

static double *points_of(int member)
{
    return memory + (size_t)(member - first) * (EDGE + mine + 1) + EDGE;
}

static int save(void)
{
    return good(resurgo_ft_checkpoint(comm, cycle, RESURGO_FT_PARTNER, 1));
}

/* Shares members and points, and fills them: from the last checkpoint, or as they are at first. */
static int restore(void)
{
    first = my_team * MEMBERS / teams;
    last = (my_team + 1) * MEMBERS / teams;
    low = seat * BLOCKS / seats;
    high = (seat + 1) * BLOCKS / seats;
    mine = (high - low) * block;
    free(memory);
    memory = calloc((size_t)(last - first + 1) * (EDGE + mine + 1) + 2 * mine, sizeof *memory);
    next = points_of(last), k1 = next + mine + 1, k2 = k1 + mine;
    /* Each block of each member has a number of its own, whichever rank it belongs to. */
    resurgo_ft_unprotect(RESURGO_FT_ALL);
    for (int member = first; member < last; member++)
        for (int at = low; at < high; at++)
            resurgo_ft_protect(member * BLOCKS + at, points_of(member) + (at - low) * block, block, MPI_DOUBLE);
    int code = resurgo_ft_restore(comm, &cycle), is_new = code == RESURGO_FT_NOTHING || code == RESURGO_FT_LOST;
    if (!is_new && !good(code))
        return 0;
    if (is_new)
        cycle = 0;
    if (rank == 0)
        fprintf(stderr, "ensemble: %d ranks in %d teams go on from cycle %d\n", size, teams, cycle);
    for (int member = first; is_new && member < last; member++)
        for (int at = 0; at < mine; at++)
            points_of(member)[at] = 8.0 + 0.01 * ((7 * (low * block + at) + 13 * member) % 17);
    return 1;
}

/* ---- The model. Each function tells whether all calls of MPI have succeeded. ---- */

/* How fast each point changes; it depends on neighbours, also of the next ranks on the ring. */
static int slopes(double *x, double *slope)
{
    int left = (seat + seats - 1) % seats, right = (seat + 1) % seats;
    if (!good(MPI_Sendrecv(x + mine - EDGE, EDGE, MPI_DOUBLE, right, 1, x - EDGE, EDGE, MPI_DOUBLE, left, 1, team,
                           MPI_STATUS_IGNORE)) ||
        !good(MPI_Sendrecv(x, 1, MPI_DOUBLE, left, 2, x + mine, 1, MPI_DOUBLE, right, 2, team, MPI_STATUS_IGNORE)))
        return 0;
    for (int at = 0; at < mine; at++)
        slope[at] = (x[at + 1] - x[at - 2]) * x[at - 1] - x[at] + 8.0;
    return 1;
}

static int forecast(double *x)
{
    for (int step = 0; step < EVERY; step++) {
        if (!slopes(x, k1))
            return 0;
        for (int at = 0; at < mine; at++)
            next[at] = x[at] + 0.01 * k1[at];
        if (!slopes(next, k2))
            return 0;
        for (int at = 0; at < mine; at++)
            x[at] += 0.005 * (k1[at] + k2[at]);
    }
    return 1;
}

/* All members meet. What other ranks have is zero here, so that the sums are exact. */
static int meet(void)
{
    double *all = calloc((size_t)MEMBERS * n, sizeof *all);
    for (int member = first; member < last; member++)
        memcpy(all + (size_t)member * n + low * block, points_of(member), mine * sizeof *all);
    if (!good(MPI_Allreduce(MPI_IN_PLACE, all, MEMBERS * n, MPI_DOUBLE, MPI_SUM, comm))) {
        free(all);
        return 0;
    }
    mean = 0.0, spread = 0.0;
    for (int at = 0; at < n; at++) {
        double sum = 0.0, squares = 0.0;
        for (int member = 0; member < MEMBERS; member++)
            sum += all[(size_t)member * n + at];
        sum /= MEMBERS;
        for (int member = 0; member < MEMBERS; member++) {
            double apart = all[(size_t)member * n + at] - sum;
            squares += apart * apart;
        }
        mean += sum;
        spread += squares;
        for (int member = first; member < last && at >= low * block && at < high * block; member++) {
            double *x = points_of(member) + at - low * block;
            *x += 0.1 * (sum - *x);
        }
    }
    mean /= n;
    spread = sqrt(spread / (MEMBERS * n));
    free(all);
    return 1;
}

static int run_cycle(void)
{
    for (int member = first; member < last; member++)
        if (!forecast(points_of(member)))
            return 0;
    cycle++;
    return meet();
}

int main(int words, char **word)
{
    MPI_Init(&words, &word);
    n = words > 1 ? atoi(word[1]) : 240;
    int cycles = words > 2 ? atoi(word[2]) : 200;
    block = n / BLOCKS;
    /* A communicator of our own. Lost ranks leave messages that nobody receives; in MPI_COMM_WORLD these would make
     * MPI_Finalize fail. Before this, the loss of a rank ends the job. */
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    if (n < EDGE * BLOCKS || n % BLOCKS || size > TEAM * MEMBERS) {
        if (rank == 0)
            fprintf(stderr, "ensemble: N must be a multiple of %d, from %d on, and there may be %d ranks\n", BLOCKS,
                    EDGE * BLOCKS, TEAM * MEMBERS);
        MPI_Finalize();
        return 2;
    }
    /* From now on calls return errors. Otherwise the first loss would end the job. Teams get this from `comm`. */
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);

    form_teams();
    for (int fine = restore();;) {
        fine = fine && save();
        if (!all_good(fine)) {
            shrink();
            form_teams();
            fine = restore();
            continue;
        }
        if (cycle >= cycles)
            break;
        if (rank == 0 && cycle % (cycles / 10 + 1) == 0)
            fprintf(stderr, "ensemble: cycle %d of %d is saved\n", cycle, cycles);
        fine = run_cycle();
    }

    /* The lowest rank prints. If one is lost meanwhile, it may have been that one: then the next prints again. */
    for (;;) {
        if (rank == 0) {
            printf("ensemble: %d members, %d points, %d cycles, mean %.16e, spread %.16e\n", MEMBERS, n, cycles, mean, spread);
            fflush(stdout);
        }
        if (all_good(1))
            break;
        shrink();
    }
    MPI_Finalize();
    return 0;
}
