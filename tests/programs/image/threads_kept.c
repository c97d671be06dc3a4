// SPDX-License-Identifier: Apache-2.0
// What belongs to a thread: thread-local storage, errno, name, affinity, priority, its own number; signals sent to it; cancellation.
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "image.h"

#define THREADS 8

static __thread uint64_t local[16];
static _Thread_local int id = -1;
static pthread_key_t key;
static pthread_barrier_t barrier;
static volatile int signalled[THREADS];
static pthread_t threads[THREADS];

static void handler(int number)
{
    (void)number;
    signalled[id]++;
}

static void *run(void *argument)
{
    id = (int)(intptr_t)argument;
    char name[16], is[16];
    snprintf(name, sizeof name, "thread-%d", id);
    pthread_setname_np(pthread_self(), name);
    cpu_set_t one, now_one;
    CPU_ZERO(&one);
    CPU_SET(id % (int)sysconf(_SC_NPROCESSORS_ONLN), &one);
    IS_ZERO(pthread_setaffinity_np(pthread_self(), sizeof one, &one));
    int usual = WORKS(getpriority(PRIO_PROCESS, 0)), nice = usual < 12 ? usual + id : usual;
    WORKS(setpriority(PRIO_PROCESS, 0, nice)); // of this thread alone
    pthread_setspecific(key, argument);
    for (int i = 0; i < ROUNDS; i++) {
        errno = 1000 + id;
        local[i % 16] += mixed((uint64_t)id, (uint64_t)i);
        pthread_barrier_wait(&barrier);
        CHECK(errno == 1000 + id, "thread %d, round %d: errno is %d", id, i, errno);
        CHECK(pthread_getspecific(key) == argument, "thread %d, round %d: its own data", id, i);
        IS_ZERO(pthread_getname_np(pthread_self(), is, sizeof is));
        CHECK(strcmp(is, name) == 0, "thread %d, round %d: is called %s", id, i, is);
        IS_ZERO(pthread_getaffinity_np(pthread_self(), sizeof now_one, &now_one));
        CHECK(CPU_EQUAL(&one, &now_one), "thread %d, round %d: may run elsewhere", id, i);
        CHECK(getpriority(PRIO_PROCESS, 0) == nice, "thread %d, round %d: nice %d", id, i, getpriority(PRIO_PROCESS, 0));
        pthread_barrier_wait(&barrier);
        usleep(1000);
    }
    uint64_t sum = 0;
    for (int i = 0; i < 16; i++)
        sum += local[i];
    for (;;) // until it is cancelled
        if (id % 2)
            pause();
        else
            usleep(10000);
    return (void *)sum;
}

int main(int argc, char **argv)
{
    start(&argc, &argv);
    signal(SIGUSR1, handler);
    pthread_key_create(&key, NULL);
    pthread_barrier_init(&barrier, NULL, THREADS + 1);
    for (intptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, run, (void *)i);
    uint64_t hash = FNV_START;
    for (int i = 0; i < ROUNDS; i++) {
        pthread_barrier_wait(&barrier);
        int whom = i % THREADS, before = signalled[whom];
        IS_ZERO(pthread_kill(threads[whom], SIGUSR1));
        for (double end = now() + 5; signalled[whom] == before; usleep(200))
            CHECK(now() < end, "round %d: the signal has not come", i);
        pthread_barrier_wait(&barrier);
        hash = hash_bytes(hash, &whom, 4);
        step(hash, 0.012);
    }
    for (int i = 0; i < THREADS; i++) {
        void *result;
        step(hash, 0.03);
        IS_ZERO(pthread_cancel(threads[i]));
        IS_ZERO(pthread_join(threads[i], &result));
        CHECK(result == PTHREAD_CANCELED, "thread %d was not cancelled", i);
    }
    return finish("threads_kept", hash);
}
