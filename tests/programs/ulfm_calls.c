/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each named call is blocked when a rank is killed: it must return MPIX_ERR_PROC_FAILED. Then the survivors shrink and
 * compute an answer that they check. One rank is lost for each call.
 *
 *   ulfm_calls SEED [times] CALL...
 *
 * With "times" all know before when the victim dies, and rank 0 prints after how many microseconds the last call was back.
 * The victim is drawn from SEED; "low" and "high" as CALL make the next victims the lowest or highest rank.
 */
#include "ulfm.h"

#define MOST 64

static MPI_Comm comm;
static int rank, size;

static void fail(const char *what, int code)
{
    end_wrong(rank, size, what, code);
}

static int wait_for(int code, MPI_Request *request)
{
    return code ? code : MPI_Wait(request, MPI_STATUS_IGNORE);
}

/* A rank that lives, beside this one, and is not the victim. */
static int neighbour(int victim)
{
    int other = (rank + 1) % size;
    return other == victim ? (rank + 2) % size : other;
}

static int messages(const char *call, int victim)
{
    static int in[1 << 16], out[1 << 16];
    MPI_Request requests[3];
    MPI_Status status, statuses[2];
    MPI_Message message;
    int flag = 0, index, count, indices[2];
    if (!strcmp(call, "recv"))
        return MPI_Recv(in, 4, MPI_INT, victim, 1, comm, MPI_STATUS_IGNORE);
    if (!strcmp(call, "recv_any"))
        return MPI_Recv(in, 4, MPI_INT, MPI_ANY_SOURCE, 1, comm, &status);
    if (!strcmp(call, "large"))
        return MPI_Recv(in, 1 << 16, MPI_INT, victim, 1, comm, &status);
    if (!strcmp(call, "ssend"))
        return MPI_Ssend(out, 4, MPI_INT, victim, 1, comm);
    if (!strcmp(call, "issend"))
        return wait_for(MPI_Issend(out, 4, MPI_INT, victim, 1, comm, requests), requests);
    if (!strcmp(call, "irecv"))
        return wait_for(MPI_Irecv(in, 4, MPI_INT, victim, 1, comm, requests), requests);
    if (!strcmp(call, "probe"))
        return MPI_Probe(victim, 1, comm, &status);
    if (!strcmp(call, "probe_any"))
        return MPI_Probe(MPI_ANY_SOURCE, 1, comm, MPI_STATUS_IGNORE);
    if (!strcmp(call, "mprobe"))
        return MPI_Mprobe(victim, 1, comm, &message, &status);
    if (!strcmp(call, "sendrecv"))
        return MPI_Sendrecv(out, 4, MPI_INT, neighbour(victim), 2, in, 4, MPI_INT, victim, 1, comm, &status);
    if (!strcmp(call, "sendrecv_c"))
        return MPI_Sendrecv_c(out, 4, MPI_INT, neighbour(victim), 2, in, 4, MPI_INT, victim, 1, comm, &status);
    if (!strcmp(call, "replace_c"))
        return MPI_Sendrecv_replace_c(in, 4, MPI_INT, neighbour(victim), 2, victim, 1, comm, &status);
    if (!strcmp(call, "isendrecv"))
        return wait_for(MPI_Isendrecv(out, 4, MPI_INT, neighbour(victim), 2, in, 4, MPI_INT, victim, 1, comm, requests),
                        requests);
    if (!strcmp(call, "ireplace"))
        return wait_for(MPI_Isendrecv_replace(in, 4, MPI_INT, neighbour(victim), 2, victim, 1, comm, requests),
                        requests);
    if (!strcmp(call, "issend_c"))
        return wait_for(MPI_Issend_c(out, 4, MPI_INT, victim, 1, comm, requests), requests);
    if (!strcmp(call, "send_many")) {
        /* Sends succeed until the failure is known; there is no room for all of them. */
        int code = MPI_SUCCESS;
        while (code == MPI_SUCCESS)
            code = MPI_Send(out, 1 << 16, MPI_INT, victim, 1, comm);
        return code;
    }
    if (!strcmp(call, "waitall")) {
        int code = MPI_Irecv(in, 1, MPI_INT, victim, 1, comm, requests);
        if (!code)
            code = MPI_Irecv(in + 1, 1, MPI_INT, rank, 2, comm, requests + 1);
        if (!code)
            code = MPI_Send(out, 1, MPI_INT, rank, 2, comm);
        if (code)
            return code;
        code = MPI_Waitall(2, requests, statuses);
        if (code != MPI_ERR_IN_STATUS)
            fail("waitall", code);
        if (statuses[0].MPI_ERROR == MPIX_ERR_PROC_FAILED && statuses[1].MPI_ERROR)
            fail("the other one of waitall", statuses[1].MPI_ERROR);
        return statuses[0].MPI_ERROR;
    }
    int code = MPI_Irecv(in, 1, MPI_INT, victim, 1, comm, requests);
    if (code)
        return code;
    if (!strcmp(call, "waitany"))
        return MPI_Waitany(1, requests, &index, &status);
    if (!strcmp(call, "waitsome"))
        return MPI_Waitsome(1, requests, &count, indices, statuses) ? statuses[0].MPI_ERROR : MPI_SUCCESS;
    if (!strcmp(call, "test")) {
        while (code == MPI_SUCCESS && !flag)
            code = MPI_Test(requests, &flag, &status);
        return code;
    }
    fail("no such call", 0);
    return 0;
}

/* A receive from any rank pends until the failure is acknowledged; then it goes on. */
static int pending(int victim)
{
    MPI_Request request;
    int got = -1, mine = rank, acked;
    int code = MPI_Irecv(&got, 1, MPI_INT, MPI_ANY_SOURCE, 7, comm, &request);
    if (!code)
        code = MPI_Wait(&request, MPI_STATUS_IGNORE);
    if (code == MPIX_ERR_REVOKED)
        return code; /* another was faster */
    if (code != MPIX_ERR_PROC_FAILED_PENDING || request == MPI_REQUEST_NULL)
        fail("pending", code);
    MPIX_Comm_ack_failed(comm, size, &acked);
    MPI_Send(&mine, 1, MPI_INT, rank, 7, comm);
    code = MPI_Wait(&request, MPI_STATUS_IGNORE);
    if (code != MPIX_ERR_REVOKED && (code || got != rank))
        fail("pending, then acknowledged", code);
    (void)victim;
    return MPIX_ERR_PROC_FAILED;
}

static int collective(const char *call)
{
    static int in[MOST * MOST], out[MOST * MOST];
    MPI_Request request;
    MPI_Comm new = MPI_COMM_NULL;
    int code;
    if (!strcmp(call, "barrier"))
        return MPI_Barrier(comm);
    /* Roots and leaves of a tree may be through before the failure: more than once. */
    if (!strcmp(call, "bcast"))
        for (code = 0; !code;)
            code = MPI_Bcast(in, 4, MPI_INT, 1, comm);
    else if (!strcmp(call, "reduce"))
        for (code = 0; !code;)
            code = MPI_Reduce(out, in, 4, MPI_INT, MPI_SUM, 1, comm);
    else if (!strcmp(call, "gather"))
        for (code = 0; !code;)
            code = MPI_Gather(out, 4, MPI_INT, in, 4, MPI_INT, 1, comm);
    else if (!strcmp(call, "scatter"))
        for (code = 0; !code;)
            code = MPI_Scatter(out, 4, MPI_INT, in, 4, MPI_INT, 1, comm);
    else if (!strcmp(call, "scan"))
        for (code = 0; !code;)
            code = MPI_Scan(out, in, 4, MPI_INT, MPI_SUM, comm);
    else if (!strcmp(call, "allreduce"))
        code = MPI_Allreduce(out, in, 4, MPI_INT, MPI_SUM, comm);
    else if (!strcmp(call, "allgather"))
        code = MPI_Allgather(out, 4, MPI_INT, in, 4, MPI_INT, comm);
    else if (!strcmp(call, "alltoall"))
        code = MPI_Alltoall(out, 4, MPI_INT, in, 4, MPI_INT, comm);
    else if (!strcmp(call, "ibarrier"))
        code = wait_for(MPI_Ibarrier(comm, &request), &request);
    else if (!strcmp(call, "iallreduce"))
        code = wait_for(MPI_Iallreduce(out, in, 4, MPI_INT, MPI_SUM, comm, &request), &request);
    else if (!strcmp(call, "ibcast"))
        for (code = 0; !code;)
            code = wait_for(MPI_Ibcast(in, 4, MPI_INT, 1, comm, &request), &request);
    else if (!strcmp(call, "comm_dup"))
        code = MPI_Comm_dup(comm, &new);
    else if (!strcmp(call, "comm_split"))
        code = MPI_Comm_split(comm, rank % 2, rank, &new);
    else
        return -1;
    if (new != MPI_COMM_NULL)
        fail("a communicator in spite of the failure", code);
    return code;
}

/* The survivors go on, with an answer that each of them knows. */
static void shrink(int lost)
{
    MPI_Comm new;
    int before = size, sum, flag = 1;
    MPI_Group failed;
    MPIX_Comm_revoke(comm);
    int code = MPIX_Comm_shrink(comm, &new);
    if (code)
        fail("shrink", code);
    MPIX_Comm_get_failed(comm, &failed);
    MPI_Group_size(failed, &sum);
    MPI_Group_free(&failed);
    if (sum < lost) /* the next one may be among them */
        fail("so many failed", sum);
    MPI_Comm_free(&comm);
    comm = new;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    code = MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, comm);
    if (code || size != before - lost || sum != size * (size - 1) / 2)
        fail("the answer after shrink", code);
    code = MPIX_Comm_agree(comm, &flag);
    if (code || flag != 1)
        fail("agree after shrink", code);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time); /* the same for all ranks of a machine */
    return time.tv_sec * 1e6 + time.tv_nsec * 1e-3;
}

/* Rank 0 says that the call was back, at all ranks. */
static void say(const char *call, double late)
{
    double latest = 0;
    if (late >= 0)
        MPI_Reduce(&late, &latest, 1, MPI_DOUBLE, MPI_MAX, 0, comm);
    if (rank == 0 && late < 0)
        printf("ok %s %d\n", call, size);
    if (rank == 0 && late >= 0)
        printf("ok %s %d %.0f\n", call, size, latest);
    fflush(stdout);
}

int main(int count, char **words)
{
    MPI_Init(&count, &words);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Barrier(comm); /* nobody dies before all have come here */
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    srand(atoi(words[1]));
    int low = 0, high = 0, times = count > 2 && !strcmp(words[2], "times");
    for (int at = 2 + times; at < count; at++) {
        const char *call = words[at];
        if (!strcmp(call, "low") || !strcmp(call, "high")) {
            low = *call == 'l', high = !low;
            continue;
        }
        int victim = rand() % size, soon = rand() % 20000;
        victim = low ? 0 : high ? size - 1 : victim;
        double death = now() + soon + 5000, late = -1;
        if (times) {
            MPI_Bcast(&death, 1, MPI_DOUBLE, victim, comm);
            soon = death > now() ? death - now() : 0;
        }
        if (rank == victim) {
            die_in(soon);
            for (;;)
                ;
        }
        int code = collective(call);
        if (code < 0)
            code = strcmp(call, "pending") ? messages(call, victim) : pending(victim);
        /* Another rank may have been faster, and have revoked the communicator. */
        if (code != MPIX_ERR_PROC_FAILED && code != MPIX_ERR_REVOKED)
            fail(call, code);
        if (times)
            late = now() > death ? now() - death : 0;
        shrink(1);
        say(call, late);
    }
    MPI_Finalize();
    return 0;
}
