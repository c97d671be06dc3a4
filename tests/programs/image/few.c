// SPDX-License-Identifier: Apache-2.0
// A large heap of which little is written to from image to image, here and there, by two threads. Every page says which it is
// and when it was written. The first rank has the heap.
//   few MIB ROUNDS
#include "image.h"

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
    heap = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(heap != MAP_FAILED, "%s", strerror(errno));
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
        // Memory that comes and goes.
        size_t bytes = 1000 + mixed(5, (uint64_t)round) % 100000;
        char *text = allocate(bytes);
        memset(text, (int)round, bytes);
        hash = hash_bytes(hash, text, bytes);
        free(text);
        size_t given_back = (mixed(7, (uint64_t)round) % (pages / 2)) << 1;
        WORKS(madvise(heap + given_back * WORDS, PAGE, MADV_DONTNEED));
        CHECK(heap[given_back * WORDS] == 0 && heap[given_back * WORDS + WORDS - 1] == 0, "not given back");
        write_page(given_back, (uint32_t)round);
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
