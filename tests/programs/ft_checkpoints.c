/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints in memory. Some ranks are killed at random moments; the others, or new ones in their places, go on from the
 * last checkpoint. All data is compared with what each rank computes alone.
 *
 *   ft_checkpoints SEED STEPS KILLS MILLISECONDS SCHEME LOSSES HOW WORDS
 *
 * SCHEME: "partner" or "parity". HOW: "shrink" (by ULFM), "respawn" (by ULFM), "dup" (by FT-MPI), "jump" (the same with
 * an error handler that leaves by longjmp), "none" (without any). There are BLOCKS blocks of about WORDS words, which
 * living ranks share. Each rank also has an array whose size is another at each step, and one with gaps.
 */
#include "ftmpi.h"
#include "respawn.h"
#include <mpi-ext.h>
#include <setjmp.h>
#include <stdint.h>
#include <unistd.h>

enum { BLOCKS = 12, HEAD = 100, EXTRA = 101, GAPS = 102 };

static int by_ulfm, scheme, losses, position, living, first, last, words, anew;
static uint64_t *blocks[BLOCKS], head[2], *extra, gaps[30];
static MPI_Datatype every_third;
static jmp_buf back;

static uint64_t mixed(uint64_t seed, uint64_t at)
{
    uint64_t z = seed + (at + 1) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    return z ^ (z >> 31);
}

static size_t length(int block)
{
    return (size_t)words + 17 * block;
}

static size_t extra_length(int step)
{
    return (size_t)(step % 4) * words;
}

/* A step of one block. */
static void advance(uint64_t *block, size_t count, uint64_t sum)
{
    for (size_t at = 0; at < count; at++)
        block[at] = block[at] * 6364136223846793005u + (sum ^ at);
}

static uint64_t sum_of(const uint64_t *block, size_t count)
{
    uint64_t sum = 0;
    for (size_t at = 0; at < count; at++)
        sum += block[at];
    return sum;
}

static void begin(uint64_t *block, int number)
{
    for (size_t at = 0; at < length(number); at++)
        block[at] = mixed(number, at);
}

/* All blocks at this step, computed alone. */
static uint64_t *expected(int block, int step)
{
    static uint64_t *all[BLOCKS];
    static int now = -1;
    if (now < 0 || now > step) {
        for (int at = 0; at < BLOCKS; at++) {
            free(all[at]);
            all[at] = malloc(8 * length(at));
            begin(all[at], at);
        }
        now = 0;
    }
    for (; now < step; now++) {
        uint64_t sum = 0;
        for (int at = 0; at < BLOCKS; at++)
            sum += sum_of(all[at], length(at));
        for (int at = 0; at < BLOCKS; at++)
            advance(all[at], length(at), sum);
    }
    return all[block];
}

static void check_blocks(const char *what, int step)
{
    for (int at = first; at < last; at++)
        if (memcmp(blocks[at], expected(at, step), 8 * length(at)))
            fail(what, step);
}

static void handle(MPI_Comm *of, int *code, ...)
{
    if (*of != comm || *code != MPI_ERR_OTHER)
        fail("error handler", *code);
    longjmp(back, 1);
}

/* Fine, or a failure. Anything else is wrong. */
static int good(int code)
{
    int expects = by_ulfm ? code == MPIX_ERR_PROC_FAILED || code == MPIX_ERR_REVOKED : code == MPI_ERR_OTHER;
    if (code && !expects)
        fail("code", code);
    if (code && by_ulfm)
        MPIX_Comm_revoke(comm);
    return !code;
}

static void share(void)
{
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    position = rank, living = size;
    if (!by_ulfm) /* there may be gaps */
        for (int at = living = position = 0; at < size; at++)
            if (attribute(comm, FTMPI_PROC_STATES, at) == FT_PROC_OK)
                position += at < rank, living++;
    first = position * BLOCKS / living, last = (position + 1) * BLOCKS / living;
    resurgo_ft_unprotect(RESURGO_FT_ALL);
    for (int at = 0; at < BLOCKS; at++) {
        free(blocks[at]);
        blocks[at] = NULL;
        if (first <= at && at < last) {
            blocks[at] = malloc(8 * length(at));
            memset(blocks[at], 0xee, 8 * length(at));
            resurgo_ft_protect(at, blocks[at], length(at), MPI_UINT64_T);
        }
    }
    resurgo_ft_protect(HEAD, head, 2, MPI_UINT64_T);
    resurgo_ft_protect(GAPS, gaps, 1, every_third);
}

static void use_extra(size_t bytes)
{
    free(extra);
    extra = malloc(bytes + 8);
    resurgo_ft_protect(EXTRA, extra, bytes, MPI_BYTE);
}

static void check_extra(const uint64_t *data, int step, int of)
{
    for (size_t at = 0; at < extra_length(step); at++)
        if (data[at] != mixed(1000 * step + of, at))
            fail("extra", of);
}

/* What nobody else reads: of ranks in whose places nobody is. */
static int read_inherited(int step)
{
    int ranks[MOST], count, most;
    resurgo_ft_inherited(MOST, ranks, &count);
    if (!good(MPI_Allreduce(&count, &most, 1, MPI_INT, MPI_MAX, comm)))
        return 0;
    for (int at = 0; at < most; at++) {
        MPI_Count bytes = 0;
        int from = at < count ? ranks[at] : MPI_PROC_NULL;
        if (at < count)
            resurgo_ft_size(from, EXTRA, &bytes);
        if (bytes != (MPI_Count)(8 * extra_length(step)) && at < count)
            fail("size of what was inherited", bytes);
        uint64_t *data = malloc(bytes + 8);
        if (!good(resurgo_ft_read(comm, from, EXTRA, data, bytes, MPI_BYTE)))
            return 0;
        if (at < count)
            check_extra(data, step, from);
        free(data);
    }
    return 1;
}

/* Whether it went well. */
static int restore(int *step)
{
    int version = -1, again = -1, code = resurgo_ft_find(comm, &version);
    share();
    if (code == RESURGO_FT_NOTHING || code == RESURGO_FT_LOST) {
        anew += code == RESURGO_FT_LOST;
        for (int at = first; at < last; at++)
            begin(blocks[at], at);
        *step = 0;
        return 1;
    }
    if (!good(code))
        return 0;
    MPI_Count bytes;
    resurgo_ft_size(MPI_ANY_SOURCE, EXTRA, &bytes);
    if (bytes != (MPI_Count)(8 * extra_length(version)))
        fail("size", bytes);
    use_extra(bytes);
    memset(gaps, 0xee, sizeof gaps);
    if (!good(resurgo_ft_restore(comm, &again)))
        return 0;
    if (version != again || head[0] != (uint64_t)version)
        fail("version", again);
    check_blocks("restored", version);
    check_extra(extra, version, (int)head[1]);
    for (int at = 0; at < 30; at++)
        if (gaps[at] != (at % 3 ? UINT64_C(0xeeeeeeeeeeeeeeee) : mixed(version, at)))
            fail("gaps", at);
    *step = version;
    return read_inherited(version);
}

static int checkpoint(int step)
{
    head[0] = step, head[1] = rank;
    use_extra(8 * extra_length(step));
    for (size_t at = 0; at < extra_length(step); at++)
        extra[at] = mixed(1000 * step + rank, at);
    for (int at = 0; at < 30; at++)
        gaps[at] = mixed(step, at);
    return good(resurgo_ft_checkpoint(comm, step, scheme, losses));
}

static int one_step(void)
{
    uint64_t sum = 0, all;
    for (int at = first; at < last; at++)
        sum += sum_of(blocks[at], length(at));
    if (!good(MPI_Allreduce(&sum, &all, 1, MPI_UINT64_T, MPI_SUM, comm)))
        return 0;
    for (int at = first; at < last; at++)
        advance(blocks[at], length(at), all);
    return 1;
}

/* All go on with it, or none. */
static int all_good(int flag, const char *how)
{
    if (!by_ulfm || !strcmp(how, "none"))
        return flag;
    return MPIX_Comm_agree(comm, &flag) == MPI_SUCCESS && flag;
}

static void recover(const char *how)
{
    MPI_Comm made;
    if (!strcmp(how, "respawn")) {
        replace();
        MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    } else if (!strcmp(how, "shrink")) {
        if (MPIX_Comm_shrink(comm, &made))
            fail("shrink", 0);
        MPI_Comm_free(&comm);
        comm = made;
    } else {
        MPI_Comm_dup(MPI_COMM_WORLD, &made);
    }
}

int main(int count, char **word)
{
    int steps = atoi(word[2]), kills = atoi(word[3]), most = atoi(word[4]), is_new = count > 9, dies[MOST] = {0};
    const char *how = word[7];
    MPI_Comm parent;
    scheme = strcmp(word[5], "parity") ? RESURGO_FT_PARTNER : RESURGO_FT_PARITY;
    losses = atoi(word[6]), words = atoi(word[8]), by_ulfm = strcmp(how, "dup") && strcmp(how, "jump");
    command = word, command_words = 9;
    MPI_Init(&count, &word);
    MPI_Type_vector(10, 1, 3, MPI_UINT64_T, &every_third);
    MPI_Type_commit(&every_third);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_get_parent(&parent);
    if (is_new) {
        spawns = atoi(word[9]);
        if (!arrive(parent))
            _exit(0);
    } else if (by_ulfm) {
        MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    } else {
        comm = MPI_COMM_WORLD;
    }
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    int began = rank;
    if (!is_new) {
        MPI_Barrier(comm); /* nobody dies before all have come here */
        srand(atoi(word[1]));
        for (int kill = 0; kill < kills;) {
            int victim = rand() % size;
            long when = rand() % (most * 1000L + 1);
            if (dies[victim]++)
                continue;
            kill++;
            if (victim == rank)
                die_in(when);
        }
    }
    volatile int recoveries = 0, at_step = -1;
    MPI_Errhandler handler;
    MPI_Comm_create_errhandler(handle, &handler);
    if (!strcmp(how, "jump"))
        MPI_Comm_set_errhandler(comm, handler);
    int failed = setjmp(back);
    for (;;) {
        int step = at_step, before = step;
        if (failed) {
            failed = 0, at_step = -1;
            recover(how);
            recoveries++;
            continue;
        }
        int fine = step < 0 ? restore(&step) : step == steps ? good(MPI_Barrier(comm)) : checkpoint(step) && one_step();
        if (!all_good(fine, how)) {
            recover(how);
            recoveries++, at_step = -1;
        } else if (before == steps) {
            break;
        } else {
            at_step = step + (before >= 0);
        }
    }
    check_blocks("result", steps);
    printf("rank %d of %d: right, %d recoveries, %d times anew\n", began, size, recoveries, anew);
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
