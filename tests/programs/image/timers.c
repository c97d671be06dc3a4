// SPDX-License-Identifier: Apache-2.0
// Timers: alarm and setitimer (argument interval), timer_create with a signal (posix), with a thread (posix_thread).
#include <sys/time.h>

#include "image.h"

static volatile sig_atomic_t ticks, alarms;

static void count(int number)
{
    if (number == SIGPROF)
        return;
    ++*(number == SIGUSR1 ? &alarms : &ticks);
}

static void count_value(int number, siginfo_t *info, void *context)
{
    (void)number, (void)context;
    // Of a signal that has waited while an image was taken, only the number is kept.
    CHECK(info->si_code != SI_TIMER || info->si_value.sival_int == 77, "the value of a timer's signal");
    ticks++;
}

static void run(union sigval value)
{
    CHECK(value.sival_int == 78, "the value of a timer's thread");
    __sync_fetch_and_add(&ticks, 1);
}

static void until(volatile sig_atomic_t *counter, int least, const char *what)
{
    for (double end = now() + 5; *counter < least; usleep(500))
        CHECK(now() < end, "%s does not come any more (%d)", what, (int)*counter);
}

int main(int argc, char **argv)
{
    start(&argc, &argv);
    const char *kind = argc > 1 ? argv[1] : "interval";
    signal(SIGALRM, count);
    signal(SIGPROF, count);
    signal(SIGUSR1, count);
    struct itimerval every = {{0, 5000}, {0, 5000}};
    struct itimerspec often = {{0, 5000000}, {0, 5000000}}, once = {{0, 0}, {0, 3000000}}, left;
    timer_t timer = 0, single = 0;
    if (!strcmp(kind, "interval")) {
        WORKS(setitimer(ITIMER_REAL, &every, NULL));
        WORKS(setitimer(ITIMER_PROF, &every, NULL));
    } else if (!strcmp(kind, "posix")) {
        struct sigaction action = {.sa_sigaction = count_value, .sa_flags = SA_SIGINFO | SA_RESTART};
        WORKS(sigaction(SIGALRM, &action, NULL));
        struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM, .sigev_value.sival_int = 77};
        timer_t dropped;
        WORKS(timer_create(CLOCK_MONOTONIC, &event, &dropped)); // so that numbers do not begin with 0
        WORKS(timer_create(CLOCK_MONOTONIC, &event, &timer));
        WORKS(timer_delete(dropped));
        struct sigevent other = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
        WORKS(timer_create(CLOCK_REALTIME, &other, &single));
        WORKS(timer_settime(timer, 0, &often, NULL));
    } else {
        struct sigevent event = {.sigev_notify = SIGEV_THREAD, .sigev_notify_function = run, .sigev_value.sival_int = 78};
        WORKS(timer_create(CLOCK_MONOTONIC, &event, &timer));
        WORKS(timer_settime(timer, 0, &often, NULL));
    }
    uint64_t hash = FNV_START;
    for (int i = 0; i < ROUNDS; i++) {
        until(&ticks, ticks + 2, "the timer's signal");
        if (single) {
            int before = alarms;
            WORKS(timer_settime(single, 0, &once, NULL));
            until(&alarms, before + 1, "the single signal");
            usleep(1000);
            WORKS(timer_gettime(single, &left));
            CHECK(left.it_value.tv_nsec == 0 && left.it_interval.tv_nsec == 0, "a single timer goes on");
        }
        if (timer && i % 10 == 0) {
            WORKS(timer_gettime(timer, &left));
            CHECK(left.it_interval.tv_nsec == 5000000, "the interval is %ld ns", left.it_interval.tv_nsec);
        }
        hash = hash_bytes(hash, &i, 4);
        step(hash, 0.004);
    }
    return finish(kind, hash);
}
