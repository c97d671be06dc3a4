// SPDX-License-Identifier: Apache-2.0
// Shared memory that nobody else has: a named semaphore that has been removed, files in memory without a name, open or not, one file
// mapped twice, anonymous memory. What child processes write to it, this process sees, also after it has come back from an image.
#include <fcntl.h>
#include <semaphore.h>
#include <sys/wait.h>

#include "image.h"

#define BYTES ((size_t)65536)
#define WORDS (BYTES / 8)
#define FILES 4

static struct {
    int fd;
    size_t second; // where the file is mapped once more, in words
    uint64_t *place;
} files[FILES];

static uint64_t *map(int fd, size_t bytes, off_t from)
{
    uint64_t *place = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | (fd < 0 ? MAP_ANONYMOUS : 0), fd, from);
    CHECK(place != MAP_FAILED, "%s", strerror(errno));
    return place;
}

static sem_t *semaphore(void)
{
    char name[64];
    snprintf(name, sizeof name, "/resurgo-test-%d", getpid());
    sem_t *made = sem_open(name, O_CREAT | O_EXCL, 0600, 0);
    CHECK(made != SEM_FAILED, "%s", strerror(errno));
    sem_unlink(name);
    return made;
}

static void check(int i, uint64_t value)
{
    for (int f = 0; f < FILES; f++) {
        uint64_t *place = files[f].place;
        for (size_t word = 0; word < WORDS; word += 509)
            CHECK(place[word] == value + word, "round %d: memory %d, word %zu: %llx", i, f, word, (unsigned long long)place[word]);
        uint64_t again;
        if (files[f].fd >= 0)
            CHECK(pread(files[f].fd, &again, 8, 509 * 8) == 8 && again == value + 509, "round %d: file %d", i, f);
        if (files[f].second)
            CHECK(place[files[f].second] == place[WORDS / 2], "round %d: memory %d is no longer the same at both places", i, f);
    }
}

static void set(uint64_t value)
{
    for (int f = 0; f < FILES; f++)
        for (size_t word = 0; word < WORDS; word += 509)
            files[f].place[word] = value + word;
}

int main(int argc, char **argv)
{
    start(&argc, &argv);
    sem_t *count = semaphore();
    char name[64];
    snprintf(name, sizeof name, "/resurgo-test-%d", getpid());
    for (int f = 0; f < FILES; f++) {
        int fd = f == 0 ? -1 : f == 1 ? WORKS(memfd_create("mine", 0)) : WORKS(shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600));
        if (f > 1)
            shm_unlink(name);
        if (f > 0)
            WORKS(ftruncate(fd, BYTES));
        files[f].place = map(fd, BYTES, 0);
        files[f].fd = fd;
        if (f == 3) {
            uint64_t *second = map(fd, BYTES / 2, BYTES / 2);
            files[f].second = (size_t)(second - files[f].place);
            close(fd);
            files[f].fd = -1;
        }
    }
    // May not be read now and then.
    char *closed = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fill(closed, BYTES, 5);
    WORKS(mprotect(closed, BYTES, PROT_NONE));
    uint64_t hash = FNV_START;
    set(0);
    for (int i = 0; i < ROUNDS; i++) {
        check(i, (uint64_t)i);
        int value;
        CHECK(sem_getvalue(count, &value) == 0 && value == i % 7, "round %d: the semaphore has %d", i, value);
        pid_t child = i % 5 ? 0 : WORKS(fork());
        if (i % 5 == 0 && child == 0) {
            set((uint64_t)i + 1);
            _exit(i % 7 == 6 ? 0 : sem_post(count));
        }
        if (child == 0) {
            set((uint64_t)i + 1);
            if (i % 7 != 6)
                WORKS(sem_post(count));
        } else {
            int status;
            CHECK(waitpid(child, &status, 0) == child && status == 0, "round %d: the child ended with %x", i, (unsigned)status);
        }
        for (int posted = i % 7; i % 7 == 6 && posted > 0; posted--)
            WORKS(sem_trywait(count));
        CHECK(!can_be_read(closed), "round %d: memory without rights", i);
        if (i % 10 == 9) {
            WORKS(mprotect(closed, BYTES, PROT_READ));
            CHECK(first_wrong(closed, BYTES, 5) < 0, "round %d: memory that could not be read", i);
            WORKS(mprotect(closed, BYTES, PROT_NONE));
        }
        hash = hash_bytes(hash, &i, 4);
        step(hash, 0.015);
    }
    check(ROUNDS, ROUNDS);
    return finish("shared", hash);
}
