// SPDX-License-Identifier: Apache-2.0
// MPI initialised more than once in a process: sessions [way] [times] [rounds] [milliseconds per round]
//   apart    sessions, one after the other
//   world    a session, MPI_Init to MPI_Finalize, another session, and so on
//   around   a session that is open while others, and MPI_Init to MPI_Finalize, come and go inside it
// Each prints one line for each time that it was in MPI, with what all ranks have computed up to there.
#include "check.h"

#include <stdbool.h>
#include <unistd.h>

static MPI_Session session_begin(void)
{
    MPI_Session session;
    MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &session);
    return session;
}

static MPI_Comm all_of(MPI_Session session, int number)
{
    MPI_Group group;
    MPI_Comm comm;
    char tag[32];
    snprintf(tag, sizeof tag, "number %d", number);
    MPI_Group_from_session_pset(session, "mpi://WORLD", &group);
    MPI_Comm_create_from_group(group, tag, MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &comm);
    MPI_Group_free(&group);
    return comm;
}

enum { LONG = 40000, TAG = 7 };

// Rounds of a ring with short and long messages, and windows and collectives in between; `state` goes round.
static uint64_t work(MPI_Comm comm, const char *what, int number, uint64_t state, long rounds, long pause)
{
    static uint64_t out[LONG], in[LONG];
    int rank, size;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    for (long round = 0; round < rounds; round++) {
        int words = round % 5 == 4 ? LONG : 1 + (int)(round % 3);
        for (int i = 0; i < words; i++)
            out[i] = mixed(state, (uint64_t)i);
        MPI_Sendrecv(out, words, MPI_UINT64_T, right, TAG, in, words, MPI_UINT64_T, left, TAG, comm, MPI_STATUS_IGNORE);
        state = hash_bytes(state, in, (size_t)words * sizeof *in);
        if (pause > 0)
            usleep((useconds_t)pause * 1000);
    }
    uint64_t cell = 0;
    MPI_Win window;
    MPI_Win_create(&cell, sizeof cell, sizeof cell, MPI_INFO_NULL, comm, &window);
    MPI_Win_fence(0, window);
    MPI_Accumulate(&state, 1, MPI_UINT64_T, right, 0, 1, MPI_UINT64_T, MPI_SUM, window);
    MPI_Win_fence(0, window);
    MPI_Win_free(&window);
    state = hash_bytes(state, &cell, sizeof cell);
    uint64_t all = 0;
    MPI_Reduce(&state, &all, 1, MPI_UINT64_T, MPI_BXOR, 0, comm);
    if (rank == 0) {
        printf("%s %d: %016llx\n", what, number, (unsigned long long)all);
        fflush(stdout);
    }
    return state;
}

int main(int argc, char **argv)
{
    const char *way = argc > 1 ? argv[1] : "apart";
    long times = argument(argc, argv, 2, 3), rounds = argument(argc, argv, 3, 20), pause = argument(argc, argv, 4, 0);
    bool world = strcmp(way, "world") == 0, around = strcmp(way, "around") == 0;
    uint64_t state = FNV_START;
    MPI_Session outer = around ? session_begin() : MPI_SESSION_NULL;
    for (int number = 0; number < times; number++) {
        if ((world || around) && number == 1) {
            MPI_Init(&argc, &argv);
            state = work(MPI_COMM_WORLD, "world", number, state, rounds, pause);
            MPI_Finalize();
            continue;
        }
        MPI_Session session = session_begin();
        MPI_Comm comm = all_of(session, number);
        state = work(comm, "session", number, state, rounds, pause);
        MPI_Comm_free(&comm);
        MPI_Session_finalize(&session);
        // Outside of MPI: nothing that the launcher could see.
        if (pause > 0)
            usleep((useconds_t)pause * 5000);
    }
    if (around) {
        MPI_Comm comm = all_of(outer, 99);
        work(comm, "outer", 99, state, rounds, pause);
        MPI_Comm_free(&comm);
        MPI_Session_finalize(&outer);
    }
    return 0;
}
