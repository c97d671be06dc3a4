// SPDX-License-Identifier: Apache-2.0
// The corners of point-to-point messages and what is built on them, one function each, on any number of ranks.
//   messages [ROUNDS=1]
#include "check.h"
#include <stddef.h>

static int rank, size, right, left;
static MPI_Comm comm;
enum { MIB = 1 << 20 };
static const long lengths[] = {0,    1,     7,     8,     63,     64,      65,      1000,    4095,    4096,
                               4097, 16383, 16384, 65535, 65536,  65537,   262144,  1048575, 1048576, 1048577,
                               3 * MIB + 5};
enum { LENGTHS = sizeof lengths / sizeof lengths[0] };

static void check_data(const void *data, long bytes, uint64_t seed, const char *what)
{
    long long wrong = first_wrong(data, (size_t)bytes, seed);
    CHECK(wrong < 0, "%s: byte %lld of %ld is wrong", what, wrong, bytes);
}

static void check_status(MPI_Status *status, int source, int tag, long bytes)
{
    int count;
    MPI_Get_count(status, MPI_BYTE, &count);
    CHECK(status->MPI_SOURCE == source && status->MPI_TAG == tag && count == bytes,
          "source %d tag %d count %d instead of %d %d %ld", status->MPI_SOURCE, status->MPI_TAG, count, source, tag,
          bytes);
}

// Every length in every send mode, around the ring.
static void modes(void)
{
    char *out = allocate(4 * MIB), *in = allocate(4 * MIB), *attached = allocate(8 * MIB);
    MPI_Buffer_attach(attached, 8 * MIB);
    for (int i = 0; i < LENGTHS; i++)
        for (int mode = 0; mode < 6; mode++) {
            int n = (int)lengths[i], tag = 10 * i + mode;
            MPI_Request request, send = MPI_REQUEST_NULL;
            MPI_Status status;
            fill(out, (size_t)n, (uint64_t)(rank * 1000 + tag));
            memset(in, 0, (size_t)n);
            MPI_Irecv(in, n, MPI_BYTE, left, tag, comm, &request);
            if (mode == 3) // a ready send needs its receive to be there
                MPI_Barrier(comm);
            switch (mode) {
            case 0: MPI_Isend(out, n, MPI_BYTE, right, tag, comm, &send); break;
            case 1: MPI_Issend(out, n, MPI_BYTE, right, tag, comm, &send); break;
            case 2: MPI_Bsend(out, n, MPI_BYTE, right, tag, comm); break;
            case 3: MPI_Rsend(out, n, MPI_BYTE, right, tag, comm); break;
            case 4: MPI_Send(out, n, MPI_BYTE, right, tag, comm); break;
            default: MPI_Ibsend(out, n, MPI_BYTE, right, tag, comm, &send);
            }
            MPI_Wait(&request, &status);
            check_status(&status, left, tag, n);
            check_data(in, n, (uint64_t)(left * 1000 + tag), "modes");
            MPI_Wait(&send, MPI_STATUS_IGNORE);
        }
    void *back;
    int bytes;
    MPI_Buffer_detach(&back, &bytes);
    CHECK(back == attached && bytes == 8 * MIB, "detach");
    free(out), free(in), free(attached);
}

// Blocking synchronous sends, in pairs so that nobody waits in a circle.
static void synchronous(void)
{
    char out[100], in[100];
    for (int distance = 1; distance < size; distance++) {
        int to = (rank + distance) % size, from = (rank - distance + size) % size;
        MPI_Request request;
        MPI_Status status;
        fill(out, sizeof out, (uint64_t)rank);
        MPI_Irecv(in, sizeof in, MPI_BYTE, from, 3, comm, &request);
        MPI_Ssend(out, sizeof out, MPI_BYTE, to, 3, comm);
        MPI_Wait(&request, &status);
        check_data(in, sizeof in, (uint64_t)from, "ssend");
    }
}

// Probe, Iprobe, Mprobe, Improbe; then receives of just that length; Mprobe also for long messages.
static void probes(void)
{
    char *out = allocate(4 * MIB), *in = allocate(4 * MIB);
    for (int i = 0; i < LENGTHS; i++)
        for (int kind = 0; kind < 4; kind++) {
            int n = (int)lengths[i], tag = 500 + 10 * i + kind, count, flag = 0;
            MPI_Request send;
            MPI_Status status;
            MPI_Message message = MPI_MESSAGE_NULL;
            fill(out, (size_t)n, (uint64_t)(rank * 1000 + tag));
            MPI_Isend(out, n, MPI_BYTE, right, tag, comm, &send);
            if (kind == 0)
                MPI_Probe(left, tag, comm, &status);
            else if (kind == 1)
                while (!flag)
                    MPI_Iprobe(MPI_ANY_SOURCE, tag, comm, &flag, &status);
            else if (kind == 2)
                MPI_Mprobe(left, MPI_ANY_TAG, comm, &message, &status);
            else
                while (!flag)
                    MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &flag, &message, &status);
            check_status(&status, left, tag, n);
            MPI_Get_count(&status, MPI_BYTE, &count);
            memset(in, 0, (size_t)count);
            if (kind < 2) {
                MPI_Recv(in, count, MPI_BYTE, left, tag, comm, &status);
            } else if (kind == 2) {
                MPI_Mrecv(in, count, MPI_BYTE, &message, &status);
            } else {
                MPI_Request receive;
                MPI_Imrecv(in, count, MPI_BYTE, &message, &receive);
                MPI_Wait(&receive, &status);
            }
            check_status(&status, left, tag, n);
            check_data(in, n, (uint64_t)(left * 1000 + tag), "probes");
            MPI_Wait(&send, MPI_STATUS_IGNORE);
        }
    int flag;
    MPI_Iprobe(left, 9999, comm, &flag, MPI_STATUS_IGNORE);
    CHECK(!flag, "a message that nobody sent");
    free(out), free(in);
}

// A cancelled receive takes nothing; one that has its message cannot be cancelled.
static void cancelled(void)
{
    int value = -1, flag;
    MPI_Request request;
    MPI_Status status;
    for (int any = 0; any < 2; any++) {
        MPI_Irecv(&value, 1, MPI_INT, any ? MPI_ANY_SOURCE : left, 700, comm, &request);
        MPI_Cancel(&request);
        MPI_Wait(&request, &status);
        MPI_Test_cancelled(&status, &flag);
        CHECK(flag, "the receive was not cancelled");
    }
    MPI_Barrier(comm);
    MPI_Sendrecv(&rank, 1, MPI_INT, right, 700, &value, 1, MPI_INT, left, 700, comm, &status);
    CHECK(value == left, "%d after a cancel", value);
    MPI_Request matched;
    MPI_Irecv(&value, 1, MPI_INT, left, 701, comm, &matched);
    MPI_Send(&rank, 1, MPI_INT, right, 701, comm);
    MPI_Wait(&matched, &status);
    MPI_Test_cancelled(&status, &flag);
    CHECK(!flag && value == left, "cancelled %d value %d", flag, value);
}

// Too long a message for the receive: MPI_ERR_TRUNCATE, and life goes on. Expected and unexpected, short and long.
static void truncated(void)
{
    MPI_Comm quiet;
    MPI_Comm_dup(comm, &quiet);
    MPI_Comm_set_errhandler(quiet, MPI_ERRORS_RETURN);
    char *out = calloc(1, 2 * MIB), *in = calloc(1, 2 * MIB);
    static const int sent[] = {20, 5000, 100000, 2 * MIB}, taken[] = {10, 100, 99999, 1000};
    for (int i = 0; i < 4; i++)
        for (int late = 0; late < 2; late++) {
            MPI_Request receive, send;
            int class;
            if (late) {
                MPI_Isend(out, sent[i], MPI_BYTE, right, i, quiet, &send);
                MPI_Probe(left, i, quiet, MPI_STATUS_IGNORE);
                int error = MPI_Recv(in, taken[i], MPI_BYTE, left, i, quiet, MPI_STATUS_IGNORE);
                MPI_Error_class(error, &class);
            } else {
                MPI_Irecv(in, taken[i], MPI_BYTE, left, i, quiet, &receive);
                MPI_Barrier(comm);
                MPI_Isend(out, sent[i], MPI_BYTE, right, i, quiet, &send);
                int error = MPI_Wait(&receive, MPI_STATUS_IGNORE);
                MPI_Error_class(error, &class);
            }
            CHECK(class == MPI_ERR_TRUNCATE, "class %d for %d bytes into %d", class, sent[i], taken[i]);
            MPI_Wait(&send, MPI_STATUS_IGNORE);
        }
    int value;
    MPI_Sendrecv(&rank, 1, MPI_INT, right, 9, &value, 1, MPI_INT, left, 9, quiet, MPI_STATUS_IGNORE);
    CHECK(value == left, "after truncation");
    MPI_Comm_free(&quiet);
    free(out), free(in);
}

// Persistent requests, started many times; among them a ready and a synchronous one.
static void persistent(void)
{
    long out[3], in[3];
    MPI_Request requests[6];
    for (int i = 0; i < 3; i++)
        MPI_Recv_init(&in[i], 1, MPI_LONG, left, 800 + i, comm, &requests[i]);
    MPI_Send_init(&out[0], 1, MPI_LONG, right, 800, comm, &requests[3]);
    MPI_Ssend_init(&out[1], 1, MPI_LONG, right, 801, comm, &requests[4]);
    MPI_Rsend_init(&out[2], 1, MPI_LONG, right, 802, comm, &requests[5]);
    for (long round = 0; round < 20; round++) {
        for (int i = 0; i < 3; i++)
            out[i] = rank * 100 + round * 3 + i;
        MPI_Startall(3, requests);
        MPI_Barrier(comm);
        MPI_Startall(3, requests + 3);
        MPI_Waitall(6, requests, MPI_STATUSES_IGNORE);
        for (int i = 0; i < 3; i++)
            CHECK(in[i] == left * 100 + round * 3 + i, "round %ld: %ld", round, in[i]);
    }
    for (int i = 0; i < 6; i++)
        MPI_Request_free(&requests[i]);
}

// Strided, indexed and struct types, sent as one type and received as another; from short to long.
static void derived(void)
{
    for (int n = 1; n <= 100000; n *= 10) {
        double *out = allocate((size_t)n * 3 * sizeof *out), *in = calloc((size_t)n * 2, sizeof *in);
        for (int i = 0; i < n * 3; i++)
            out[i] = rank * 1e6 + i;
        MPI_Datatype every_third, every_second;
        MPI_Type_vector(n, 1, 3, MPI_DOUBLE, &every_third);
        MPI_Type_vector(n, 1, 2, MPI_DOUBLE, &every_second);
        MPI_Type_commit(&every_third), MPI_Type_commit(&every_second);
        MPI_Sendrecv(out, 1, every_third, right, 900, in, 1, every_second, left, 900, comm, MPI_STATUS_IGNORE);
        for (int i = 0; i < n; i++)
            CHECK(in[2 * i] == left * 1e6 + 3 * i && in[2 * i + 1] == 0, "vector element %d", i);
        MPI_Sendrecv(out, 1, every_third, right, 901, in, n, MPI_DOUBLE, left, 901, comm, MPI_STATUS_IGNORE);
        for (int i = 0; i < n; i++)
            CHECK(in[i] == left * 1e6 + 3 * i, "packed element %d", i);
        MPI_Type_free(&every_third), MPI_Type_free(&every_second);
        free(out), free(in);
    }
    struct particle {
        char kind;
        double place[3];
        int32_t id;
    } out[50], in[50];
    int blocks[3] = {1, 3, 1};
    MPI_Aint where[3] = {offsetof(struct particle, kind), offsetof(struct particle, place),
                         offsetof(struct particle, id)};
    MPI_Datatype types[3] = {MPI_CHAR, MPI_DOUBLE, MPI_INT32_T}, raw, particle;
    MPI_Type_create_struct(3, blocks, where, types, &raw);
    MPI_Type_create_resized(raw, 0, sizeof(struct particle), &particle);
    MPI_Type_commit(&particle);
    memset(in, 0, sizeof in);
    for (int i = 0; i < 50; i++)
        out[i] = (struct particle){(char)i, {rank, i, rank + i}, rank * 50 + i};
    MPI_Sendrecv(out, 50, particle, right, 902, in, 50, particle, left, 902, comm, MPI_STATUS_IGNORE);
    for (int i = 0; i < 50; i++)
        CHECK(in[i].kind == (char)i && in[i].place[2] == left + i && in[i].id == left * 50 + i, "particle %d", i);
    MPI_Type_free(&raw), MPI_Type_free(&particle);
}

// Tags taken in another order than sent; and messages of one tag in the order sent.
static void out_of_order(void)
{
    enum { COUNT = 200 };
    int out[COUNT], in[COUNT];
    MPI_Request requests[COUNT];
    for (int i = 0; i < COUNT; i++) {
        out[i] = rank * COUNT + i;
        MPI_Isend(&out[i], 1, MPI_INT, right, 1000 + i, comm, &requests[i]);
    }
    for (int i = COUNT - 1; i >= 0; i--) {
        MPI_Recv(&in[i], 1, MPI_INT, left, 1000 + i, comm, MPI_STATUS_IGNORE);
        CHECK(in[i] == left * COUNT + i, "tag %d: %d", 1000 + i, in[i]);
    }
    MPI_Waitall(COUNT, requests, MPI_STATUSES_IGNORE);
    // Same tag, lengths mixed so that short ones could overtake long ones if order were lost.
    char *big = allocate(MIB);
    memset(big, 1, MIB);
    for (int i = 0; i < 20; i++) {
        memcpy(big, &i, sizeof i);
        char *copy = allocate(MIB);
        memcpy(copy, big, MIB);
        MPI_Request request;
        MPI_Isend(copy, i % 2 ? 4 : MIB, MPI_BYTE, right, 1500, comm, &request);
        MPI_Status status;
        char *taken = allocate(MIB);
        int value;
        MPI_Recv(taken, MIB, MPI_BYTE, left, i % 3 ? 1500 : MPI_ANY_TAG, comm, &status);
        memcpy(&value, taken, sizeof value);
        CHECK(value == i, "message %d came as %d", value, i);
        check_status(&status, left, 1500, i % 2 ? 4 : MIB);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        free(copy), free(taken);
    }
    free(big);
}

// Thousands of messages before the first receive; everybody floods everybody.
static void flood(void)
{
    enum { COUNT = 1500 };
    int total = COUNT * size;
    int(*out)[4] = allocate((size_t)total * sizeof *out);
    MPI_Request *requests = allocate((size_t)total * sizeof *requests);
    for (int i = 0; i < total; i++) {
        int to = i % size;
        out[i][0] = rank, out[i][1] = i / size, out[i][2] = to, out[i][3] = ~rank;
        MPI_Isend(out[i], 4, MPI_INT, to, 2000, comm, &requests[i]);
    }
    MPI_Barrier(comm);
    int *next = calloc((size_t)size, sizeof *next);
    for (int i = 0; i < total; i++) {
        int in[4];
        MPI_Status status;
        MPI_Recv(in, 4, MPI_INT, MPI_ANY_SOURCE, i % 2 ? 2000 : MPI_ANY_TAG, comm, &status);
        CHECK(in[0] == status.MPI_SOURCE && in[1] == next[in[0]]++ && in[2] == rank && in[3] == ~in[0],
              "message %d from %d says %d %d", i, status.MPI_SOURCE, in[0], in[1]);
    }
    MPI_Waitall(total, requests, MPI_STATUSES_IGNORE);
    MPI_Barrier(comm); // whoever still receives with any tag must not get what follows
    // The same with long messages, fewer.
    char *data = allocate(300000), *in = allocate(300000);
    fill(data, 300000, (uint64_t)rank);
    MPI_Request sends[16];
    for (int i = 0; i < 16; i++)
        MPI_Isend(data, 300000, MPI_BYTE, right, 2100 + i % 4, comm, &sends[i]);
    MPI_Barrier(comm);
    for (int i = 0; i < 16; i++) {
        memset(in, 0, 300000);
        MPI_Recv(in, 300000, MPI_BYTE, MPI_ANY_SOURCE, 2100 + 3 - i % 4, comm, MPI_STATUS_IGNORE);
        check_data(in, 300000, (uint64_t)left, "flood of long ones");
    }
    MPI_Waitall(16, sends, MPI_STATUSES_IGNORE);
    free(out), free(requests), free(next), free(data), free(in);
}

// Messages to oneself, on MPI_COMM_SELF and on the world, before and after the receive.
static void to_self(void)
{
    char *out = allocate(2 * MIB), *in = allocate(2 * MIB);
    MPI_Comm comms[2] = {MPI_COMM_SELF, comm};
    for (int which = 0; which < 2; which++) {
        int me = which ? rank : 0;
        for (int i = 0; i < LENGTHS; i++) {
            int n = lengths[i] > 2 * MIB ? 2 * MIB : (int)lengths[i];
            MPI_Request send, receive;
            MPI_Status status;
            fill(out, (size_t)n, (uint64_t)i);
            if (i % 2) {
                MPI_Irecv(in, n, MPI_BYTE, me, i, comms[which], &receive);
                MPI_Isend(out, n, MPI_BYTE, me, i, comms[which], &send);
            } else {
                MPI_Isend(out, n, MPI_BYTE, me, i, comms[which], &send);
                MPI_Irecv(in, n, MPI_BYTE, me, i, comms[which], &receive);
            }
            MPI_Wait(&receive, &status);
            check_status(&status, me, i, n);
            MPI_Wait(&send, MPI_STATUS_IGNORE);
            check_data(in, n, (uint64_t)i, "self");
        }
    }
    free(out), free(in);
}

static void sendrecv_and_null(void)
{
    long value = rank, in = -1;
    for (int i = 0; i < 3 * size; i++)
        MPI_Sendrecv_replace(&value, 1, MPI_LONG, right, 3000, left, MPI_ANY_TAG, comm, MPI_STATUS_IGNORE);
    CHECK(value == rank, "%ld after going round three times", value);
    MPI_Status status;
    MPI_Sendrecv(&value, 1, MPI_LONG, MPI_PROC_NULL, 1, &in, 1, MPI_LONG, MPI_PROC_NULL, 1, comm, &status);
    CHECK(in == -1 && status.MPI_SOURCE == MPI_PROC_NULL, "a message from nobody");
}

// Testsome, Waitsome, Testall over receives from everybody.
static void completions(void)
{
    int *in = allocate((size_t)size * sizeof *in), *indices = allocate((size_t)size * sizeof *indices);
    MPI_Request *receives = allocate((size_t)size * sizeof *receives);
    MPI_Request *sends = allocate((size_t)size * sizeof *sends);
    for (int kind = 0; kind < 3; kind++) {
        for (int r = 0; r < size; r++) {
            MPI_Irecv(&in[r], 1, MPI_INT, r, 3100 + kind, comm, &receives[r]);
            MPI_Isend(&rank, 1, MPI_INT, r, 3100 + kind, comm, &sends[r]);
        }
        int done = 0, count;
        while (done < size) {
            if (kind == 0) {
                MPI_Testsome(size, receives, &count, indices, MPI_STATUSES_IGNORE);
            } else if (kind == 1) {
                MPI_Waitsome(size, receives, &count, indices, MPI_STATUSES_IGNORE);
            } else {
                int flag;
                MPI_Testall(size, receives, &flag, MPI_STATUSES_IGNORE);
                count = flag ? size : 0;
            }
            CHECK(count != MPI_UNDEFINED, "nothing was active");
            done += count;
        }
        for (int r = 0; r < size; r++)
            CHECK(in[r] == r, "%d from %d", in[r], r);
        MPI_Waitall(size, sends, MPI_STATUSES_IGNORE);
    }
    free(in), free(indices), free(receives), free(sends);
}

// Blocking and nonblocking collectives, several in flight, short and long, in place and on user operations.
// x -> a x + b, one after the other: associative, not commutative.
static void compose(void *in, void *inout, int *count, MPI_Datatype *type)
{
    (void)type;
    uint64_t(*first)[2] = in, (*then)[2] = inout;
    for (int i = 0; i < *count; i++) {
        then[i][1] += then[i][0] * first[i][1];
        then[i][0] *= first[i][0];
    }
}

static void collectives(void)
{
    long everyone = (long)size * (size - 1) / 2;
    for (int n = 1; n <= 200000; n = n * 20 + 1) {
        long *a = allocate((size_t)n * sizeof *a), *b = allocate((size_t)n * sizeof *b), *c = allocate((size_t)n * sizeof *c);
        long *all = allocate((size_t)n * (size_t)size * sizeof *all), *scan = allocate((size_t)n * sizeof *scan);
        for (int i = 0; i < n; i++)
            a[i] = rank + i, b[i] = rank == size - 1 ? i : -1;
        MPI_Request requests[6];
        MPI_Iallreduce(a, c, n, MPI_LONG, MPI_SUM, comm, &requests[0]);
        MPI_Ibcast(b, n, MPI_LONG, size - 1, comm, &requests[1]);
        MPI_Ibarrier(comm, &requests[2]);
        MPI_Iallgather(a, n, MPI_LONG, all, n, MPI_LONG, comm, &requests[3]);
        MPI_Iscan(a, scan, n, MPI_LONG, MPI_SUM, comm, &requests[4]);
        MPI_Ibarrier(comm, &requests[5]);
        MPI_Waitall(6, requests, MPI_STATUSES_IGNORE);
        for (int i = 0; i < n; i++) {
            CHECK(c[i] == everyone + (long)size * i && b[i] == i, "element %d of %d", i, n);
            CHECK(scan[i] == (long)rank * (rank + 1) / 2 + (long)(rank + 1) * i, "scan %d of %d", i, n);
        }
        for (int r = 0; r < size; r++)
            CHECK(all[(long)r * n + n - 1] == r + n - 1, "gathered from %d", r);
        MPI_Gather(a, n, MPI_LONG, all, n, MPI_LONG, size / 2, comm);
        if (rank == size / 2)
            for (int r = 0; r < size; r++)
                CHECK(all[(long)r * n] == r, "gather from %d", r);
        MPI_Scatter(all, n, MPI_LONG, c, n, MPI_LONG, size / 2, comm);
        CHECK(c[n - 1] == rank + n - 1, "scatter");
        MPI_Reduce_scatter_block(all, c, n, MPI_LONG, MPI_MAX, comm);
        MPI_Allreduce(MPI_IN_PLACE, a, n, MPI_LONG, MPI_MAX, comm);
        CHECK(a[n - 1] == size - 1 + n - 1, "max in place");
        MPI_Exscan(b, c, n, MPI_LONG, MPI_SUM, comm);
        CHECK(rank == 0 || c[n - 1] == (long)rank * (n - 1), "exscan");
        free(a), free(b), free(c), free(all), free(scan);
    }
    // An operation that does not commute must be applied in rank order.
    MPI_Op op;
    MPI_Datatype map;
    uint64_t mine[2] = {3, (uint64_t)rank + 1}, composed[2], expected = 0;
    MPI_Type_contiguous(2, MPI_UINT64_T, &map);
    MPI_Type_commit(&map);
    MPI_Op_create(compose, 0, &op);
    MPI_Scan(mine, composed, 1, map, op, comm);
    for (int r = 0; r <= rank; r++)
        expected = 3 * expected + (uint64_t)r + 1;
    CHECK(composed[1] == expected, "%llx composed", (unsigned long long)composed[1]);
    MPI_Op_free(&op);
    MPI_Type_free(&map);
    // Neighbour collectives on a ring.
    int dims[1] = {size}, periods[1] = {1}, around[2] = {-1, -1};
    MPI_Comm ring;
    MPI_Cart_create(comm, 1, dims, periods, 0, &ring);
    MPI_Neighbor_allgather(&rank, 1, MPI_INT, around, 1, MPI_INT, ring);
    CHECK(around[0] == left && around[1] == right, "neighbours %d and %d", around[0], around[1]);
    MPI_Comm_free(&ring);
    MPI_Request bcast;
    long persistent_value = 0;
    MPI_Bcast_init(&persistent_value, 1, MPI_LONG, 0, comm, MPI_INFO_NULL, &bcast);
    for (long i = 0; i < 10; i++) {
        persistent_value = rank == 0 ? i * i : -1;
        MPI_Start(&bcast);
        MPI_Wait(&bcast, MPI_STATUS_IGNORE);
        CHECK(persistent_value == i * i, "persistent broadcast %ld", i);
    }
    MPI_Request_free(&bcast);
}

// Point-to-point and collectives between two groups, even ranks and odd ones.
static void intercommunicators(void)
{
    if (size < 2)
        return;
    MPI_Comm mine, across, merged;
    MPI_Comm_split(comm, rank % 2, rank, &mine);
    MPI_Intercomm_create(mine, 0, comm, 1 - rank % 2, 4000, &across);
    int me, others, in = -1;
    MPI_Comm_rank(across, &me);
    MPI_Comm_remote_size(across, &others);
    MPI_Status status;
    if (me < others) {
        MPI_Sendrecv(&rank, 1, MPI_INT, me, 1, &in, 1, MPI_INT, me, 1, across, &status);
        CHECK(in == (rank ^ 1) && status.MPI_SOURCE == me, "%d came across", in);
    }
    int *theirs = allocate((size_t)others * sizeof *theirs);
    MPI_Allgather(&rank, 1, MPI_INT, theirs, 1, MPI_INT, across);
    for (int r = 0; r < others; r++)
        CHECK(theirs[r] == 2 * r + 1 - rank % 2, "%d gathered across", theirs[r]);
    long value = rank == 0 ? 99 : -1;
    MPI_Bcast(&value, 1, MPI_LONG, rank % 2 ? 0 : rank == 0 ? MPI_ROOT : MPI_PROC_NULL, across);
    CHECK(rank % 2 == 0 || value == 99, "broadcast across: %ld", value);
    MPI_Barrier(across);
    MPI_Intercomm_merge(across, rank % 2, &merged);
    int merged_size;
    MPI_Comm_size(merged, &merged_size);
    CHECK(merged_size == size, "%d merged", merged_size);
    MPI_Comm_free(&merged), MPI_Comm_free(&across), MPI_Comm_free(&mine);
    free(theirs);
}

// Partitioned communication, each partition marked ready in another order.
static void partitioned(void)
{
    if (size < 2)
        return;
    enum { PARTS = 8, EACH = 1000 };
    double out[PARTS * EACH] = {0}, in[PARTS * EACH];
    MPI_Request requests[2];
    MPI_Psend_init(out, PARTS, EACH, MPI_DOUBLE, right, 5000, comm, MPI_INFO_NULL, &requests[0]);
    MPI_Precv_init(in, PARTS, EACH, MPI_DOUBLE, left, 5000, comm, MPI_INFO_NULL, &requests[1]);
    for (int round = 0; round < 3; round++) {
        MPI_Startall(2, requests);
        for (int part = 0; part < PARTS; part++) {
            int p = (part * 3 + round) % PARTS;
            for (int i = 0; i < EACH; i++)
                out[p * EACH + i] = rank + round * 1e4 + p * EACH + i;
            MPI_Pready(p, requests[0]);
        }
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        for (int i = 0; i < PARTS * EACH; i++)
            CHECK(in[i] == left + round * 1e4 + i, "partitioned element %d", i);
    }
    MPI_Request_free(&requests[0]), MPI_Request_free(&requests[1]);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {
        {"modes", modes},           {"synchronous", synchronous},   {"probes", probes},
        {"cancelled", cancelled},   {"truncated", truncated},       {"persistent", persistent},
        {"derived", derived},       {"out_of_order", out_of_order}, {"flood", flood},
        {"to_self", to_self},       {"sendrecv", sendrecv_and_null}, {"completions", completions},
        {"collectives", collectives}, {"intercommunicators", intercommunicators}, {"partitioned", partitioned},
    };
    enum { PARTS = sizeof parts / sizeof parts[0] };
    MPI_Init(&argc, &argv);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    right = (rank + 1) % size, left = (rank + size - 1) % size;
    char *end;
    long rounds = argc > 1 ? strtol(argv[1], &end, 10) : 1;
    const char *only = argc > 1 && end == argv[1] ? argv[1] : NULL; // or the name of one part
    if (only)
        rounds = 1;
    for (long round = 0; round < rounds; round++)
        for (size_t i = 0; i < PARTS; i++) {
            if (only && strcmp(only, parts[i].name) != 0)
                continue;
            linger(round * PARTS + (long)i, rounds * PARTS);
            parts[i].run();
            MPI_Barrier(comm);
            if (rank == 0)
                printf("%s: ok\n", parts[i].name), fflush(stdout);
        }
    MPI_Comm_free(&comm);
    MPI_Finalize();
    return 0;
}
