// SPDX-License-Identifier: Apache-2.0
// Handlers, the mask, and signals that wait while they are blocked, for the process and for one of its threads. The main
// thread waits by pause and sigsuspend, which every one of these signals must end.
#include "image.h"

static volatile sig_atomic_t usr1, usr2, by_info, by_thread;
static pthread_t thread;
static pthread_barrier_t barrier;

static void count(int number)
{
    ++*(number == SIGUSR1 ? &usr1 : &usr2);
}

static void count_info(int number, siginfo_t *info, void *context)
{
    (void)context;
    if (pthread_equal(pthread_self(), thread))
        by_thread++;
    else
        by_info += number == SIGWINCH && info->si_signo == SIGWINCH;
}

static int waits(int number)
{
    sigset_t pending;
    WORKS(sigpending(&pending));
    return sigismember(&pending, number);
}

static void *blocked(void *nothing)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGWINCH);
    for (int i = 0; i < ROUNDS; i++) {
        pthread_sigmask(SIG_BLOCK, &set, NULL);
        pthread_kill(pthread_self(), SIGWINCH);
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
        CHECK(waits(SIGWINCH) && by_thread == i, "round %d: the thread's signal is gone", i);
        pthread_sigmask(SIG_UNBLOCK, &set, NULL);
        CHECK(by_thread == i + 1, "round %d: the thread has had %d signals", i, (int)by_thread);
    }
    return nothing;
}

int main(int argc, char **argv)
{
    start(&argc, &argv);
    struct sigaction action = {.sa_handler = count}, with_info = {.sa_sigaction = count_info, .sa_flags = SA_SIGINFO};
    sigaddset(&action.sa_mask, SIGHUP);
    WORKS(sigaction(SIGUSR1, &action, NULL));
    WORKS(sigaction(SIGUSR2, &action, NULL));
    WORKS(sigaction(SIGWINCH, &with_info, NULL));
    signal(SIGHUP, SIG_IGN);
    sigset_t both, mask, before, open;
    sigemptyset(&both);
    sigaddset(&both, SIGUSR2);
    sigaddset(&both, SIGTERM);
    WORKS(sigprocmask(SIG_BLOCK, &both, &before));
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_create(&thread, NULL, blocked, NULL);
    uint64_t hash = FNV_START;
    for (int i = 0; i < ROUNDS; i++) {
        raise(SIGUSR1);
        raise(SIGHUP);
        CHECK(usr1 == 2 * i + 1, "round %d: SIGUSR1 has come %d times", i, (int)usr1);
        kill(getpid(), SIGUSR2); // stays blocked for a while
        pthread_barrier_wait(&barrier);
        step(hash, 0.008);
        WORKS(sigprocmask(SIG_SETMASK, NULL, &mask));
        CHECK(sigismember(&mask, SIGUSR2) && sigismember(&mask, SIGTERM) && !sigismember(&mask, SIGUSR1), "the mask");
        CHECK(waits(SIGUSR2) && usr2 == i, "round %d: SIGUSR2 does not wait", i);
        open = before;
        CHECK(sigsuspend(&open) == -1 && errno == EINTR && usr2 == i + 1, "round %d: sigsuspend", i);
        kill(getpid(), SIGWINCH);
        pthread_barrier_wait(&barrier);
        raise(SIGUSR1);
        struct sigaction now_set;
        WORKS(sigaction(SIGUSR1, NULL, &now_set));
        CHECK(now_set.sa_handler == count && sigismember(&now_set.sa_mask, SIGHUP), "the handler");
        hash = hash_bytes(hash, &i, 4);
        step(hash, 0.008);
    }
    pthread_join(thread, NULL);
    return finish("signals", hash);
}
