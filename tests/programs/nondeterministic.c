// SPDX-License-Identifier: Apache-2.0
// Programs that do not repeat themselves: replayed from the start, the victim sends something else than before.
// Except `address`, which repeats when the memory layout does.
//   nondeterministic VARIANT VICTIM ITERATION MARKER [ITERATIONS=300]
//     VARIANT  time | random | pid | length | tag | destination | order | abort | threads | multiple | address | none
//     The victim kills itself at the iteration in the life that makes the MARKER file. With `order` it has sent before that,
//     and waits for its neighbour's message before it sends in later lives. With `abort` it calls MPI_Abort half-way there in the
//     next life, which makes the file MARKER.abort.
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <sys/random.h>
#include <unistd.h>

static int rank, size;
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static long per_thread;

static uint64_t chance(void)
{
    uint64_t value;
    if (getrandom(&value, sizeof value, 0) != sizeof value)
        abort();
    return value;
}

// Two threads take turns, as the mutex happens to hand them out, in numbering what they send.
static void *talk(void *tag)
{
    static uint64_t number;
    for (long i = 0; i < per_thread; i++) {
        pthread_mutex_lock(&turn);
        uint64_t value = number++, in;
        MPI_Sendrecv(&value, 1, MPI_UINT64_T, (rank + 1) % size, (int)(intptr_t)tag, &in, 1, MPI_UINT64_T,
                     MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        pthread_mutex_unlock(&turn);
        if (value % 3 == 0)
            usleep((useconds_t)(chance() % 300));
    }
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc < 5) {
        fprintf(stderr, "usage: nondeterministic VARIANT VICTIM ITERATION MARKER [ITERATIONS]\n");
        return 98;
    }
    const char *variant = argv[1];
    int threads = strcmp(variant, "threads") == 0, multiple = strcmp(variant, "multiple") == 0, provided;
    int wanted = threads ? MPI_THREAD_SERIALIZED : multiple ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE;
    MPI_Init_thread(&argc, &argv, wanted, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    long victim = argument(argc, argv, 2, 1) % size, when = argument(argc, argv, 3, 100);
    long iterations = argument(argc, argv, 5, 300);
    char *somewhere = malloc(100);
    int *tokens = calloc((size_t)size, sizeof *tokens);
    MPI_Comm ring;
    MPI_Comm_dup(MPI_COMM_WORLD, &ring);
    int on_the_stack;
    if (threads || multiple) {
        if (provided < wanted) {
            fprintf(stderr, "the library provides only thread level %d\n", provided);
            MPI_Abort(MPI_COMM_WORLD, 7);
        }
        pthread_t others[2];
        per_thread = when;
        for (int i = 0; i < 2; i++)
            pthread_create(&others[i], NULL, talk, (void *)(intptr_t)(i + 1));
        for (int i = 0; i < 2; i++)
            pthread_join(others[i], NULL);
    }
    for (long k = 0; k < iterations; k++) {
        int receives_first = 0;
        if (k == when && rank == victim) {
            int first = is_first(argv[4]);
            receives_first = !first && strcmp(variant, "order") == 0;
            if (first) {
                if (strcmp(variant, "order") == 0)
                    MPI_Send(&k, 1, MPI_INT64_T, (rank + 1) % size, 1, ring);
                kill(getpid(), SIGKILL);
            }
        }
        if (k == when / 2 && rank == victim && strcmp(variant, "abort") == 0 && access(argv[4], F_OK) == 0) {
            char path[4096];
            snprintf(path, sizeof path, "%s.abort", argv[4]);
            if (is_first(path))
                MPI_Abort(MPI_COMM_WORLD, 7);
        }
        uint64_t out[20] = {(uint64_t)k}, in[20];
        int count = 1, tag = 1;
        if (k > when / 2) {
            if (strcmp(variant, "time") == 0) {
                double now = MPI_Wtime();
                memcpy(out, &now, sizeof now);
            } else if (strcmp(variant, "random") == 0) {
                out[0] = chance();
            } else if (strcmp(variant, "pid") == 0) {
                out[0] = (uint64_t)getpid();
            } else if (strcmp(variant, "address") == 0) {
                out[0] = (uint64_t)(uintptr_t)somewhere ^ (uint64_t)(uintptr_t)&on_the_stack ^ (uint64_t)(uintptr_t)main;
            } else if (strcmp(variant, "length") == 0) {
                count = 1 + (int)(chance() % 20);
            } else if (strcmp(variant, "tag") == 0) {
                tag = 2 + (int)(chance() % 1000);
            } else if (strcmp(variant, "destination") == 0 && rank == victim) {
                int to = (int)(chance() % (uint64_t)size);
                MPI_Request token;
                MPI_Isend(out, 0, MPI_UINT64_T, to, 7, MPI_COMM_WORLD, &token);
                MPI_Request_free(&token);
                tokens[to]++;
            }
        }
        MPI_Request request;
        MPI_Irecv(in, 20, MPI_UINT64_T, (rank + size - 1) % size, MPI_ANY_TAG, ring, &request);
        if (receives_first)
            MPI_Wait(&request, MPI_STATUS_IGNORE);
        MPI_Send(out, count, MPI_UINT64_T, (rank + 1) % size, tag, ring);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    int mine;
    MPI_Scatter(tokens, 1, MPI_INT, &mine, 1, MPI_INT, (int)victim, MPI_COMM_WORLD);
    while (mine-- > 0)
        MPI_Recv(NULL, 0, MPI_UINT64_T, (int)victim, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Comm_free(&ring);
    free(tokens);
    free(somewhere);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("nondeterministic %s iterations=%ld done\n", variant, iterations);
    MPI_Finalize();
    return 0;
}
