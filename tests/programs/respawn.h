/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that die are replaced by MPI_Comm_spawn, in their places of `comm`. A newcomer's command line has one word more:
 * the number of the spawn. */
#ifndef RESPAWN_H
#define RESPAWN_H

#include "ulfm.h"

#define MOST 16

static MPI_Comm comm = MPI_COMM_NULL;
static int rank, size, spawns;
static char **command;
static int command_words; /* without that number */

static inline void fail(const char *what, long got)
{
    printf("WRONG: place %d of %d: %s: %ld\n", rank, size, what, got);
    fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, 3);
}

/* The newcomers learn their places from the first of those that live. */
static int introduce(MPI_Comm few, MPI_Comm inter, int newcomers)
{
    int first, code = MPI_SUCCESS, places[MOST], ranks[MOST];
    MPI_Group all, left, gone;
    MPI_Comm_rank(few, &first);
    if (first != 0)
        return code;
    for (int at = 0; at < newcomers; at++)
        ranks[at] = at;
    MPI_Comm_group(comm, &all);
    MPI_Comm_group(few, &left);
    MPI_Group_difference(all, left, &gone);
    MPI_Group_translate_ranks(gone, newcomers, ranks, all, places);
    for (int at = 0; at < newcomers && !code; at++)
        code = MPI_Send(&places[at], 1, MPI_INT, at, 1, inter);
    MPI_Group_free(&all);
    MPI_Group_free(&left);
    MPI_Group_free(&gone);
    return code;
}

/* All of both sides have `made` in the same order of places; or none of them has. */
static int join(MPI_Comm few, MPI_Comm inter, int is_new, int place, MPI_Comm *made)
{
    MPI_Comm all = MPI_COMM_NULL;
    *made = MPI_COMM_NULL;
    int here = MPI_Intercomm_merge(inter, is_new, &all) == MPI_SUCCESS, there = here;
    MPIX_Comm_agree(few, &here);
    MPIX_Comm_agree(inter, &there);
    if (!here || !there) {
        if (all != MPI_COMM_NULL)
            MPI_Comm_free(&all);
        return 0;
    }
    MPI_Comm_set_errhandler(all, MPI_ERRORS_RETURN);
    here = MPI_Comm_split(all, 0, place, made) == MPI_SUCCESS;
    MPIX_Comm_agree(all, &here);
    if (!here && *made != MPI_COMM_NULL)
        MPI_Comm_free(made);
    MPI_Comm_free(&all);
    return here;
}

static void replace(void)
{
    for (;;) {
        MPI_Comm few, inter = MPI_COMM_NULL, made = MPI_COMM_NULL;
        int left, is_there, newcomers;
        char number[16], *words[24];
        if (MPIX_Comm_shrink(comm, &few))
            fail("shrink", 0);
        MPI_Comm_set_errhandler(few, MPI_ERRORS_RETURN);
        MPI_Comm_size(few, &left);
        newcomers = size - left;
        if (newcomers == 0) { /* a false alarm, or one that another attempt has dealt with */
            MPI_Comm_free(&comm);
            comm = few;
            return;
        }
        snprintf(number, sizeof number, "%d", ++spawns);
        for (int at = 1; at < command_words; at++)
            words[at - 1] = command[at];
        words[command_words - 1] = number;
        words[command_words] = NULL;
        is_there = MPI_Comm_spawn(command[0], words, newcomers, MPI_INFO_NULL, 0, few, &inter,
                                  MPI_ERRCODES_IGNORE) == MPI_SUCCESS;
        int mine = is_there;
        MPIX_Comm_agree(few, &is_there);
        if (is_there) {
            MPI_Comm_set_errhandler(inter, MPI_ERRORS_RETURN);
            is_there = introduce(few, inter, newcomers) == MPI_SUCCESS;
            if (!is_there)
                MPIX_Comm_revoke(inter);
            is_there = join(few, inter, 0, rank, &made);
        }
        if (mine) {
            if (!is_there)
                MPIX_Comm_revoke(inter);
            MPI_Comm_free(&inter);
        }
        MPI_Comm_free(&few);
        if (is_there) {
            MPI_Comm_free(&comm);
            comm = made;
            return;
        }
    }
}

/* A process that has been started in the place of another. False: it is not needed. */
static int arrive(MPI_Comm inter)
{
    int place = 0;
    MPI_Comm_set_errhandler(inter, MPI_ERRORS_RETURN);
    /* The others have not come to an agreement with it, or the one that knows its place is dead. */
    if (MPI_Recv(&place, 1, MPI_INT, 0, 1, inter, MPI_STATUS_IGNORE))
        return 0;
    int has_joined = join(MPI_COMM_WORLD, inter, 1, place, &comm);
    MPI_Comm_free(&inter);
    return has_joined;
}

#endif
