// SPDX-License-Identifier: Apache-2.0
// Calls that change the user of all threads: glibc does it by the very signal that stops threads for images.
#include "image.h"

static volatile int stop;

static void *thread(void *nothing)
{
    while (!stop)
        usleep(300);
    return nothing;
}

int main(int argc, char **argv)
{
    start(&argc, &argv);
    pthread_t threads[4];
    uint64_t hash = FNV_START;
    uid_t user = geteuid();
    gid_t group = getegid();
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, thread, NULL);
    for (int i = 0; i < ROUNDS; i++) {
        for (int k = 0; k < 10; k++) {
            WORKS(seteuid(user));
            WORKS(setegid(group));
            WORKS(setresuid(-1u, user, -1u));
        }
        hash = hash_bytes(hash, &i, 4);
        step(hash, 0.015);
    }
    stop = 1;
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    return finish("users", hash);
}
