// SPDX-License-Identifier: Apache-2.0
// What the programs about process images share. Each uses one thing of the kernel for 2 or 3 seconds, in rounds: some
// state of that thing lives from round to round, and every round ends with messages. Two ranks. With AWAITED=FILE a round takes longer
// until there is that file: whoever waits for something of the job lets it go on to its end then.
#ifndef IMAGE_H
#define IMAGE_H

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "../check.h"

#define ROUNDS 100

static int rank, ranks;

static inline double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static inline void start(int *argc, char ***argv)
{
    int provided;
    MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
}

#define AWAITED_SECONDS 0.05

// All ranks have come to the same state; then some computation.
static inline void step(uint64_t state, double seconds)
{
    uint64_t least[2] = {state, ~state}, all[2];
    MPI_Allreduce(least, all, 2, MPI_UINT64_T, MPI_MIN, MPI_COMM_WORLD);
    CHECK(all[0] == state && all[1] == ~state, "the ranks differ: %llx", (unsigned long long)state);
    if (is_awaited())
        seconds += AWAITED_SECONDS;
    for (double end = now() + seconds; now() < end;)
        ;
}

static inline int finish(const char *what, uint64_t state)
{
    if (rank == 0)
        printf("%s: %016llx\n", what, (unsigned long long)state);
    MPI_Finalize();
    return 0;
}

#define WORKS(call)                                                             \
    ({                                                                          \
        __typeof__(call) result_ = (call);                                      \
        CHECK(result_ != (__typeof__(call))-1, "%s", strerror(errno));          \
        result_;                                                                \
    })
#define IS_ZERO(call)                                                           \
    ({                                                                          \
        int result_ = (call);                                                   \
        CHECK(result_ == 0, "%s", strerror(result_));                           \
    })

// Pages that stop whoever reads them, without being a mapping of their own (MADV_GUARD_INSTALL, Linux 6.13); where the kernel does not
// know them, pages without rights. Returns whether it does.
static inline int guard_pages(void *pages, size_t bytes)
{
    if (madvise(pages, bytes, 102) == 0)
        return 1;
    CHECK(errno == EINVAL, "%s", strerror(errno));
    WORKS(mprotect(pages, bytes, PROT_NONE));
    return 0;
}

// The kernel says what a program would die of.
static inline int can_be_read(const void *place)
{
    int ends[2];
    WORKS(pipe(ends));
    ssize_t written = write(ends[1], place, 1);
    CHECK(written == 1 || errno == EFAULT, "%s", strerror(errno));
    close(ends[0]);
    close(ends[1]);
    return written == 1;
}

#define GUARD ((size_t)4096)

// Memory between two guards, as the stack of a thread has one with glibc 2.42.
static inline void *map_guarded(size_t bytes)
{
    char *place = mmap(NULL, bytes + 2 * GUARD, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(place != MAP_FAILED, "%s", strerror(errno));
    guard_pages(place, GUARD);
    guard_pages(place + GUARD + bytes, GUARD);
    return place + GUARD;
}

static inline void check_guards(const void *memory, size_t bytes)
{
    const char *start = memory, *end = start + bytes;
    CHECK(!can_be_read(start - 1) && can_be_read(start) && can_be_read(end - 1) && !can_be_read(end), "the guards have changed");
}

#endif
