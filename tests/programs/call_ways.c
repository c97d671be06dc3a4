// SPDX-License-Identifier: Apache-2.0
// Ways to use MPI: memory of others, requests of all kinds, groups of ranks, input and output. What a rank computes depends on each
// message. Without failures each way prints the same every time.
//   call_ways WAY DIRECTORY [STEPS=60] [PAUSE_MICROSECONDS=4000]
#define _GNU_SOURCE
#define ROW (48 * 16)
#define SEEN (48 * 16)
#include "ways.h"
#include <pthread.h>
#include <stddef.h>

#define U64 MPI_UINT64_T

static char **arguments;

static void rma_fence(void)
{
    MPI_Win win;
    uint64_t *mine;
    MPI_Win_allocate(8 * MANY * 4, 8, MPI_INFO_NULL, WORLD, &mine, &win);
    memset(mine, 0, 8 * MANY * 4);
    MPI_Win_fence(0, win);
    for (long step = 0; step < steps; step++, rest(step)) {
        MPI_Put(new_row(), MANY, U64, beside, 0, MANY, U64, win);
        MPI_Accumulate(row + MANY, MANY, U64, before, MANY, MANY, U64, MPI_BXOR, win);
        MPI_Win_fence(0, win);
        MPI_Get(seen, MANY * 2, U64, before, 0, MANY * 2, U64, win);
        MPI_Win_fence(0, win);
        talk(look(seen, 16 * MANY) + look(mine, 16 * MANY));
        MPI_Win_fence(0, win);
    }
    MPI_Win_free(&win);
}

static void rma_pscw(void)
{
    MPI_Win win;
    MPI_Group all, to, from;
    static uint64_t mine[MANY];
    MPI_Win_create(mine, sizeof mine, 8, MPI_INFO_NULL, WORLD, &win);
    MPI_Comm_group(WORLD, &all);
    MPI_Group_incl(all, 1, &beside, &to), MPI_Group_incl(all, 1, &before, &from);
    for (long step = 0; step < steps; step++, rest(step)) {
        MPI_Win_post(from, 0, win);
        MPI_Win_start(to, 0, win);
        MPI_Put(new_row(), MANY / 2, U64, beside, 0, MANY / 2, U64, win);
        MPI_Get_accumulate(row, MANY / 2, U64, seen, MANY / 2, U64, beside, MANY / 2, MANY / 2, U64, MPI_SUM, win);
        MPI_Win_complete(win);
        if (step % 2)
            MPI_Win_wait(win);
        else
            for (int done = 0; !done;)
                MPI_Win_test(win, &done);
        talk(look(seen, 4 * MANY) + look(mine, sizeof mine));
    }
    MPI_Group_free(&all), MPI_Group_free(&to), MPI_Group_free(&from);
    MPI_Win_free(&win);
}

static void rma_lock(void)
{
    MPI_Win win;
    uint64_t *mine;
    MPI_Win_allocate(8 * MANY * 2, 8, MPI_INFO_NULL, WORLD, &mine, &win);
    memset(mine, 0, 16 * MANY);
    MPI_Barrier(WORLD);
    for (long step = 0; step < steps; step++, rest(step)) {
        int target = (int)(mixed(3, (uint64_t)step) % (uint64_t)size);
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, target, 0, win);
        MPI_Accumulate(new_row(), MANY, U64, target, 0, MANY, U64, MPI_SUM, win);
        MPI_Win_unlock(target, win);
        MPI_Barrier(WORLD);
        MPI_Win_lock(MPI_LOCK_SHARED, target, 0, win);
        MPI_Request request;
        MPI_Rget(seen, MANY, U64, target, 0, MANY, U64, win, &request);
        MPI_Wait(&request, DONE);
        MPI_Win_unlock(target, win);
        MPI_Barrier(WORLD);
        talk(look(seen, 8 * MANY));
    }
    MPI_Win_free(&win);
}

// Tickets: who gets which is not certain, that each is given once is.
static void rma_atomics(void)
{
    MPI_Win win;
    uint64_t *mine, one = 1, sum = 0;
    MPI_Win_allocate(64, 8, MPI_INFO_NULL, WORLD, &mine, &win);
    memset(mine, 0, 64);
    MPI_Barrier(WORLD);
    MPI_Win_lock_all(0, win);
    for (long step = 0; step < steps; step++, rest(step)) {
        uint64_t ticket = 0, other = 0, zero = 0, free_ = 0, me = (uint64_t)rank + 1;
        MPI_Fetch_and_op(&one, &ticket, U64, (int)(step % size), 0, MPI_SUM, win);
        MPI_Win_flush((int)(step % size), win);
        sum += ticket;
        // A lock by compare and swap, and a number that only its owner changes.
        for (int taken = 0; !taken;) {
            MPI_Compare_and_swap(&me, &zero, &other, U64, 0, 2, win);
            MPI_Win_flush(0, win);
            if (!(taken = other == 0))
                usleep(200);
        }
        MPI_Get(&other, 1, U64, 0, 3, 1, U64, win);
        MPI_Win_flush(0, win);
        other += (uint64_t)(step + 1) * me;
        MPI_Put(&other, 1, U64, 0, 3, 1, U64, win);
        MPI_Win_flush(0, win);
        MPI_Fetch_and_op(&zero, &free_, U64, 0, 2, MPI_REPLACE, win);
        MPI_Win_flush_all(win);
        CHECK(free_ == me, "the lock of %d is that of %d", rank, (int)free_);
        if (step % 10 == 9)
            talk((uint64_t)step);
    }
    MPI_Win_flush_all(win);
    MPI_Barrier(WORLD);
    uint64_t last = 0, all = 0;
    MPI_Get(&last, 1, U64, 0, 3, 1, U64, win);
    MPI_Win_flush(0, win);
    MPI_Win_unlock_all(win);
    MPI_Allreduce(&sum, &all, 1, U64, MPI_SUM, WORLD);
    MPI_Win_free(&win);
    talk(last + all);
}

static void rma_dynamic(void)
{
    MPI_Win win;
    MPI_Win_create_dynamic(MPI_INFO_NULL, WORLD, &win);
    for (long step = 0; step < steps; step++, rest(step)) {
        size_t many = 20 + mixed(9, (uint64_t)step) % 700;
        uint64_t *mine = allocate(8 * many);
        memset(mine, 0, 8 * many);
        MPI_Aint here, there;
        MPI_Win_attach(win, mine, (MPI_Aint)(8 * many));
        MPI_Get_address(mine, &here);
        MPI_Sendrecv(&here, 1, MPI_AINT, before, 1, &there, 1, MPI_AINT, beside, 1, WORLD, DONE);
        MPI_Win_lock(MPI_LOCK_SHARED, beside, 0, win);
        MPI_Put(new_row(), 20, U64, beside, there, 20, U64, win);
        MPI_Win_unlock(beside, win);
        MPI_Barrier(WORLD);
        talk(look(mine, 8 * many));
        MPI_Win_detach(win, mine);
        free(mine);
    }
    MPI_Win_free(&win);
}

static void rma_shared(void)
{
    MPI_Comm near;
    MPI_Win win;
    uint64_t *mine;
    MPI_Comm_split_type(WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &near);
    int here, many;
    MPI_Comm_rank(near, &here), MPI_Comm_size(near, &many);
    MPI_Win_allocate_shared(8 * MANY, 8, MPI_INFO_NULL, near, &mine, &win);
    MPI_Win_lock_all(0, win);
    for (long step = 0; step < steps; step++, rest(step)) {
        memcpy(mine, new_row(), 8 * MANY);
        MPI_Win_sync(win);
        MPI_Barrier(near);
        MPI_Win_sync(win);
        uint64_t *other;
        MPI_Aint bytes;
        int unit;
        MPI_Win_shared_query(win, (here + 1) % many, &bytes, &unit, &other);
        uint64_t found = look(other, 8 * MANY);
        MPI_Barrier(near);
        talk(found);
    }
    MPI_Win_unlock_all(win);
    MPI_Win_free(&win);
    MPI_Comm_free(&near);
}

static void rma_typed(void)
{
    MPI_Win win;
    uint64_t *mine;
    MPI_Datatype every;
    MPI_Type_vector(MANY / 3, 1, 3, U64, &every);
    MPI_Type_commit(&every);
    MPI_Win_allocate(8 * MANY, 1, MPI_INFO_NULL, WORLD, &mine, &win);
    memset(mine, 0, 8 * MANY);
    MPI_Win_fence(0, win);
    for (long step = 0; step < steps; step++, rest(step)) {
        MPI_Accumulate(new_row(), 1, every, beside, 8 * (step % 3), 1, every, MPI_SUM, win);
        MPI_Accumulate(row + 1, 1, every, before, 8 * (step % 3), 1, every, MPI_SUM, win);
        MPI_Win_fence(0, win);
        talk(look(mine, 8 * MANY));
        MPI_Win_fence(0, win);
        MPI_Get(seen, 1, every, before, 0, MANY / 3, U64, win);
        MPI_Win_fence(0, win);
        talk(look(seen, 8 * MANY));
    }
    MPI_Type_free(&every);
    MPI_Win_free(&win);
}

static void mp_partitioned(void)
{
    MPI_Request send, receive;
    MPI_Psend_init(row, 4, MANY, U64, beside, 3, WORLD, MPI_INFO_NULL, &send);
    MPI_Precv_init(seen, 4, MANY, U64, before, 3, WORLD, MPI_INFO_NULL, &receive);
    for (long step = 0; step < steps; step++, rest(step)) {
        new_row();
        MPI_Start(&receive), MPI_Start(&send);
        for (int i = 0; i < 4; i++)
            MPI_Pready((i + rank) % 4, send);
        if (step % 2)
            for (int there = 0; !there;)
                MPI_Parrived(receive, 2, &there);
        MPI_Wait(&send, DONE), MPI_Wait(&receive, DONE);
        talk(look(seen, 8 * MANY * 4));
    }
    MPI_Request_free(&send), MPI_Request_free(&receive);
}

static void mp_persistent(void)
{
    MPI_Request all[6];
    static uint64_t sums[MANY], parts[MANY * 16];
    MPI_Send_init(row, MANY, U64, beside, 1, WORLD, &all[0]);
    MPI_Ssend_init(row + MANY, MANY, U64, before, 2, WORLD, &all[1]);
    MPI_Recv_init(seen, MANY, U64, MPI_ANY_SOURCE, 1, WORLD, &all[2]);
    MPI_Recv_init(seen + MANY, MANY, U64, beside, MPI_ANY_TAG, WORLD, &all[3]);
    MPI_Allreduce_init(row, sums, MANY, U64, MPI_SUM, WORLD, MPI_INFO_NULL, &all[4]);
    MPI_Alltoall_init(row, 4, U64, parts, 4, U64, WORLD, MPI_INFO_NULL, &all[5]);
    for (long step = 0; step < steps; step++, rest(step)) {
        new_row();
        MPI_Startall(6, all);
        MPI_Waitall(6, all, MPI_STATUSES_IGNORE);
        uint64_t found = look(seen, 16 * MANY) + look(sums, sizeof sums) + look(parts, sizeof parts);
        MPI_Barrier(WORLD);
        talk(found);
    }
    for (int i = 0; i < 6; i++)
        MPI_Request_free(&all[i]);
}

// All to rank 0 by matched probes; the sum does not depend on the order, the answers do.
static void mp_mprobe(void)
{
    uint64_t sum = 0;
    for (long step = 0; step < steps; step++, rest(step)) {
        if (rank == 0) {
            uint64_t xor = 0;
            for (int i = 1; i < size; i++) {
                MPI_Message message;
                MPI_Status status;
                int count, there = 0;
                if (step % 2)
                    MPI_Mprobe(MPI_ANY_SOURCE, 4, WORLD, &message, &status);
                else
                    while (!there)
                        MPI_Improbe(MPI_ANY_SOURCE, 4, WORLD, &there, &message, &status);
                MPI_Get_count(&status, U64, &count);
                MPI_Request request;
                MPI_Imrecv(seen, count, U64, &message, &request);
                MPI_Wait(&request, DONE);
                xor ^= look(seen, 8 * (size_t)count) + (uint64_t)status.MPI_SOURCE;
                uint64_t answer = (uint64_t)i; // who was the i-th
                MPI_Send(&answer, 1, U64, status.MPI_SOURCE, 5, WORLD);
            }
            talk(xor);
        } else {
            uint64_t place;
            MPI_Send(new_row(), rank * 10 + (int)(step % 5), U64, 0, 4, WORLD);
            MPI_Recv(&place, 1, U64, 0, 5, WORLD, DONE);
            sum += place;
            talk((uint64_t)step);
        }
        MPI_Barrier(WORLD); // what is probed is of this step
    }
    uint64_t all;
    MPI_Allreduce(&sum, &all, 1, U64, MPI_SUM, WORLD);
    talk(all);
}

static void mp_some(void)
{
    for (long step = 0; step < steps; step++, rest(step)) {
        MPI_Request in[12], out[12];
        static uint64_t parts[12][MANY];
        new_row();
        for (int i = 0; i < 12; i++)
            MPI_Irecv(parts[i], MANY, U64, MPI_ANY_SOURCE, 20 + i, WORLD, &in[i]);
        for (int i = 0; i < 12; i++)
            MPI_Isend(row + i, MANY, U64, (rank + 1 + i % 2) % size, 20 + i, WORLD, &out[i]);
        uint64_t xor = 0, order = 0;
        for (int left = 12; left > 0;) {
            int many = 0, which[12];
            if (step % 3 == 0)
                MPI_Waitsome(12, in, &many, which, MPI_STATUSES_IGNORE);
            else if (step % 3 == 1)
                MPI_Testsome(12, in, &many, which, MPI_STATUSES_IGNORE);
            else
                MPI_Waitany(12, in, which, DONE), many = 1;
            for (int i = 0; i < many; i++)
                xor ^= look(parts[which[i]], sizeof *parts) * (uint64_t)(which[i] + 1), order = mixed(order, (uint64_t)which[i]);
            left -= many;
        }
        MPI_Waitall(12, out, MPI_STATUSES_IGNORE);
        // The order goes to others, and must be the same in a replay; the answer does not depend on it.
        MPI_Sendrecv(&order, 1, U64, beside, 99, seen, 1, U64, before, 99, WORLD, DONE);
        talk(xor);
    }
}

static void mp_cancel(void)
{
    for (long step = 0; step < steps; step++, rest(step)) {
        MPI_Request request;
        MPI_Status status;
        int cancelled;
        MPI_Irecv(seen, MANY, U64, MPI_ANY_SOURCE, 1000 + (int)step, WORLD, &request);
        talk((uint64_t)step);
        MPI_Cancel(&request);
        MPI_Wait(&request, &status);
        MPI_Test_cancelled(&status, &cancelled);
        CHECK(cancelled, "not cancelled");
        talk(1);
    }
}

static void mp_large(void)
{
    size_t bytes = 3 << 20;
    char *out = allocate(bytes), *in = allocate(bytes);
    for (long step = 0; step < steps; step += 8, rest(step)) {
        fill(out, bytes, total);
        MPI_Sendrecv(out, (int)bytes, MPI_BYTE, beside, 1, in, (int)bytes, MPI_BYTE, before, 1, WORLD, DONE);
        talk(look(in, bytes));
        MPI_Bcast(in, (int)bytes, MPI_BYTE, (int)(step % size), WORLD);
        talk(look(in, bytes));
    }
    free(out), free(in);
}

static void mp_typed(void)
{
    MPI_Datatype strided, mixed_, record;
    struct record {
        char letter;
        double number;
        int few[3];
    } mine[20], other[20];
    int lengths[] = {1, 1, 3}, blocks[] = {1, 3, 2}, places[] = {0, 5, 20};
    MPI_Aint offsets[] = {offsetof(struct record, letter), offsetof(struct record, number), offsetof(struct record, few)};
    MPI_Datatype kinds[] = {MPI_CHAR, MPI_DOUBLE, MPI_INT};
    MPI_Type_create_struct(3, lengths, offsets, kinds, &mixed_);
    MPI_Type_create_resized(mixed_, 0, sizeof(struct record), &record);
    MPI_Type_indexed(3, blocks, places, U64, &strided);
    MPI_Type_commit(&record), MPI_Type_commit(&strided);
    for (long step = 0; step < steps; step++, rest(step)) {
        memset(other, 0, sizeof other), memset(mine, 0, sizeof mine), memset(seen, 0, sizeof seen);
        for (int i = 0; i < 20; i++)
            mine[i] = (struct record){(char)(total >> i), (double)(total % 1000) + i, {i, rank, (int)step}};
        MPI_Sendrecv(mine, 20, record, beside, 1, other, 20, record, before, 1, WORLD, DONE);
        uint64_t sum = 0;
        for (int i = 0; i < 20; i++)
            sum = mixed(sum, (uint64_t)other[i].letter + (uint64_t)other[i].number + (uint64_t)other[i].few[1] + (uint64_t)other[i].few[2]);
        MPI_Sendrecv(new_row(), 2, strided, beside, 2, seen, 2, strided, before, 2, WORLD, DONE);
        talk(look(seen, sizeof seen) + sum);
    }
    MPI_Type_free(&mixed_), MPI_Type_free(&record), MPI_Type_free(&strided);
}

static void mp_neighbours(void)
{
    MPI_Comm ring, graph;
    int periodic = 1, to[] = {beside, before}, from[] = {before, beside};
    MPI_Cart_create(WORLD, 1, &size, &periodic, 0, &ring);
    MPI_Dist_graph_create_adjacent(WORLD, 2, from, MPI_UNWEIGHTED, 2, to, MPI_UNWEIGHTED, MPI_INFO_NULL, 0, &graph);
    for (long step = 0; step < steps; step++, rest(step)) {
        MPI_Request request;
        MPI_Neighbor_alltoall(new_row(), 10, U64, seen, 10, U64, ring);
        MPI_Ineighbor_allgather(row + 30, 10, U64, seen + 30, 10, U64, graph, &request);
        MPI_Wait(&request, DONE);
        int counts[] = {3, 5}, at[] = {0, 10}, back[] = {3, 5};
        MPI_Neighbor_alltoallv(row, counts, at, U64, seen + 100, back, at, U64, graph);
        talk(look(seen, 8 * 150));
    }
    MPI_Comm_free(&ring), MPI_Comm_free(&graph);
}

static void add_odd(void *in, void *inout, int *many, MPI_Datatype *kind)
{
    (void)kind;
    for (int i = 0; i < *many; i++)
        ((uint64_t *)inout)[i] = mixed(((uint64_t *)in)[i], ((uint64_t *)inout)[i]);
}

static void mp_collectives(void)
{
    MPI_Op op;
    MPI_Op_create(add_odd, 0, &op);
    for (long step = 0; step < steps; step++, rest(step)) {
        MPI_Request all[5];
        int root = (int)(step % size), counts[16], at[16];
        for (int i = 0; i < size; i++)
            counts[i] = i + 1, at[i] = 5 * i;
        new_row();
        MPI_Ireduce(row, seen, MANY, U64, op, root, WORLD, &all[0]);
        MPI_Iscan(row, seen + MANY, MANY, U64, op, WORLD, &all[1]);
        MPI_Iallgatherv(row, rank + 1, U64, seen + 2 * MANY, counts, at, U64, WORLD, &all[2]);
        MPI_Ireduce_scatter_block(row, seen + 4 * MANY, 3, U64, op, WORLD, &all[3]);
        MPI_Ibarrier(WORLD, &all[4]);
        MPI_Waitall(5, all, MPI_STATUSES_IGNORE);
        MPI_Exscan(row, seen + 5 * MANY, 5, U64, MPI_BXOR, WORLD);
        talk(look(seen, sizeof seen));
    }
    MPI_Op_free(&op);
}

static void mp_between(void)
{
    for (long step = 0; step < steps; step++, rest(step)) {
        MPI_Comm half, between, merged;
        int odd = rank % 2;
        MPI_Comm_split(WORLD, odd, rank, &half);
        MPI_Intercomm_create(half, 0, WORLD, odd ? 0 : 1, 12, &between);
        uint64_t sum = 0, gathered[16] = {0};
        MPI_Allreduce(&total, &sum, 1, U64, MPI_BXOR, between);
        MPI_Allgather(&total, 1, U64, gathered, 1, U64, between);
        MPI_Intercomm_merge(between, odd, &merged);
        uint64_t place = 0;
        MPI_Scan(&total, &place, 1, U64, MPI_SUM, merged);
        MPI_Comm_free(&merged), MPI_Comm_free(&between), MPI_Comm_free(&half);
        talk(look(gathered, sizeof gathered) + sum + place);
    }
}

static void mp_sends(void)
{
    size_t room = 16 * (sizeof row + MPI_BSEND_OVERHEAD);
    void *buffer = allocate(room);
    int bytes;
    MPI_Buffer_attach(buffer, (int)room);
    for (long step = 0; step < steps; step++, rest(step)) {
        MPI_Request request;
        MPI_Bsend(new_row(), 100, U64, beside, 1, WORLD);
        MPI_Issend(row, 50, U64, before, 2, WORLD, &request);
        MPI_Recv(seen, 100, U64, before, 1, WORLD, DONE);
        MPI_Recv(seen + 100, 50, U64, beside, 2, WORLD, DONE);
        MPI_Wait(&request, DONE);
        MPI_Irecv(seen + 200, 10, U64, before, 3, WORLD, &request);
        MPI_Barrier(WORLD);
        MPI_Rsend(row, 10, U64, beside, 3, WORLD);
        MPI_Wait(&request, DONE);
        MPI_Send(NULL, 0, U64, beside, 4, WORLD);
        MPI_Recv(NULL, 0, U64, before, 4, WORLD, DONE);
        MPI_Isendrecv_replace(seen + 300, 30, U64, beside, 5, before, 5, WORLD, &request);
        MPI_Wait(&request, DONE);
        talk(look(seen, 8 * 330));
    }
    MPI_Buffer_detach(&buffer, &bytes);
    free(buffer);
}

static void mp_session(void)
{
    for (long step = 0; step < steps; step += 6, rest(step)) {
        MPI_Session session;
        MPI_Group group;
        MPI_Comm comm;
        MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &session);
        MPI_Group_from_session_pset(session, "mpi://WORLD", &group);
        MPI_Comm_create_from_group(group, "ways", MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &comm);
        uint64_t sum = 0;
        MPI_Allreduce(&total, &sum, 1, U64, MPI_SUM, comm);
        MPI_Comm_free(&comm), MPI_Group_free(&group);
        MPI_Session_finalize(&session);
        talk(sum);
    }
}

static void dp_spawn(void)
{
    for (long step = 0; step < steps; step += 30, rest(step)) {
        MPI_Comm child;
        char number[24];
        snprintf(number, sizeof number, "%ld", step);
        char *words[] = {"child", arguments[2], number, NULL};
        MPI_Comm_spawn(arguments[0], words, 2, MPI_INFO_NULL, 0, WORLD, &child, MPI_ERRCODES_IGNORE);
        uint64_t sum = 0;
        for (int i = 0; i < 20; i++) {
            MPI_Allreduce(&total, &sum, 1, U64, MPI_BXOR, child);
            talk(sum);
        }
        MPI_Comm_disconnect(&child);
    }
}

static void child(MPI_Comm parent)
{
    uint64_t mine = (uint64_t)rank + (uint64_t)steps, sum;
    for (int i = 0; i < 20; i++) {
        MPI_Allreduce(&mine, &sum, 1, U64, MPI_BXOR, parent);
        mine = mixed(mine, sum);
        usleep(2000);
    }
    MPI_Comm_disconnect(&parent);
}

static void dp_connect(void)
{
    MPI_Comm half;
    int odd = rank % 2;
    MPI_Comm_split(WORLD, odd, rank, &half);
    for (long step = 0; step < steps; step += 6, rest(step)) {
        char port[MPI_MAX_PORT_NAME] = "";
        MPI_Comm other;
        if (rank == 0)
            MPI_Open_port(MPI_INFO_NULL, port);
        MPI_Bcast(port, sizeof port, MPI_CHAR, 0, WORLD);
        if (odd)
            MPI_Comm_connect(port, MPI_INFO_NULL, 0, half, &other);
        else
            MPI_Comm_accept(port, MPI_INFO_NULL, 0, half, &other);
        uint64_t sum = 0;
        MPI_Allreduce(&total, &sum, 1, U64, MPI_SUM, other);
        MPI_Comm_disconnect(&other);
        if (rank == 0)
            MPI_Close_port(port);
        talk(sum);
    }
    MPI_Comm_free(&half);
}

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turned = PTHREAD_COND_INITIALIZER;
static long whose;

static void *one_thread(void *which)
{
    long mine = (long)which;
    for (long step = mine; step < steps; step += 2) {
        pthread_mutex_lock(&turn);
        while (whose != mine)
            pthread_cond_wait(&turned, &turn);
        talk((uint64_t)step);
        rest(step);
        whose = 1 - mine;
        pthread_cond_broadcast(&turned);
        pthread_mutex_unlock(&turn);
    }
    return NULL;
}

static void th_turns(void)
{
    pthread_t threads[2];
    steps -= steps % 2;
    for (long i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, one_thread, (void *)i);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
}

struct own {
    MPI_Comm comm;
    uint64_t value;
    int number;
};

static void *own_ring(void *what)
{
    struct own *own = what;
    for (long step = 0; step < steps; step++) {
        uint64_t in;
        MPI_Sendrecv(&own->value, 1, U64, beside, own->number, &in, 1, U64, before, own->number, own->comm, DONE);
        own->value = mixed(own->value, in);
        rest(step);
    }
    return NULL;
}

// Two threads in MPI at once.
static void th_both(void)
{
    pthread_t threads[2];
    struct own own[2];
    for (int i = 0; i < 2; i++) {
        MPI_Comm_dup(WORLD, &own[i].comm);
        own[i].value = (uint64_t)(rank * 10 + i), own[i].number = i;
    }
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, own_ring, &own[i]);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL), MPI_Comm_free(&own[i].comm);
    talk(own[0].value), talk(own[1].value);
}

// Lines begin in one step and end in another one; the last is without an end.
static void out_pieces(void)
{
    if (rank != 0)
        setvbuf(stdout, NULL, _IONBF, 0);
    if (rank == 0)
        for (long step = 0; step < steps; step++, rest(step)) {
            printf("%s%lx ", step % 7 ? "" : "\nrank 0 ", (unsigned long)total);
            fflush(stdout);
            talk((uint64_t)step);
        }
    else
        for (long step = 0; step < steps; step++, rest(step))
            talk((uint64_t)step);
    if (rank == 0)
        printf("the end is near");
}

static void out_binary(void)
{
    for (long step = 0; step < steps; step++, rest(step)) {
        talk((uint64_t)step);
        if (rank == 1) {
            new_row();
            for (long done = 0, bytes = 1 + step * 37 % 2000; done < bytes;)
                done += write(1, (char *)row + done, (size_t)(bytes - done));
        }
        MPI_Barrier(WORLD);
    }
}

// Much right before the end, on both streams.
static void out_last(void)
{
    for (long step = 0; step < steps; step++, rest(step))
        talk((uint64_t)step);
    for (int i = 0; i < 2000; i++) {
        printf("rank %d line %d %016llx\n", rank, i, (unsigned long long)mixed(total, (uint64_t)i));
        if (i % 100 == 0)
            fprintf(stderr, "rank %d error %d\n", rank, i);
    }
}

static void in_pieces(void)
{
    static char text[4096];
    for (long step = 0; step < steps; step++, rest(step)) {
        long got = 0;
        if (rank == 0)
            got = step % 2 ? read(0, text, (size_t)(1 + step * 31 % 300)) : (fgets(text, 200, stdin) ? (long)strlen(text) : 0);
        MPI_Bcast(&got, 1, MPI_LONG, 0, WORLD);
        MPI_Bcast(text, (int)got, MPI_CHAR, 0, WORLD);
        talk(look(text, (size_t)got));
        if (rank == 0 && step % 10 == 0)
            printf("rank 0 %ld %016llx\n", step, (unsigned long long)total);
    }
}

static const struct {
    const char *name;
    void (*run)(void);
} ways[] = {
#define WAY(name) {#name, name}
    WAY(rma_fence), WAY(rma_pscw), WAY(rma_lock), WAY(rma_atomics), WAY(rma_dynamic), WAY(rma_shared), WAY(rma_typed),
    WAY(mp_partitioned), WAY(mp_persistent), WAY(mp_mprobe), WAY(mp_some), WAY(mp_cancel), WAY(mp_large), WAY(mp_typed),
    WAY(mp_neighbours), WAY(mp_collectives), WAY(mp_between), WAY(mp_sends), WAY(mp_session), WAY(dp_spawn),
    WAY(dp_connect), WAY(th_turns), WAY(th_both), WAY(out_pieces), WAY(out_binary), WAY(out_last), WAY(in_pieces),
};

int main(int argc, char **argv)
{
    int threads = argc > 1 && strncmp(argv[1], "th_", 3) == 0, has;
    MPI_Comm parent;
    MPI_Init_thread(&argc, &argv, threads ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &has);
    MPI_Comm_rank(WORLD, &rank);
    MPI_Comm_size(WORLD, &size);
    CHECK(argc > 2, "usage: call_ways WAY DIRECTORY [STEPS] [PAUSE_MICROSECONDS]");
    arguments = argv;
    steps = argument(argc, argv, 3, 60), pause_us = argument(argc, argv, 4, 4000);
    beside = (rank + 1) % size, before = (rank + size - 1) % size;
    total = (uint64_t)rank + 1;
    MPI_Comm_get_parent(&parent);
    int found = parent != MPI_COMM_NULL;
    if (found)
        child(parent);
    for (size_t i = 0; i < sizeof ways / sizeof *ways && !found; i++)
        if (strcmp(ways[i].name, argv[1]) == 0)
            ways[i].run(), found = 1;
    CHECK(found, "no way %s", argv[1]);
    if (parent == MPI_COMM_NULL && strncmp(argv[1], "out_", 4) != 0)
        printf("rank %d %s %016llx\n", rank, argv[1], (unsigned long long)total);
    MPI_Finalize();
    return 0;
}
