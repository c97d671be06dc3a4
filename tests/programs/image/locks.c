// SPDX-License-Identifier: Apache-2.0
// Locks of every kind, held and waited for while images are taken. The argument names the kind.
#include <semaphore.h>

#include "image.h"

static pthread_mutex_t mutex, guard = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static pthread_barrier_t barrier;
static pthread_spinlock_t spin;
static sem_t semaphores[2];
static const char *kind;
static int turn, inside, recursive, checked, owner_in_lock;

static int is(const char *name)
{
    return strcmp(kind, name) == 0;
}

static void busy(double seconds)
{
    for (double end = now() + seconds; now() < end;)
        ;
}

static void with_mutex(int round)
{
    int error = 0;
    // While a thread waits for one of these there is no image (refused.c), so nobody waits.
    while (owner_in_lock && (error = pthread_mutex_trylock(&mutex)) == EBUSY)
        usleep(500);
    IS_ZERO(owner_in_lock ? error : pthread_mutex_lock(&mutex));
    CHECK(inside++ == 0, "round %d: two threads hold the mutex", round);
    if (recursive)
        IS_ZERO(pthread_mutex_lock(&mutex));
    if (checked)
        CHECK(pthread_mutex_lock(&mutex) == EDEADLK, "round %d: a second lock is not noticed", round);
    busy(0.006);
    if (checked)
        CHECK(pthread_mutex_lock(&mutex) == EDEADLK, "round %d: the owner is not known any more", round);
    if (recursive) {
        IS_ZERO(pthread_mutex_lock(&mutex));
        IS_ZERO(pthread_mutex_unlock(&mutex));
        IS_ZERO(pthread_mutex_unlock(&mutex));
    }
    inside--;
    IS_ZERO(pthread_mutex_unlock(&mutex));
    if (checked)
        CHECK(pthread_mutex_unlock(&mutex) == EPERM, "round %d: given back twice", round);
    usleep(300);
}

// One round of one of two threads.
static void round_of(int me, int round)
{
    if (is("condition")) {
        pthread_mutex_lock(&guard);
        while (turn != me)
            pthread_cond_wait(&condition, &guard);
        busy(0.004);
        turn = !me;
        pthread_cond_signal(&condition);
        pthread_mutex_unlock(&guard);
    } else if (is("condition_timed")) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 8000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_mutex_lock(&guard);
        int error = 0;
        while (error == 0) // nobody signals
            error = pthread_cond_timedwait(&condition, &guard, &until);
        CHECK(error == ETIMEDOUT, "round %d: %s", round, strerror(error));
        pthread_mutex_unlock(&guard);
    } else if (is("semaphore")) {
        CHECK(sem_wait(&semaphores[me]) == 0, "round %d: %s", round, strerror(errno));
        busy(0.004);
        WORKS(sem_post(&semaphores[!me]));
    } else if (is("barrier")) {
        busy(me ? 0.003 : 0.006);
        int result = pthread_barrier_wait(&barrier);
        CHECK(result == 0 || result == PTHREAD_BARRIER_SERIAL_THREAD, "round %d", round);
    } else if (is("spin")) {
        pthread_spin_lock(&spin);
        CHECK(inside++ == 0, "round %d: two threads hold the lock", round);
        busy(0.002);
        inside--;
        pthread_spin_unlock(&spin);
        usleep(2000);
    } else if (is("rwlock")) {
        IS_ZERO(pthread_rwlock_wrlock(&rwlock));
        CHECK(inside++ == 0, "round %d: two threads hold the lock", round);
        busy(0.004);
        CHECK(pthread_rwlock_wrlock(&rwlock) == EDEADLK, "round %d: the writer is not known any more", round);
        inside--;
        IS_ZERO(pthread_rwlock_unlock(&rwlock));
        IS_ZERO(pthread_rwlock_rdlock(&rwlock));
        busy(0.002);
        CHECK(inside == 0, "round %d: a writer is inside", round);
        IS_ZERO(pthread_rwlock_unlock(&rwlock));
        usleep(300);
    } else {
        with_mutex(round);
    }
}

static void *other(void *nothing)
{
    for (int i = 0; i < ROUNDS; i++)
        round_of(1, i);
    return nothing;
}

int main(int argc, char **argv)
{
    start(&argc, &argv);
    kind = argc > 1 ? argv[1] : "normal";
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    recursive = strstr(kind, "recursive") != NULL;
    checked = strstr(kind, "errorcheck") != NULL;
    owner_in_lock = strstr(kind, "robust") || strstr(kind, "pi");
    pthread_mutexattr_settype(&attributes, recursive ? PTHREAD_MUTEX_RECURSIVE
                                           : checked ? PTHREAD_MUTEX_ERRORCHECK : PTHREAD_MUTEX_NORMAL);
    if (strstr(kind, "robust"))
        IS_ZERO(pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST));
    if (strstr(kind, "pi"))
        IS_ZERO(pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT));
    if (strstr(kind, "shared"))
        IS_ZERO(pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED));
    IS_ZERO(pthread_mutex_init(&mutex, &attributes));
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_spin_init(&spin, PTHREAD_PROCESS_PRIVATE);
    WORKS(sem_init(&semaphores[0], 0, 1));
    WORKS(sem_init(&semaphores[1], 0, 0));
    pthread_t thread;
    pthread_create(&thread, NULL, other, NULL);
    uint64_t hash = FNV_START;
    for (int i = 0; i < ROUNDS; i++) {
        round_of(0, i);
        hash = hash_bytes(hash, &i, 4);
        step(hash, 0.001);
    }
    pthread_join(thread, NULL);
    return finish(kind, hash);
}
