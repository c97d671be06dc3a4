// SPDX-License-Identifier: Apache-2.0
// Guard pages that are no mapping of their own (MADV_GUARD_INSTALL, Linux 6.13; with glibc 2.42 every stack of a thread has one): they
// stop whoever reads them, before and after, and what lies around them keeps its content. An older kernel has pages without rights.
#include <fcntl.h>

#include "image.h"

#define PAGE ((size_t)4096)
#define PAGES 64

static int in_place;

static void open_again(char *page, size_t count)
{
    if (in_place)
        WORKS(madvise(page, count * PAGE, 103)); // MADV_GUARD_REMOVE
    else {
        WORKS(mprotect(page, count * PAGE, PROT_READ | PROT_WRITE));
        WORKS(madvise(page, count * PAGE, MADV_DONTNEED));
    }
}

// Those of the mapping's `count` pages from `from` on, and no others, are guarded.
static void check(const char *mapping, int count, int from, int guarded, int round)
{
    for (int page = 0; page < count; page++) {
        int is_guarded = from <= page && page < from + guarded;
        CHECK(can_be_read(mapping + (size_t)page * PAGE) == !is_guarded, "round %d: page %d", round, page);
        if (!is_guarded)
            CHECK(mapping[(size_t)page * PAGE] == (char)(page + 1), "round %d: page %d has changed", round, page);
    }
}

static char *new_mapping(int flags, int file)
{
    char *mapping = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, flags, file, 0);
    CHECK(mapping != MAP_FAILED, "%s", strerror(errno));
    for (int page = 0; page < PAGES; page++)
        mapping[(size_t)page * PAGE] = (char)(page + 1);
    return mapping;
}

static pthread_mutex_t own;
static volatile int done;

#define STACK ((size_t)1 << 20)

// On a stack between guards, with a mutex that knows its owner.
static void *other(void *stack)
{
    IS_ZERO(pthread_mutex_lock(&own));
    while (!done) {
        check_guards(stack, STACK);
        CHECK(pthread_mutex_lock(&own) == EDEADLK, "the mutex has another owner");
        usleep(3000);
    }
    IS_ZERO(pthread_mutex_unlock(&own));
    return NULL;
}

static pthread_t start_thread(void)
{
    char *stack = map_guarded(STACK);
    pthread_mutexattr_t mutex;
    IS_ZERO(pthread_mutexattr_init(&mutex));
    IS_ZERO(pthread_mutexattr_settype(&mutex, PTHREAD_MUTEX_ERRORCHECK));
    IS_ZERO(pthread_mutex_init(&own, &mutex));
    pthread_attr_t attributes;
    IS_ZERO(pthread_attr_init(&attributes));
    IS_ZERO(pthread_attr_setstack(&attributes, stack, STACK));
    pthread_t thread;
    IS_ZERO(pthread_create(&thread, &attributes, other, stack));
    return thread;
}

int main(int argc, char **argv)
{
    start(&argc, &argv);
    char *all = new_mapping(MAP_PRIVATE | MAP_ANONYMOUS, -1);
    in_place = guard_pages(all, PAGES * PAGE);
    char *first = new_mapping(MAP_PRIVATE | MAP_ANONYMOUS, -1), *middle = new_mapping(MAP_PRIVATE | MAP_ANONYMOUS, -1);
    guard_pages(first, 3 * PAGE);
    // A private mapping of a file: some of its pages are the file's, some its own.
    int file = WORKS(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
    char *mapped = mmap(NULL, 4 * PAGE, PROT_READ, MAP_PRIVATE, file, 0);
    CHECK(mapped != MAP_FAILED, "%s", strerror(errno));
    close(file);
    // Before Linux 6.15 only memory of no file.
    int in_file = in_place && madvise(mapped + PAGE, PAGE, 102) == 0;
    pthread_t thread = start_thread();
    uint64_t hash = FNV_START;
    for (int i = 0; i < ROUNDS; i++) {
        int at = i % (PAGES - 2);
        guard_pages(middle + (size_t)at * PAGE, 2 * PAGE);
        step(hash, 0.01);
        check(all, PAGES, 0, PAGES, i);
        check(first, PAGES, 0, 3, i);
        check(middle, PAGES, at, 2, i);
        CHECK(can_be_read(mapped + PAGE) == !in_file && memcmp(mapped, "\177ELF", 4) == 0, "round %d: a file's pages", i);
        open_again(middle + (size_t)at * PAGE, 2);
        for (int page = at; page < at + 2; page++) {
            CHECK(middle[(size_t)page * PAGE] == 0, "round %d: page %d that was guarded", i, page);
            middle[(size_t)page * PAGE] = (char)(page + 1);
        }
        if (in_place) {
            // One mapping for the kernel, or it would not move all of it.
            first = mremap(first, PAGES * PAGE, (PAGES + 1) * PAGE, MREMAP_MAYMOVE);
            CHECK(first != MAP_FAILED, "round %d: %s", i, strerror(errno));
            WORKS(munmap(first + PAGES * PAGE, PAGE));
        }
        hash = hash_bytes(hash, middle, PAGES * PAGE);
    }
    done = 1;
    IS_ZERO(pthread_join(thread, NULL));
    return finish("guards", hash);
}
