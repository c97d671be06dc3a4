// SPDX-License-Identifier: Apache-2.0
// Threads that are created and joined, or detached, all the time: up to 64 at once.
#include "image.h"

#define THREADS 64

static int detached_done;

static void *work(void *argument)
{
    uint64_t *number = argument;
    for (int i = 0; i < 2000; i++)
        *number = mixed(*number, (uint64_t)i);
    usleep(200);
    return argument;
}

static void *detached(void *nothing)
{
    usleep(500);
    __sync_fetch_and_add(&detached_done, 1);
    return nothing;
}

int main(int argc, char **argv)
{
    start(&argc, &argv);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, 64 << 10);
    uint64_t hash = FNV_START, numbers[THREADS];
    int made = 0;
    for (int i = 0; i < ROUNDS; i++) {
        pthread_t threads[THREADS], free_thread;
        int count = 1 + (int)(mixed(3, (uint64_t)i) % THREADS);
        for (int t = 0; t < count; t++) {
            numbers[t] = (uint64_t)(t + i);
            IS_ZERO(pthread_create(&threads[t], NULL, work, &numbers[t]));
            if (t % 8 == 0) {
                IS_ZERO(pthread_create(&free_thread, &attributes, detached, NULL));
                made++;
            }
        }
        for (int t = 0; t < count; t++) {
            void *result;
            IS_ZERO(pthread_join(threads[t], &result));
            CHECK(result == &numbers[t], "round %d: the result of thread %d", i, t);
            hash = hash_bytes(hash, &numbers[t], 8);
        }
        step(hash, 0.008);
    }
    for (double end = now() + 5; __sync_fetch_and_add(&detached_done, 0) != made; usleep(1000))
        CHECK(now() < end, "%d of %d detached threads have ended", detached_done, made);
    return finish("churn", hash);
}
