// SPDX-License-Identifier: Apache-2.0
// Two threads on two processors write to the same line of the cache by turns: prints how long the line takes from one to the
// other, in nanoseconds. Virtual machines differ in that from minute to minute, as the host moves their processors.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

static const long TURNS = 60000;
static _Alignas(4096) _Atomic long turn;

static void *take_turns(void *odd)
{
    long first = odd != NULL;
    cpu_set_t allowed, own;
    CPU_ZERO(&own);
    sched_getaffinity(0, sizeof allowed, &allowed);
    int processor = 0;
    for (long found = -1; found < first; processor++)
        found += CPU_ISSET(processor, &allowed) != 0;
    CPU_SET(processor - 1, &own);
    sched_setaffinity(0, sizeof own, &own);
    for (long mine = first; mine < TURNS; mine += 2) {
        while (atomic_load_explicit(&turn, memory_order_acquire) != mine)
            ;
        atomic_store_explicit(&turn, mine + 1, memory_order_release);
    }
    return NULL;
}

int main(void)
{
    cpu_set_t allowed;
    struct timespec start, end;
    pthread_t other;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2)
        return 1;
    clock_gettime(CLOCK_MONOTONIC, &start);
    if (pthread_create(&other, NULL, take_turns, &allowed) != 0)
        return 1;
    take_turns(NULL);
    pthread_join(other, NULL);
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%.0f\n", ((double)(end.tv_sec - start.tv_sec) * 1e9 + (double)(end.tv_nsec - start.tv_nsec)) / (double)TURNS);
    return 0;
}
