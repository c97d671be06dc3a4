/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers of collective calls that end where no memory follows. A rank dies while the others are blocked in the call:
 * each of them comes back with the error, and none reads beyond its buffer.
 *
 *   ulfm_edge SEED BYTES CALL
 */
#define _GNU_SOURCE
#include "ulfm.h"
#include <sys/mman.h>
#include <unistd.h>

static MPI_Comm comm;
static int rank, size;

static void fail(const char *what, int code)
{
    end_wrong(rank, size, what, code);
}

/* So many bytes before memory that nobody may touch. */
static char *at_the_edge(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (bytes + page - 1) / page * page;
    char *start = mmap(NULL, room + 256 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED || mprotect(start + room, 256 * page, PROT_NONE))
        fail("memory", 0);
    return start + room - bytes;
}

static int call(const char *name, char *in, int count)
{
    static int counts[64], places[64];
    MPI_Request request;
    MPI_Comm new;
    int code = 0;
    for (int at = 0; at < size; at++)
        counts[at] = count, places[at] = count * at;
    /* Roots and leaves of a tree may be through before the failure: more than once. */
    while (!code && !strcmp(name, "bcast"))
        code = MPI_Bcast(in, count * size, MPI_BYTE, 0, comm);
    while (!code && !strcmp(name, "ibcast")) {
        code = MPI_Ibcast(in, count * size, MPI_BYTE, 0, comm, &request);
        code = code ? code : MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    while (!code && !strcmp(name, "scatter"))
        code = MPI_Scatter(in, count, MPI_BYTE, rank ? in : MPI_IN_PLACE, count, MPI_BYTE, 0, comm);
    if (!strcmp(name, "allgather"))
        return MPI_Allgather(MPI_IN_PLACE, 0, MPI_BYTE, in, count, MPI_BYTE, comm);
    if (!strcmp(name, "gapped")) { /* every other byte: MPI packs them */
        MPI_Datatype bytes, block;
        MPI_Type_vector(count / 2, 1, 2, MPI_BYTE, &bytes);
        MPI_Type_create_resized(bytes, 0, count, &block);
        MPI_Type_commit(&block);
        return MPI_Allgather(MPI_IN_PLACE, 0, MPI_BYTE, in, 1, block, comm);
    }
    if (!strcmp(name, "iallgather")) {
        code = MPI_Iallgather(MPI_IN_PLACE, 0, MPI_BYTE, in, count, MPI_BYTE, comm, &request);
        return code ? code : MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    if (!strcmp(name, "allgatherv"))
        return MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_BYTE, in, counts, places, MPI_BYTE, comm);
    if (!strcmp(name, "allreduce"))
        return MPI_Allreduce(MPI_IN_PLACE, in, count * size, MPI_BYTE, MPI_BOR, comm);
    if (!strcmp(name, "split"))
        return MPI_Comm_split(comm, rank % 2, rank, &new);
    return code;
}

int main(int words_count, char **words)
{
    MPI_Init(&words_count, &words);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    srand(atoi(words[1]));
    int count = atoi(words[2]), victim = rand() % size, soon = rand() % 5000, fewer_size;
    char *in = at_the_edge((size_t)(count * size));
    MPI_Comm fewer;
    MPI_Barrier(comm); /* nobody dies before all have come here */
    if (rank == victim) {
        die_in(soon);
        for (;;)
            ;
    }
    int code = call(words[3], in, count);
    if (code != MPIX_ERR_PROC_FAILED)
        fail(words[3], code);
    if (MPIX_Comm_shrink(comm, &fewer))
        fail("shrink", 0);
    MPI_Comm_size(fewer, &fewer_size);
    if (fewer_size != size - 1)
        fail("ranks that are left", fewer_size);
    MPI_Comm_rank(fewer, &rank);
    if (rank == 0)
        printf("ok\n");
    MPI_Finalize();
    return 0;
}
