// SPDX-License-Identifier: Apache-2.0
// Has something for the first half of the run of which no image can be taken, or saved in part only. Arguments: its name,
// and the number of rounds.
#include <fcntl.h>
#include <linux/memfd.h>
#include <mqueue.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "image.h"

#define BYTES 65536

static const char *kind;
static int fd = -1, fds[2] = {-1, -1};
static char *place, path[80];
static volatile int *goes_on;
static pid_t child;
static pthread_t thread;
static pthread_mutex_t mutex;

static int is(const char *name)
{
    return strcmp(kind, name) == 0;
}

static void *wait_for_mutex(void *nothing)
{
    IS_ZERO(pthread_mutex_lock(&mutex));
    IS_ZERO(pthread_mutex_unlock(&mutex));
    return nothing;
}

static void take(void)
{
    if (is("robust_wait") || is("pi_wait")) {
        pthread_mutexattr_t attributes;
        pthread_mutexattr_init(&attributes);
        pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ERRORCHECK);
        if (is("robust_wait"))
            pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
        else
            pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT);
        IS_ZERO(pthread_mutex_init(&mutex, &attributes));
        IS_ZERO(pthread_mutex_lock(&mutex));
        pthread_create(&thread, NULL, wait_for_mutex, NULL);
        return;
    }
    if (is("socket"))
        fd = WORKS(socket(AF_INET, SOCK_DGRAM, 0));
    else if (is("socketpair")) {
        WORKS(socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
        WORKS(write(fds[0], "hello", 5));
    } else if (is("inotify")) {
        fd = WORKS(inotify_init());
        WORKS(inotify_add_watch(fd, ".", IN_CREATE));
    } else if (is("dontfork")) {
        place = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        WORKS(madvise(place, BYTES, MADV_DONTFORK));
    } else if (is("guarded")) {
        place = mmap(NULL, BYTES + GUARD, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        guard_pages(place + BYTES, GUARD);
    } else if (is("shared_file") || is("named") || is("linked") || is("of_others") || is("beyond")) {
        snprintf(path, sizeof path, "%sshared%d-%d", is("shared_file") ? "" : "/dev/shm/resurgo-test-", rank, getpid());
        fd = WORKS(open(path, O_RDWR | O_CREAT, 0600));
        WORKS(ftruncate(fd, BYTES));
        place = mmap(NULL, BYTES * (is("beyond") ? 2 : 1), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (is("linked")) { // as sem_open does it
            char first[sizeof path];
            strcpy(first, path);
            snprintf(path, sizeof path, "/dev/shm/resurgo-test-linked%d-%d", rank, getpid());
            WORKS(link(first, path));
            unlink(first);
        } else if (is("of_others") || is("beyond"))
            unlink(path);
        if (!is("shared_file")) {
            close(fd);
            fd = -1;
        }
        if (is("of_others")) {
            goes_on = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
            *goes_on = 1;
            if (WORKS(fork()) == 0) {
                if (fork() == 0)
                    for (int i = 0; *goes_on && i < 3000; i++)
                        usleep(10000);
                _exit(0);
            }
            wait(NULL);
        }
    } else if (is("sysv")) {
        int id = WORKS(shmget(IPC_PRIVATE, BYTES, 0600));
        place = shmat(id, NULL, 0);
        shmctl(id, IPC_RMID, NULL);
    } else if (is("child")) {
        WORKS(pipe(fds));
        child = WORKS(fork());
        if (child == 0) {
            close(fds[1]);
            char byte;
            _exit((int)read(fds[0], &byte, 1));
        }
    } else if (is("zombie")) {
        child = WORKS(fork());
        if (child == 0)
            _exit(0);
    } else if (is("fifo")) {
        snprintf(path, sizeof path, "fifo%d", rank);
        mkfifo(path, 0600);
        fd = WORKS(open(path, O_RDWR));
    } else if (is("queue")) {
        snprintf(path, sizeof path, "/refused%d", getpid());
        fd = WORKS(mq_open(path, O_RDWR | O_CREAT, 0600, NULL));
        mq_unlink(path);
    } else if (is("file_lock")) {
        snprintf(path, sizeof path, "locked%d", rank);
        fd = WORKS(open(path, O_RDWR | O_CREAT, 0600));
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 10};
        WORKS(fcntl(fd, F_SETLK, &lock));
    } else if (is("queued")) {
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGRTMIN + 3);
        sigprocmask(SIG_BLOCK, &set, NULL);
        sigqueue(getpid(), SIGRTMIN + 3, (union sigval){.sival_int = 5});
        sigqueue(getpid(), SIGRTMIN + 3, (union sigval){.sival_int = 6});
    } else
        CHECK(0, "nothing is called %s", kind);
    if (place)
        fill(place, BYTES, 1);
}

static void use(int round)
{
    char bytes[8] = "";
    if (place)
        CHECK(first_wrong(place, BYTES, 1) < 0, "round %d: memory", round);
    if (is("socketpair") || is("child"))
        CHECK(fcntl(fds[0], F_GETFD) == 0 && fcntl(fds[1], F_GETFD) == 0, "round %d", round);
    if (is("socketpair")) {
        CHECK(read(fds[1], bytes, 8) == 5 && !memcmp(bytes, "hello", 5), "round %d", round);
        WORKS(write(fds[0], "hello", 5));
    }
}

static void give_back(void)
{
    int status;
    if (is("robust_wait") || is("pi_wait")) {
        IS_ZERO(pthread_mutex_unlock(&mutex));
        IS_ZERO(pthread_join(thread, NULL));
    }
    if (place)
        WORKS(is("sysv") ? shmdt(place) : munmap(place, is("guarded") ? BYTES + GUARD : is("beyond") ? 2 * BYTES : BYTES));
    place = NULL;
    if (goes_on)
        *goes_on = 0;
    if (is("named") || is("linked"))
        WORKS(unlink(path));
    if (fd >= 0)
        close(fd);
    if (fds[0] >= 0) {
        close(fds[0]);
        close(fds[1]);
    }
    if (child)
        CHECK(waitpid(-1, &status, 0) == child && status == 0, "the child's end: %x", (unsigned)status);
    if (is("queued"))
        for (int value = 5; value <= 6; value++) {
            sigset_t set;
            siginfo_t info;
            sigemptyset(&set);
            sigaddset(&set, SIGRTMIN + 3);
            CHECK(sigwaitinfo(&set, &info) == SIGRTMIN + 3 && info.si_value.sival_int == value, "a queued signal");
        }
}

int main(int argc, char **argv)
{
    start(&argc, &argv);
    kind = argc > 1 ? argv[1] : "socket";
    uint64_t hash = FNV_START;
    long rounds = argument(argc, argv, 2, ROUNDS);
    take();
    for (int i = 0; i < rounds; i++) {
        if (i < rounds / 2)
            use(i);
        if (i == rounds / 2)
            give_back();
        hash = hash_bytes(hash, &i, 4);
        step(hash, 0.012);
    }
    return finish(kind, hash);
}
