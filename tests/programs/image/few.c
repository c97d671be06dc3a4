// SPDX-License-Identifier: Apache-2.0
// A large heap of which little is written to from image to image, here and there, by two threads. Every page says which it is
// and when it was written. Besides, a few small mappings come, go, move, grow, and cannot be read for a while. The first rank
// has the heap.
//   few MIB ROUNDS
#include "image.h"

#include <fcntl.h>
#include <sys/mman.h>

#define PAGE ((size_t)4096)
#define WORDS (PAGE / 8)
#define AT_ONCE 24 // pages that each thread writes in a round

static uint64_t *heap;
static size_t pages;
static uint32_t *written; // when
static long round_of_all; // -1: that was all
static pthread_barrier_t begins, ends;

static void write_page(size_t page, uint32_t when)
{
    written[page] = when;
    for (size_t word = 0; word < WORDS; word += 73)
        heap[page * WORDS + word] = mixed(when, page << 9 | word);
}

static void check_page(size_t page)
{
    for (size_t word = 0; word < WORDS; word += 73)
        CHECK(heap[page * WORDS + word] == mixed(written[page], page << 9 | word), "page %zu, word %zu is not of round %u", page,
              word, written[page]);
}

#define MAPPINGS 6

static struct {
    uint64_t *start;
    size_t pages;
    uint64_t seed;
} mappings[MAPPINGS];

static void check_mapping(size_t index)
{
    for (size_t word = 0; word < mappings[index].pages * WORDS; word += 51)
        CHECK(mappings[index].start[word] == mixed(mappings[index].seed, word), "mapping %zu, word %zu is not of round %llu", index,
              word, (unsigned long long)mappings[index].seed);
}

// Looks at one of them, changes it in one of five ways and writes it anew; until the round is over another one may not be read.
static void change_mappings(long round)
{
    size_t index = (size_t)round % MAPPINGS;
    uint64_t *start = mappings[index].start;
    size_t bytes = mappings[index].pages * PAGE, new_pages = 4 + mixed(3, (uint64_t)round) % 12;
    if (start)
        WORKS(mprotect(start, bytes, PROT_READ | PROT_WRITE));
    check_mapping(index);
    if (!start || round % 5 == 0) {
        if (start)
            WORKS(munmap(start, bytes));
        start = mmap(NULL, new_pages * PAGE, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | (round % 2 ? MAP_NORESERVE : 0), -1, 0);
    } else if (round % 5 == 1) {
        start = mremap(start, bytes, new_pages * PAGE, MREMAP_MAYMOVE);
    } else if (round % 5 == 2) {
        void *where = mmap(NULL, new_pages * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(where != MAP_FAILED, "%s", strerror(errno));
        start = mremap(start, bytes, new_pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, where);
    } else if (round % 5 == 3) {
        WORKS(madvise(start, bytes, MADV_DONTNEED));
        new_pages = mappings[index].pages;
    } else {
        WORKS(munmap(start, bytes));
        start = mmap(start, new_pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); // there, if possible
    }
    CHECK(start != MAP_FAILED, "%s", strerror(errno));
    mappings[index].start = start;
    mappings[index].pages = new_pages;
    mappings[index].seed = (uint64_t)round;
    for (size_t word = 0; word < new_pages * WORDS; word++)
        start[word] = mixed((uint64_t)round, word);
    WORKS(mprotect(start, new_pages * PAGE, round % 3 ? PROT_READ : PROT_NONE));
}

// Both threads have pages of their own: the even ones, and the odd ones.
static void write_some(long round, size_t odd)
{
    for (uint64_t i = 0; i < AT_ONCE; i++) {
        size_t page = (mixed((uint64_t)round, i << 1 | odd) % (pages / 2)) << 1 | odd;
        check_page(page);
        write_page(page, (uint32_t)round);
    }
}

static void *help(void *unused)
{
    for (;;) {
        pthread_barrier_wait(&begins);
        if (round_of_all < 0)
            return unused;
        write_some(round_of_all, 1);
        pthread_barrier_wait(&ends);
    }
}

int main(int argc, char **argv)
{
    start(&argc, &argv);
    size_t mib = (size_t)argument(argc, argv, 1, 256);
    long rounds = argument(argc, argv, 2, 300);
    pages = (rank == 0 ? mib : 1) << 8;
    heap = map_guarded(pages * PAGE);
    // Shared, there, and without rights.
    int file = WORKS(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
    char *closed = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, file, 0);
    CHECK(closed != MAP_FAILED && can_be_read(closed), "%s", strerror(errno));
    close(file);
    WORKS(mprotect(closed, PAGE, PROT_NONE));
    written = allocate(pages * sizeof *written);
    for (size_t page = 0; page < pages; page++)
        write_page(page, 0);
    pthread_t helper;
    IS_ZERO(pthread_barrier_init(&begins, NULL, 2));
    IS_ZERO(pthread_barrier_init(&ends, NULL, 2));
    IS_ZERO(pthread_create(&helper, NULL, help, NULL));
    uint64_t hash = FNV_START;
    for (long round = 1; round <= rounds; round++) {
        round_of_all = round;
        pthread_barrier_wait(&begins);
        write_some(round, 0);
        pthread_barrier_wait(&ends);
        change_mappings(round);
        size_t bytes = 1000 + mixed(5, (uint64_t)round) % 100000;
        char *text = allocate(bytes);
        memset(text, (int)round, bytes);
        hash = hash_bytes(hash, text, bytes);
        free(text);
        size_t given_back = (mixed(7, (uint64_t)round) % (pages / 2)) << 1;
        WORKS(madvise(heap + given_back * WORDS, PAGE, MADV_DONTNEED));
        CHECK(heap[given_back * WORDS] == 0 && heap[given_back * WORDS + WORDS - 1] == 0, "not given back");
        write_page(given_back, (uint32_t)round);
        check_guards(heap, pages * PAGE);
        CHECK(!can_be_read(closed), "round %ld: what had no rights can be read", round);
        if (round % 20 == 0) {
            for (size_t page = 0; page < pages; page++)
                check_page(page);
            if (rank == 0)
                printf("round %ld\n", round);
            fflush(stdout);
        }
        step(hash, 0.01);
    }
    round_of_all = -1;
    pthread_barrier_wait(&begins);
    IS_ZERO(pthread_join(helper, NULL));
    for (size_t page = 0; page < pages; page++) {
        check_page(page);
        hash = hash_bytes(hash, heap + page * WORDS, 8);
    }
    uint64_t all = rank == 0 ? hash : 0;
    MPI_Bcast(&all, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    return finish("few", all);
}
