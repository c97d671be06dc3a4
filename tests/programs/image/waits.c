// SPDX-License-Identifier: Apache-2.0
// Waiting with a timeout: never EINTR, never shorter than asked for, and not much longer however often images are taken.
// Arguments: the call, and the most milliseconds that a wait of 150 may take (0: any, for ranks that are killed meanwhile).
#include <linux/futex.h>
#include <poll.h>
#include <semaphore.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/syscall.h>

#include "image.h"

#define MILLISECONDS 150
#define WAITS 10

static const char *kind;

static int is(const char *name)
{
    return strcmp(kind, name) == 0;
}

static void wait_once(sem_t *semaphore, int set)
{
    struct timespec time = {0, MILLISECONDS * 1000000L}, absolute;
    struct timeval short_time = {0, MILLISECONDS * 1000};
    struct pollfd none = {.fd = -1, .events = POLLIN};
    errno = 0;
    if (is("poll"))
        CHECK(poll(&none, 1, MILLISECONDS) == 0, "%s", strerror(errno));
    else if (is("ppoll"))
        CHECK(ppoll(&none, 1, &time, NULL) == 0, "%s", strerror(errno));
    else if (is("select"))
        CHECK(select(0, NULL, NULL, NULL, &short_time) == 0, "%s", strerror(errno));
    else if (is("pselect"))
        CHECK(pselect(0, NULL, NULL, NULL, &time, NULL) == 0, "%s", strerror(errno));
    else if (is("epoll")) {
        struct epoll_event event;
        CHECK(epoll_wait(set, &event, 1, MILLISECONDS) == 0, "%s", strerror(errno));
    } else if (is("nanosleep")) // without a place for what is left
        CHECK(nanosleep(&time, NULL) == 0, "%s", strerror(errno));
    else if (is("nanosleep_rest"))
        CHECK(nanosleep(&time, &absolute) == 0, "%s", strerror(errno));
    else if (is("clock_nanosleep")) {
        clock_gettime(CLOCK_MONOTONIC, &absolute);
        absolute.tv_nsec += MILLISECONDS * 1000000L;
        absolute.tv_sec += absolute.tv_nsec / 1000000000;
        absolute.tv_nsec %= 1000000000;
        IS_ZERO(clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &absolute, NULL));
    } else if (is("usleep"))
        CHECK(usleep(MILLISECONDS * 1000) == 0, "%s", strerror(errno));
    else if (is("sem_timedwait")) {
        clock_gettime(CLOCK_REALTIME, &absolute);
        absolute.tv_nsec += MILLISECONDS * 1000000L;
        absolute.tv_sec += absolute.tv_nsec / 1000000000;
        absolute.tv_nsec %= 1000000000;
        CHECK(sem_timedwait(semaphore, &absolute) == -1 && errno == ETIMEDOUT, "%s", strerror(errno));
    } else if (is("sigtimedwait")) {
        sigset_t signals;
        sigemptyset(&signals);
        sigaddset(&signals, SIGUSR1);
        CHECK(sigtimedwait(&signals, NULL, &time) == -1 && errno == EAGAIN, "%s", strerror(errno));
    } else if (is("futex")) {
        int word = 0;
        CHECK(syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &time) == -1 && errno == ETIMEDOUT, "%s", strerror(errno));
    } else
        CHECK(0, "no wait has the name %s", kind);
}

int main(int argc, char **argv)
{
    start(&argc, &argv);
    kind = argc > 1 ? argv[1] : "poll";
    long most = argument(argc, argv, 2, 0);
    sem_t semaphore;
    WORKS(sem_init(&semaphore, 0, 0));
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int descriptor = is("epoll") ? WORKS(epoll_create1(0)) : -1;
    uint64_t hash = FNV_START;
    for (int i = 0; i < WAITS; i++) {
        double begin = now();
        wait_once(&semaphore, descriptor);
        long took = (long)((now() - begin) * 1e3);
        CHECK(took >= MILLISECONDS - 1, "round %d: it took %ld ms only", i, took);
        CHECK(most == 0 || took <= most, "round %d: it took %ld ms", i, took);
        hash = hash_bytes(hash, &i, 4);
        step(hash, 0.001);
    }
    return finish(kind, hash);
}
