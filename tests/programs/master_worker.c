// SPDX-License-Identifier: Apache-2.0
// A master hands out tasks to whoever is first. Everything that chance decides (arrival order, how often a probe
// came back empty, which request Testany found) is put into later messages, and every rank keeps a hash of what it
// exchanged with each other rank. At the end the two sides of every pair compare. A rank that was restarted and
// did not take exactly the same decisions again cannot pass.
//   master_worker [TASKS=2000] [WORK=2000] [--history]     (--history prints the hash that chance made)
#include "check.h"

enum { TASK = 1, RESULT, STOP, GOSSIP, NOTE, TAGS };

struct task {
    int64_t number, idle;
    uint64_t chance;
};
struct result {
    int64_t number, idle;
    uint64_t value, chance;
};

static int rank, size;
static uint64_t *sent, *received; // [rank][tag]: hashes of what was sent there, of what came from there
static int gossiping = 1;         // the worker before us has not yet sent its last
static uint64_t chance = FNV_START;
static int64_t idle;

static void send_to(int to, int tag, const void *data, size_t bytes)
{
    MPI_Send(data, (int)bytes, MPI_BYTE, to, tag, MPI_COMM_WORLD);
    sent[to * TAGS + tag] = hash_bytes(sent[to * TAGS + tag], data, bytes);
}

static void got(int from, int tag, const void *data, size_t bytes)
{
    received[from * TAGS + tag] = hash_bytes(received[from * TAGS + tag], data, bytes);
    chance = hash_bytes(chance, &from, sizeof from);
    chance = hash_bytes(chance, &idle, sizeof idle);
    chance = hash_bytes(chance, data, bytes);
}

static uint64_t work(int64_t number, long amount)
{
    uint64_t value = (uint64_t)number;
    long turns = amount / 2 + (long)(mixed(3, (uint64_t)number) % (uint64_t)(amount + 1));
    for (long i = 0; i < turns; i++)
        value = mixed(value, (uint64_t)i);
    return value;
}

static uint64_t master(long tasks)
{
    int64_t next = 0, done = 0;
    uint64_t sum = 0;
    int active = size - 1;
    // Notes come into posted receives, one per worker, found with Testany; results are found with Iprobe.
    int64_t *notes = allocate((size_t)size * sizeof *notes);
    MPI_Request *requests = allocate((size_t)size * sizeof *requests);
    requests[0] = MPI_REQUEST_NULL;
    for (int w = 1; w < size; w++)
        MPI_Irecv(&notes[w], 1, MPI_INT64_T, w, NOTE, MPI_COMM_WORLD, &requests[w]);
    for (int w = 1; w < size; w++) {
        struct task first = {next++, 0, chance};
        send_to(w, TASK, &first, sizeof first);
    }
    while (active > 0) {
        int flag, index;
        MPI_Status status;
        MPI_Testany(size, requests, &index, &flag, &status);
        if (flag && index != MPI_UNDEFINED) {
            got(index, NOTE, &notes[index], sizeof notes[index]);
            if (notes[index] < 0) // its last; Testany has made the request null
                continue;
            MPI_Irecv(&notes[index], 1, MPI_INT64_T, index, NOTE, MPI_COMM_WORLD, &requests[index]);
        }
        MPI_Iprobe(MPI_ANY_SOURCE, RESULT, MPI_COMM_WORLD, &flag, &status);
        if (!flag) {
            idle++;
            continue;
        }
        struct result result;
        MPI_Recv(&result, sizeof result, MPI_BYTE, MPI_ANY_SOURCE, RESULT, MPI_COMM_WORLD, &status);
        int w = status.MPI_SOURCE;
        got(w, RESULT, &result, sizeof result);
        sum += result.value;
        done++;
        struct task task = {next, idle, chance};
        if (next < tasks) {
            next++;
            send_to(w, TASK, &task, sizeof task);
        } else {
            send_to(w, STOP, &task, sizeof task);
            active--;
        }
    }
    // Every worker sends a last note, -1, after it was stopped.
    for (int w = 1; w < size; w++)
        while (requests[w] != MPI_REQUEST_NULL) {
            MPI_Wait(&requests[w], MPI_STATUS_IGNORE);
            got(w, NOTE, &notes[w], sizeof notes[w]);
            if (notes[w] >= 0)
                MPI_Irecv(&notes[w], 1, MPI_INT64_T, w, NOTE, MPI_COMM_WORLD, &requests[w]);
        }
    CHECK(done == (tasks > size - 1 ? tasks : size - 1), "%lld tasks done", (long long)done);
    free(notes), free(requests);
    return sum;
}

static void worker(long tasks, long amount)
{
    int next_worker = rank == size - 1 ? 1 : rank + 1;
    uint64_t round = 0;
    for (;;) {
        int flag;
        MPI_Status status;
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, &status);
        if (!flag) {
            idle++;
            continue;
        }
        if (status.MPI_TAG == GOSSIP) {
            uint64_t gossip;
            MPI_Recv(&gossip, sizeof gossip, MPI_BYTE, status.MPI_SOURCE, GOSSIP, MPI_COMM_WORLD, &status);
            got(status.MPI_SOURCE, GOSSIP, &gossip, sizeof gossip);
            gossiping = gossip != 0;
            continue;
        }
        struct task task;
        MPI_Recv(&task, sizeof task, MPI_BYTE, 0, status.MPI_TAG, MPI_COMM_WORLD, &status);
        got(0, status.MPI_TAG, &task, sizeof task);
        if (status.MPI_TAG == STOP)
            break;
        linger(task.number, tasks);
        struct result result = {task.number, idle, work(task.number, amount), chance};
        send_to(0, RESULT, &result, sizeof result);
        if (++round % 5 == 0 && next_worker != rank)
            send_to(next_worker, GOSSIP, &chance, sizeof chance);
        if (round % 7 == 0)
            send_to(0, NOTE, &idle, sizeof idle);
    }
    int64_t last = -1;
    send_to(0, NOTE, &last, sizeof last);
    // Gossip ends when the neighbour before us says so.
    uint64_t end = 0;
    if (next_worker != rank) {
        int before = rank == 1 ? size - 1 : rank - 1;
        send_to(next_worker, GOSSIP, &end, sizeof end);
        while (gossiping) {
            uint64_t gossip;
            MPI_Recv(&gossip, sizeof gossip, MPI_BYTE, before, GOSSIP, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            got(before, GOSSIP, &gossip, sizeof gossip);
            gossiping = gossip != 0;
        }
    }
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    CHECK(size >= 2, "needs a master and a worker");
    long tasks = argument(argc, argv, 1, 2000), amount = argument(argc, argv, 2, 2000);
    int history = argc > 3 && strcmp(argv[3], "--history") == 0;
    int entries = size * TAGS;
    sent = allocate((size_t)entries * sizeof *sent);
    received = allocate((size_t)entries * sizeof *received);
    for (int i = 0; i < entries; i++)
        sent[i] = received[i] = FNV_START;
    uint64_t sum = 0;
    if (rank == 0)
        sum = master(tasks);
    else
        worker(tasks, amount);

    // What I sent to you must be what you got from me.
    uint64_t *theirs = allocate((size_t)entries * sizeof *theirs);
    MPI_Alltoall(sent, TAGS, MPI_UINT64_T, theirs, TAGS, MPI_UINT64_T, MPI_COMM_WORLD);
    for (int i = 0; i < entries; i++)
        CHECK(theirs[i] == received[i], "rank %d says it sent %016llx with tag %d, I have %016llx", i / TAGS,
              (unsigned long long)theirs[i], i % TAGS, (unsigned long long)received[i]);
    uint64_t all;
    MPI_Reduce(&chance, &all, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("master_worker tasks=%ld sum=%016llx, all histories agree\n", tasks, (unsigned long long)sum);
        if (history)
            printf("history %016llx\n", (unsigned long long)all);
    }
    free(sent), free(received), free(theirs);
    MPI_Finalize();
    return 0;
}
