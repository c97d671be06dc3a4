/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that die are replaced by MPI_Comm_spawn, in their places; each finds its data in the memory of its neighbour.
 *
 *   ulfm_respawn SEED STEPS ROUNDS KILLS MILLISECONDS [EARLY]
 *
 * In each of ROUNDS rounds KILLS ranks, drawn from SEED, die within so many milliseconds, wherever they are, also while
 * others are being replaced; a round ends with the next replacement. Of the first EARLY newcomers each second one dies
 * before it has joined. Each rank checks each number against what it computes alone.
 */
#include "respawn.h"
#include <stdint.h>
#include <unistd.h>

static int rounds, kills, most, early;

/* What a rank has at a step; and what it keeps for the rank before it. */
struct state {
    int step;
    uint64_t value;
};
static struct state own[2], kept[2];

static uint64_t next(uint64_t value, uint64_t sum, int place)
{
    return value * 6364136223846793005u + (sum ^ (uint64_t)place * 1442695040888963407u);
}

/* All values at a step, computed alone. */
static uint64_t expected(int step, int place)
{
    uint64_t values[MOST];
    for (int at = 0; at < size; at++)
        values[at] = (uint64_t)at + 1;
    for (int at = 0; at < step; at++) {
        uint64_t sum = 0;
        for (int of = 0; of < size; of++)
            sum += values[of];
        for (int of = 0; of < size; of++)
            values[of] = next(values[of], sum, of);
    }
    return values[place];
}

/* The step to go on from, at which each has its state again; less than 0: another has died. */
static int restore(int is_new, int *round)
{
    int newest = is_new ? INT32_MAX : own[0].step > own[1].step ? own[0].step : own[1].step;
    int step, right = (rank + 1) % size, left = (rank + size - 1) % size, has, is_lost = 0;
    int agreed[2] = {newest, is_new ? INT32_MAX : -*round}, all[2];
    struct state there;
    if (MPI_Allreduce(agreed, all, 2, MPI_INT, MPI_MIN, comm))
        return -1;
    step = all[0], *round = -all[1];
    /* A rank that has its state keeps it; another asks its neighbour, which may be new as well. */
    struct state *mine = &kept[step % 2];
    has = !is_new && mine->step == step;
    struct state offer = has ? *mine : (struct state){-1, 0};
    if (MPI_Sendrecv(&offer, sizeof offer, MPI_BYTE, left, 2, &there, sizeof there, MPI_BYTE, right, 2, comm,
                     MPI_STATUS_IGNORE))
        return -1;
    if (is_new)
        own[step % 2] = there;
    has = own[step % 2].step == step;
    if (MPI_Allreduce(&has, &is_lost, 1, MPI_INT, MPI_MIN, comm))
        return -1;
    if (is_lost == 0) { /* two neighbours at once */
        step = 0;
        own[0] = (struct state){0, (uint64_t)rank + 1};
    }
    /* The neighbour keeps it again. */
    if (MPI_Sendrecv(&own[step % 2], sizeof offer, MPI_BYTE, right, 3, &kept[step % 2], sizeof there, MPI_BYTE, left,
                     3, comm, MPI_STATUS_IGNORE))
        return -1;
    own[(step + 1) % 2].step = kept[(step + 1) % 2].step = -1;
    if (own[step % 2].value != expected(step, rank))
        fail("the state that was restored", step);
    return step;
}

static int one_step(int step)
{
    struct state *now = &own[step % 2], *after = &own[(step + 1) % 2];
    uint64_t sum;
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    int code = MPI_Allreduce(&now->value, &sum, 1, MPI_UINT64_T, MPI_SUM, comm);
    if (code)
        return code;
    struct state made = {step + 1, next(now->value, sum, rank)}, copy;
    code = MPI_Sendrecv(&made, sizeof made, MPI_BYTE, right, 4, &copy, sizeof copy, MPI_BYTE, left, 4, comm,
                        MPI_STATUS_IGNORE);
    if (code)
        return code;
    *after = made;
    kept[(step + 1) % 2] = copy;
    return MPI_SUCCESS;
}

/* The victims of this round. */
static void perhaps_die(int round)
{
    static int armed = -1;
    if (round >= rounds || armed == round)
        return;
    armed = round;
    srand(atoi(command[1]) * 1000 + round);
    int dies[MOST] = {0};
    for (int kill = 0; kill < kills; kill++) {
        int victim = rand() % size;
        long when = rand() % (most * 1000L);
        if (dies[victim])
            kill--;
        else if (victim == rank)
            die_in(when);
        dies[victim] = 1;
    }
}

int main(int count, char **words)
{
    int steps = atoi(words[2]), is_new = count > 7, round = 0, replaced = 0;
    MPI_Comm parent;
    rounds = atoi(words[3]), kills = atoi(words[4]), most = atoi(words[5]), early = atoi(words[6]);
    command = words;
    command_words = 7;
    if (is_new) {
        srand(getpid());
        if (atoi(words[7]) <= early && rand() % 2)
            die_in(rand() % 60000);
    }
    MPI_Init(&count, &words);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_get_parent(&parent);
    if (is_new) {
        spawns = atoi(words[7]);
        if (!arrive(parent))
            _exit(0);
    } else {
        MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    }
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    own[0] = (struct state){0, (uint64_t)rank + 1};
    own[1].step = kept[0].step = kept[1].step = -1;
    if (!is_new)
        MPI_Barrier(comm); /* nobody dies before all have come here */
    int step = -1;
    while (step < steps) {
        if (step < 0)
            step = restore(is_new, &round);
        else
            step = one_step(step) ? -1 : step + 1;
        int is_good = step >= 0;
        is_new = is_new && !is_good;
        if (step < 0)
            MPIX_Comm_revoke(comm);
        /* No rank is two steps ahead of another, and none leaves before all are done. */
        if (MPIX_Comm_agree(comm, &is_good) || !is_good) {
            replace();
            MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
            replaced++, round++, step = -1;
        } else
            perhaps_die(round);
    }
    if (own[steps % 2].value != expected(steps, rank))
        fail("the result", steps);
    printf("place %d of %d: right, replaced %d times\n", rank, size, replaced);
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
