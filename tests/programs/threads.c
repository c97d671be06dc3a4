// SPDX-License-Identifier: Apache-2.0
// Several threads of each rank inside MPI at once: each has a partner thread in the neighbour rank, some share a
// communicator, one sits in collectives of its own.   threads [THREADS=4] [ROUNDS=300]
#include "check.h"
#include <pthread.h>

enum { LONGEST = 70000 };
static int rank, size;
static long rounds;

struct job {
    int number;
    MPI_Comm comm;
    uint64_t hash;
};

static void *exchange(void *argument_)
{
    struct job *job = argument_;
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    char *out = allocate(LONGEST), *in = allocate(LONGEST);
    for (long i = 0; i < rounds; i++) {
        size_t bytes = (size_t)(mixed((uint64_t)job->number, (uint64_t)i) % (i % 10 ? 500 : LONGEST));
        MPI_Status status;
        MPI_Request request;
        fill(out, bytes, (uint64_t)(rank * 1000 + i));
        MPI_Irecv(in, LONGEST, MPI_BYTE, left, job->number, job->comm, &request);
        MPI_Send(out, (int)bytes, MPI_BYTE, right, job->number, job->comm);
        if (i % 2) {
            int done = 0;
            while (!done)
                MPI_Test(&request, &done, &status);
        } else {
            MPI_Wait(&request, &status);
        }
        int count;
        MPI_Get_count(&status, MPI_BYTE, &count);
        CHECK((size_t)count == bytes, "thread %d: %d bytes instead of %zu", job->number, count, bytes);
        CHECK(first_wrong(in, bytes, (uint64_t)(left * 1000 + i)) < 0, "thread %d round %ld", job->number, i);
        job->hash = hash_bytes(job->hash, in, bytes);
    }
    free(out), free(in);
    return NULL;
}

static void *collect(void *argument_)
{
    struct job *job = argument_;
    for (long i = 0; i < rounds; i++) {
        long value = rank + i, sum;
        MPI_Allreduce(&value, &sum, 1, MPI_LONG, MPI_SUM, job->comm);
        CHECK(sum == (long)size * (size - 1) / 2 + size * i, "sum %ld in round %ld", sum, i);
        job->hash = hash_bytes(job->hash, &sum, sizeof sum);
        linger(i, rounds);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (provided < MPI_THREAD_MULTIPLE) {
        if (rank == 0)
            fprintf(stderr, "threads: the library provides only thread level %d\n", provided);
        MPI_Finalize();
        return 6;
    }
    long threads = argument(argc, argv, 1, 4);
    rounds = argument(argc, argv, 2, 300);
    struct job *jobs = allocate((size_t)(threads + 1) * sizeof *jobs);
    pthread_t *ids = allocate((size_t)(threads + 1) * sizeof *ids);
    MPI_Comm collective;
    MPI_Comm_dup(MPI_COMM_WORLD, &collective);
    for (int i = 0; i <= threads; i++) {
        jobs[i] = (struct job){i, i == threads ? collective : MPI_COMM_WORLD, FNV_START};
        CHECK(pthread_create(&ids[i], NULL, i == threads ? collect : exchange, &jobs[i]) == 0, "no thread");
    }
    uint64_t hash = 0, all;
    for (int i = 0; i <= threads; i++) {
        pthread_join(ids[i], NULL);
        hash ^= mixed(jobs[i].hash, (uint64_t)i);
    }
    MPI_Reduce(&hash, &all, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("threads %ld rounds %ld hash=%016llx\n", threads, rounds, (unsigned long long)all);
    MPI_Comm_free(&collective);
    free(jobs), free(ids);
    MPI_Finalize();
    return 0;
}
