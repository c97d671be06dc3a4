/* SPDX-License-Identifier: Apache-2.0 */
/*
 * As ulfm_calls, for calls that need something before: communicators with neighbours, intercommunicators, requests that
 * are started again and again, several threads. All ranks prepare it; then one is killed, and the call of each other
 * one must come back.
 *
 *   ulfm_more world|session SEED CALL...
 */
#include "ulfm.h"
#include <pthread.h>

#define THREADS 3
#define LONG 5000

static MPI_Comm comm, other, others[THREADS];
static MPI_Request lasting = MPI_REQUEST_NULL;
static int rank, size;
static int in[LONG], out[LONG];

static void fail(const char *what, int code)
{
    end_wrong(rank, size, what, code);
}

/* Two halves, and a communicator between them. */
static void halves(const char *call)
{
    MPI_Comm half;
    int is_high = rank >= size / 2;
    MPI_Comm_split(comm, is_high, rank, &half);
    if (is(call, "inter_create"))
        other = half;
    else {
        MPI_Intercomm_create(half, 0, comm, is_high ? 0 : size / 2, 7, &other);
        MPI_Comm_free(&half);
    }
}

static void prepare(const char *call, int victim)
{
    other = MPI_COMM_NULL;
    if (is(call, "bcast_init"))
        MPI_Bcast_init(in, 4, MPI_INT, 1, comm, MPI_INFO_NULL, &lasting);
    else if (is(call, "allreduce_init"))
        MPI_Allreduce_init(out, in, LONG, MPI_INT, MPI_SUM, comm, MPI_INFO_NULL, &lasting);
    else if (is(call, "barrier_init"))
        MPI_Barrier_init(comm, MPI_INFO_NULL, &lasting);
    else if (is(call, "recv_init"))
        MPI_Recv_init(in, 4, MPI_INT, victim, 1, comm, &lasting);
    else if (is(call, "precv") || is(call, "parrived"))
        MPI_Precv_init(in, 4, LONG / 4, MPI_INT, victim, 1, comm, MPI_INFO_NULL, &lasting);
    else if (is(call, "psend"))
        MPI_Psend_init(out, 4, LONG / 4, MPI_INT, victim, 1, comm, MPI_INFO_NULL, &lasting);
    else if (is(call, "any_init"))
        MPI_Recv_init(in, 4, MPI_INT, MPI_ANY_SOURCE, 1, comm, &lasting);
    else if (is(call, "ssend_init"))
        MPI_Ssend_init(out, 4, MPI_INT, victim, 1, comm, &lasting);
    else if (is(call, "neighbor") || is(call, "ineighbor")) {
        int periodic = 1;
        MPI_Cart_create(comm, 1, &size, &periodic, 0, &other);
    } else if (starts(call, "inter_") || is(call, "merge"))
        halves(call);
    else if (is(call, "threads"))
        for (int thread = 0; thread < THREADS; thread++)
            MPI_Comm_dup(comm, &others[thread]);
    MPI_Barrier(comm); /* nobody dies before all are here */
}

/* Again and again, until it fails: roots and leaves of a tree may be through before the failure. */
static int wait_again(const char *call)
{
    int code = 0, has_come = 0;
    while (!code) {
        code = MPI_Start(&lasting);
        if (is(call, "psend"))
            MPI_Pready_range(0, 3, lasting);
        while (!code && is(call, "parrived"))
            code = MPI_Parrived(lasting, 0, &has_come);
        if (is(call, "parrived")) {
            int end = MPI_Wait(&lasting, MPI_STATUS_IGNORE);
            if (end != code && end != MPIX_ERR_REVOKED) /* others may have heard first, and revoke */
                fail("the end of a message in parts", end);
        }
        if (!code)
            code = MPI_Wait(&lasting, MPI_STATUS_IGNORE);
    }
    int flag;
    if (code == MPIX_ERR_PROC_FAILED_PENDING)
        return code; /* it goes on */
    if (MPI_Test(&lasting, &flag, MPI_STATUS_IGNORE) || !flag)
        fail("a request that is not started", flag);
    return code;
}

static int idup(void)
{
    MPI_Comm new = MPI_COMM_NULL;
    MPI_Request request;
    int code = MPI_Comm_idup(comm, &new, &request);
    if (!code)
        code = MPI_Wait(&request, MPI_STATUS_IGNORE);
    if (new != MPI_COMM_NULL)
        fail("a communicator in spite of the failure", code);
    return code;
}

static int inter(const char *call)
{
    MPI_Comm new = MPI_COMM_NULL;
    int is_high = rank >= size / 2, code = 0, root = is_high ? 0 : rank == 0 ? MPI_ROOT : MPI_PROC_NULL;
    if (is(call, "inter_barrier"))
        return MPI_Barrier(other);
    if (is(call, "inter_allreduce"))
        return MPI_Allreduce(out, in, 100, MPI_INT, MPI_SUM, other);
    if (is(call, "inter_recv"))
        return MPI_Recv(in, 4, MPI_INT, MPI_ANY_SOURCE, 3, other, MPI_STATUS_IGNORE);
    while (!code && is(call, "inter_bcast"))
        code = MPI_Bcast(in, 4, MPI_INT, root, other);
    if (is(call, "inter_agree")) {
        int flag = -1 ^ (is_high ? 2 : 4);
        code = MPIX_Comm_agree(other, &flag);
        if (flag != -7)
            fail("the flag of both sides", flag);
    }
    if (is(call, "merge"))
        code = MPI_Intercomm_merge(other, is_high, &new);
    if (is(call, "inter_create")) {
        code = MPI_Intercomm_create(other, 0, comm, is_high ? 0 : size / 2, 8, &new);
        if (!code) /* this side may have it in spite of a death on the other */
            code = MPI_Barrier(new);
        new = MPI_COMM_NULL;
    }
    if (new != MPI_COMM_NULL)
        fail("a communicator in spite of the failure", code);
    return code;
}

static int neighbour(const char *call)
{
    MPI_Request request;
    int code = 0;
    while (!code) {
        if (is(call, "neighbor"))
            code = MPI_Neighbor_alltoall(out, 4, MPI_INT, in, 4, MPI_INT, other);
        else {
            code = MPI_Ineighbor_allgather(out, 4, MPI_INT, in, 4, MPI_INT, other, &request);
            if (!code)
                code = MPI_Wait(&request, MPI_STATUS_IGNORE);
        }
    }
    return code;
}

static void *one_of_many(void *number)
{
    static __thread int value;
    long thread = (long)number, code = 0;
    MPI_Comm mine = others[thread], new;
    if (thread == 0)
        code = MPI_Barrier(mine);
    else if (thread == 1)
        code = MPI_Comm_dup(mine, &new);
    else
        code = MPI_Recv(&value, 1, MPI_INT, MPI_ANY_SOURCE, 1, mine, MPI_STATUS_IGNORE);
    return (void *)code;
}

/* Threads are blocked in different calls, each on a communicator of its own. */
static int threads(void)
{
    pthread_t all[THREADS];
    void *code;
    for (long thread = 0; thread < THREADS; thread++)
        pthread_create(&all[thread], NULL, one_of_many, (void *)thread);
    for (int thread = 0; thread < THREADS; thread++) {
        pthread_join(all[thread], &code);
        if ((long)code != MPIX_ERR_PROC_FAILED && (long)code != MPIX_ERR_REVOKED)
            fail("a thread", (int)(long)code);
    }
    for (int thread = 0; thread < THREADS; thread++) {
        MPIX_Comm_revoke(others[thread]);
        MPI_Comm_free(&others[thread]);
    }
    return MPIX_ERR_PROC_FAILED;
}

/* Requests that agree and shrink, and a collective call and a message meanwhile. */
static int agreements(int victim)
{
    MPI_Request requests[3];
    MPI_Comm new = MPI_COMM_NULL;
    MPI_Status statuses[3];
    int flag = -1 ^ 1 << rank % 8, second = 7, wanted = -1, few, done;
    int first = victim == 0, next = rank + 1 == victim ? rank + 2 : rank + 1, before = rank - 1;
    for (int at = 0; at < size; at++)
        wanted &= at == victim ? -1 : -1 ^ 1 << at % 8;
    MPIX_Comm_iagree(comm, &flag, requests);
    MPIX_Comm_iagree(comm, &second, requests + 1);
    if (rank != first) { /* a chain in the other order than that of the waits */
        before = before == victim ? before - 1 : before;
        MPI_Recv(&few, 1, MPI_INT, before, 9, comm, MPI_STATUS_IGNORE);
    }
    if (rank % 2)
        while (MPI_Testall(2, requests, &done, statuses) == MPI_SUCCESS && !done)
            ;
    else
        MPI_Waitall(2, requests, statuses);
    if (next < size)
        MPI_Send(&rank, 1, MPI_INT, next, 9, comm);
    if (statuses[0].MPI_ERROR != MPIX_ERR_PROC_FAILED || flag != wanted || second != 7)
        fail("iagree", statuses[0].MPI_ERROR);
    MPIX_Comm_ishrink(comm, &new, requests);
    int code = MPI_Wait(requests, MPI_STATUS_IGNORE);
    if (code || requests[0] != MPI_REQUEST_NULL)
        fail("ishrink", code);
    MPI_Comm_size(new, &few);
    if (few != size - 1)
        fail("the size after ishrink", few);
    if (MPI_Allreduce(&rank, &few, 1, MPI_INT, MPI_SUM, new) || few != size * (size - 1) / 2 - victim)
        fail("the sum after ishrink", few);
    MPI_Comm_free(&new);
    return MPIX_ERR_PROC_FAILED;
}

static int blocked(const char *call, int victim)
{
    if (lasting != MPI_REQUEST_NULL)
        return wait_again(call);
    if (is(call, "idup"))
        return idup();
    if (starts(call, "inter_") || is(call, "merge"))
        return inter(call);
    if (is(call, "neighbor") || is(call, "ineighbor"))
        return neighbour(call);
    if (is(call, "threads"))
        return threads();
    if (is(call, "iagree"))
        return agreements(victim);
    if (is(call, "barrier"))
        return MPI_Barrier(comm);
    fail("no such call", 0);
    return 0;
}

static void shrink(void)
{
    MPI_Comm new;
    int before = size, sum, flag = 1;
    if (other != MPI_COMM_NULL) {
        MPIX_Comm_revoke(other);
        MPI_Comm_free(&other);
    }
    if (lasting != MPI_REQUEST_NULL)
        MPI_Request_free(&lasting);
    MPIX_Comm_revoke(comm);
    int code = MPIX_Comm_shrink(comm, &new);
    if (code)
        fail("shrink", code);
    MPI_Comm_free(&comm);
    comm = new;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    code = MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, comm);
    if (code || size != before - 1 || sum != size * (size - 1) / 2)
        fail("the answer after shrink", code);
    code = MPIX_Comm_agree(comm, &flag);
    if (code || flag != 1)
        fail("agree after shrink", code);
}

static MPI_Session begin(int *count, char ***words)
{
    MPI_Session session = MPI_SESSION_NULL;
    MPI_Group all;
    int provided;
    if (is((*words)[1], "session")) {
        MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_RETURN, &session);
        MPI_Group_from_session_pset(session, "mpi://WORLD", &all);
        MPI_Comm_create_from_group(all, "ulfm", MPI_INFO_NULL, MPI_ERRORS_RETURN, &comm);
        MPI_Group_free(&all);
        return session;
    }
    MPI_Init_thread(count, words, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    return session;
}

int main(int count, char **words)
{
    MPI_Session session = begin(&count, &words);
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    srand(atoi(words[2]));
    for (int at = 3; at < count; at++) {
        int victim = rand() % size, soon = rand() % 20000;
        prepare(words[at], victim);
        if (rank == victim) {
            die_in(soon);
            for (;;)
                ;
        }
        int code = blocked(words[at], victim);
        if (code == MPIX_ERR_PROC_FAILED_PENDING) {
            MPI_Cancel(&lasting);
            MPI_Wait(&lasting, MPI_STATUS_IGNORE);
            code = MPIX_ERR_PROC_FAILED;
        }
        if (code != MPIX_ERR_PROC_FAILED && code != MPIX_ERR_REVOKED)
            fail(words[at], code);
        shrink();
        if (rank == 0) {
            printf("ok %s %d\n", words[at], size);
            fflush(stdout);
        }
    }
    if (session == MPI_SESSION_NULL)
        MPI_Finalize();
    else {
        MPI_Comm_free(&comm);
        MPI_Session_finalize(&session);
    }
    return 0;
}
