// SPDX-License-Identifier: Apache-2.0
// Locks that the main thread holds all the time, and that know it by its number: recursive, error-checking, robust and
// priority-inheriting mutexes and read-write locks, on both sides of the ends of pages.
//   held MIB
#include <sys/mman.h>

#include "image.h"

#define LOCKS 120
#define PAGE ((size_t)4096)
#define KINDS 5

static void *places[LOCKS];

static void make(int number)
{
    pthread_mutexattr_t attributes;
    IS_ZERO(pthread_mutexattr_init(&attributes));
    switch (number % KINDS) {
    case 0:
        IS_ZERO(pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE));
        break;
    case 1:
        IS_ZERO(pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST));
        IS_ZERO(pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ERRORCHECK));
        break;
    case 2:
        IS_ZERO(pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT));
        IS_ZERO(pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ERRORCHECK));
        break;
    case 3:
        IS_ZERO(pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ERRORCHECK));
        break;
    default:
        IS_ZERO(pthread_rwlock_init(places[number], NULL));
        IS_ZERO(pthread_rwlock_wrlock(places[number]));
        return;
    }
    IS_ZERO(pthread_mutex_init(places[number], &attributes));
    IS_ZERO(pthread_mutex_lock(places[number]));
}

static void check(int number, int round)
{
    if (number % KINDS == 0) {
        IS_ZERO(pthread_mutex_lock(places[number]));
        IS_ZERO(pthread_mutex_unlock(places[number]));
        return;
    }
    int result = number % KINDS == 4 ? pthread_rwlock_wrlock(places[number]) : pthread_mutex_lock(places[number]);
    CHECK(result == EDEADLK, "round %d: lock %d at %p: %s", round, number, places[number], strerror(result));
}

int main(int argc, char **argv)
{
    start(&argc, &argv);
    size_t bytes = (size_t)argument(argc, argv, 1, 8) << 20, step_bytes = bytes / (LOCKS + 1) & ~(PAGE - 1);
    char *region = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(region != MAP_FAILED, "%s", strerror(errno));
    for (size_t at = 0; at < bytes; at += PAGE)
        region[at + 2048] = 1;
    // At every distance from the end of a page at which it may lie on both sides of that.
    for (int number = 0; number < LOCKS; number++) {
        places[number] = region + (size_t)(number + 1) * step_bytes - (size_t)(1 + number / KINDS % 7) * 8;
        make(number);
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int number = 0; number < LOCKS; number++)
            check((number * 7 + round) % LOCKS, round);
        step((uint64_t)round, 0.02);
    }
    for (int number = LOCKS - 1; number >= 0; number--)
        IS_ZERO(number % KINDS == 4 ? pthread_rwlock_unlock(places[number]) : pthread_mutex_unlock(places[number]));
    return finish("held", LOCKS);
}
