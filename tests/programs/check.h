// SPDX-License-Identifier: Apache-2.0
// What the test programs share: a check that ends the job, a hash, a generator with a seed.
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// A failed check prints where and why to stderr and ends the job with code 9.
#define CHECK(cond, ...)                                                        \
    do {                                                                        \
        if (!(cond)) {                                                          \
            int check_rank_ = -1;                                               \
            MPI_Comm_rank(MPI_COMM_WORLD, &check_rank_);                        \
            fprintf(stderr, "rank %d: %s:%d: not true: %s: ", check_rank_,      \
                    __FILE__, __LINE__, #cond);                                 \
            fprintf(stderr, __VA_ARGS__);                                       \
            fputc('\n', stderr);                                                \
            MPI_Abort(MPI_COMM_WORLD, 9);                                       \
        }                                                                       \
    } while (0)

// Makes a file that must be new: true in the first life that comes here. By a system call, since a later life's calls of the C
// library are answered as those of the first.
static inline int is_first(const char *path)
{
    int file = (int)syscall(SYS_openat, AT_FDCWD, path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    if (file >= 0)
        close(file);
    return file >= 0;
}

// The test that has named the file AWAITED has not made it yet.
static inline int is_awaited(void)
{
    const char *awaited = getenv("AWAITED");
    return awaited && access(awaited, F_OK) != 0 && errno == ENOENT;
}

#define LINGER_SECONDS 30

// Takes its time in the last quarter of its steps while a test wants that: messages and output are the same, and the job is not over
// before the test has done what it wants.
static inline void linger(long done, long steps)
{
    if (4 * done < 3 * steps || !is_awaited())
        return;
    struct timespec now, pause = {0, 10000000};
    clock_gettime(CLOCK_MONOTONIC, &now);
    double seconds = LINGER_SECONDS / (steps > 4 ? steps / 4.0 : 1), end = (double)now.tv_sec + now.tv_nsec * 1e-9 + seconds;
    if (seconds < 0.01)
        pause.tv_nsec = (long)(seconds * 1e9);
    do {
        nanosleep(&pause, NULL);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((double)now.tv_sec + now.tv_nsec * 1e-9 < end && is_awaited());
}

#define FNV_START UINT64_C(0xcbf29ce484222325)

// FNV-1a over bytes, continuing from `hash`.
static inline uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ p[i]) * UINT64_C(0x100000001b3);
    return hash;
}

// splitmix64: the i-th number of the stream `seed`, without state.
static inline uint64_t mixed(uint64_t seed, uint64_t i)
{
    uint64_t z = seed + (i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static inline void fill(void *buffer, size_t bytes, uint64_t seed)
{
    unsigned char *p = buffer;
    size_t i = 0;
    for (; i + 8 <= bytes; i += 8) {
        uint64_t value = mixed(seed, i);
        memcpy(p + i, &value, 8);
    }
    for (; i < bytes; i++)
        p[i] = (unsigned char)mixed(seed, i);
}

// The offset of the first byte that `fill` would not have written, or -1.
static inline long long first_wrong(const void *buffer, size_t bytes, uint64_t seed)
{
    const unsigned char *p = buffer;
    size_t i = 0;
    for (; i + 8 <= bytes; i += 8) {
        uint64_t value = mixed(seed, i);
        if (memcmp(p + i, &value, 8) != 0)
            return (long long)i;
    }
    for (; i < bytes; i++)
        if (p[i] != (unsigned char)mixed(seed, i))
            return (long long)i;
    return -1;
}

static inline long argument(int argc, char **argv, int i, long otherwise)
{
    return i < argc ? strtol(argv[i], NULL, 0) : otherwise;
}

static inline void *allocate(size_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);
    if (!p) {
        fprintf(stderr, "out of memory for %zu bytes\n", bytes);
        MPI_Abort(MPI_COMM_WORLD, 8);
    }
    return p;
}

#endif
