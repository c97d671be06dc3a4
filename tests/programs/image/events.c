// SPDX-License-Identifier: Apache-2.0
// Descriptors inside of the process that are no files, with something in them from round to round. The argument names the
// kind.
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>

#include "image.h"

static int readable(int fd)
{
    struct pollfd ask = {.fd = fd, .events = POLLIN};
    return poll(&ask, 1, 0) == 1 && ask.revents & POLLIN;
}

static void eventfds(void (*between)(void))
{
    static int plain = -1, semaphore, same;
    uint64_t number, three = 3;
    if (plain < 0) {
        plain = WORKS(eventfd(0, EFD_CLOEXEC));
        semaphore = WORKS(eventfd(0, EFD_SEMAPHORE | EFD_NONBLOCK));
        same = WORKS(dup(plain));
    }
    WORKS(write(plain, &three, 8));
    WORKS(write(same, &three, 8));
    WORKS(write(semaphore, &three, 8));
    between();
    CHECK(read(same, &number, 8) == 8 && number == 6, "an eventfd has %llu", (unsigned long long)number);
    for (int i = 0; i < 3; i++)
        CHECK(read(semaphore, &number, 8) == 8 && number == 1, "a semaphore has %llu", (unsigned long long)number);
    CHECK(read(semaphore, &number, 8) == -1 && errno == EAGAIN, "a semaphore has too much");
    CHECK(!readable(plain) && fcntl(plain, F_GETFD) == FD_CLOEXEC && fcntl(same, F_GETFD) == 0, "flags");
}

static int ends[2] = {-1, -1};

static void *reader(void *argument)
{
    char *to = argument;
    for (ssize_t have = 0; have < 100000;) {
        ssize_t more = WORKS(read(ends[0], to + have, 100000 - (size_t)have));
        have += more;
    }
    return NULL;
}

static void pipes(void (*between)(void))
{
    static int same, round;
    static char out[100000], in[100000];
    if (ends[0] < 0) {
        WORKS(pipe2(ends, O_CLOEXEC));
        same = WORKS(dup(ends[1]));
    }
    fill(out, sizeof out, (uint64_t)round);
    WORKS(write(ends[1], out, 1000));
    WORKS(write(same, out + 1000, 20000));
    between();
    pthread_t thread;
    pthread_create(&thread, NULL, reader, in);
    for (size_t have = 21000; have < sizeof out;) // more than a pipe holds
        have += (size_t)WORKS(write(ends[1], out + have, sizeof out - have));
    pthread_join(thread, NULL);
    CHECK(first_wrong(in, sizeof in, (uint64_t)round) < 0, "round %d: byte %lld", round,
          first_wrong(in, sizeof in, (uint64_t)round));
    // The end of a pipe that lives for a short time is noticed, also when a snapshot has it too.
    int brief[2];
    WORKS(pipe(brief));
    WORKS(write(brief[1], "ab", 2));
    between();
    close(brief[1]);
    CHECK(read(brief[0], in, 10) == 2 && in[1] == 'b', "a short pipe");
    CHECK(read(brief[0], in, 10) == 0, "the end of a pipe");
    between();
    CHECK(read(brief[0], in, 10) == 0, "the end of a pipe");
    close(brief[0]);
    round++;
}

static void epolls(void (*between)(void))
{
    static int set = -1, events[3];
    uint64_t one = 1, number;
    if (set < 0) {
        set = WORKS(epoll_create1(0));
        for (int i = 0; i < 3; i++) {
            events[i] = WORKS(eventfd(0, 0));
            struct epoll_event event = {.events = i == 2 ? EPOLLIN | EPOLLONESHOT : EPOLLIN,
                                        .data.u64 = 0xabcdef0000000000 + (uint64_t)i};
            WORKS(epoll_ctl(set, EPOLL_CTL_ADD, events[i], &event));
        }
    }
    struct epoll_event seen[4];
    CHECK(epoll_wait(set, seen, 4, 0) == 0, "something is ready");
    WORKS(write(events[1], &one, 8));
    between();
    CHECK(epoll_wait(set, seen, 4, 1000) == 1, "nothing is ready");
    CHECK(seen[0].data.u64 == 0xabcdef0000000001 && seen[0].events == EPOLLIN, "the wrong one is ready");
    CHECK(read(events[1], &number, 8) == 8 && number == 1, "it has %llu", (unsigned long long)number);
    WORKS(write(events[2], &one, 8));
    CHECK(epoll_wait(set, seen, 4, 1000) == 1 && (seen[0].data.u64 & 7) == 2, "the single shot");
    between();
    CHECK(epoll_wait(set, seen, 4, 0) == 0, "a single shot comes again");
    struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.u64 = 0xabcdef0000000002};
    WORKS(read(events[2], &number, 8));
    WORKS(epoll_ctl(set, EPOLL_CTL_MOD, events[2], &event));
}

static void timerfds(void (*between)(void))
{
    static int often = -1, once;
    uint64_t number;
    if (often < 0) {
        often = WORKS(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK));
        once = WORKS(timerfd_create(CLOCK_REALTIME, 0));
        struct itimerspec every = {{0, 4000000}, {0, 4000000}};
        WORKS(timerfd_settime(often, 0, &every, NULL));
    }
    struct itimerspec soon = {{0, 0}, {0, 6000000}}, left;
    WORKS(timerfd_settime(once, 0, &soon, NULL));
    between();
    CHECK(read(once, &number, 8) == 8 && number == 1, "a single timer has run out %llu times", (unsigned long long)number);
    WORKS(timerfd_gettime(once, &left));
    CHECK(left.it_value.tv_nsec == 0 && left.it_interval.tv_nsec == 0, "a single timer goes on");
    struct pollfd ask = {.fd = often, .events = POLLIN};
    CHECK(poll(&ask, 1, 1000) == 1, "a timer does not come any more");
    CHECK(read(often, &number, 8) == 8 && number >= 1, "a timer comes without a number");
    WORKS(timerfd_gettime(often, &left));
    CHECK(left.it_interval.tv_nsec == 4000000, "the interval is %ld", left.it_interval.tv_nsec);
}

static void signalfds(void (*between)(void))
{
    static int fd = -1;
    if (fd < 0) {
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGUSR1);
        sigaddset(&set, SIGUSR2);
        WORKS(sigprocmask(SIG_BLOCK, &set, NULL));
        fd = WORKS(signalfd(-1, &set, SFD_NONBLOCK));
    }
    struct signalfd_siginfo info;
    CHECK(read(fd, &info, sizeof info) == -1 && errno == EAGAIN, "a signal waits");
    kill(getpid(), SIGUSR2);
    between();
    CHECK(read(fd, &info, sizeof info) == sizeof info && info.ssi_signo == SIGUSR2, "no signal has come");
}

static uint64_t hash = FNV_START;

static void between(void)
{
    step(hash, 0.009);
}

int main(int argc, char **argv)
{
    start(&argc, &argv);
    const char *kind = argc > 1 ? argv[1] : "eventfd";
    static const struct {
        const char *name;
        void (*run)(void (*)(void));
    } kinds[] = {{"eventfd", eventfds}, {"pipe", pipes}, {"epoll", epolls},
                 {"timerfd", timerfds}, {"signalfd", signalfds}};
    for (int i = 0; i < ROUNDS; i++)
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
            if (!strcmp(kind, kinds[k].name)) {
                hash = hash_bytes(hash, &i, 4);
                kinds[k].run(between);
            }
    return finish(kind, hash);
}
