// SPDX-License-Identifier: Apache-2.0
// Memory of which little changes from image to image, in every way in which memory can change: written by the program, by
// the kernel and after a fork; given back, moved, enlarged, mapped anew at the same place, without rights for a while; the
// break and the stack up and down. Every page says which it is and when it was written; all are looked at in every round, or, with
// an argument, in so many rounds, of so many times the memory.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "image.h"

#define PAGE ((size_t)4096)
#define REGIONS 6
#define PAGES (factor * 2048) // of a region, at most

static size_t factor = 1;
static struct region {
    uint64_t *start;
    size_t pages;
    uint32_t *written; // of each page, by which change; 0: never, or given back
} regions[REGIONS];
static uint32_t change; // all so far

static uint64_t word(size_t region, size_t page, size_t index)
{
    uint32_t when = regions[region].written[page];
    return when ? mixed(when, region << 40 | page << 16 | index) : 0;
}

static void make(uint64_t *to, size_t region, size_t page)
{
    for (size_t index = 0; index < PAGE / 8; index += 7)
        to[index] = word(region, page, index);
}

static void write_page(size_t region, size_t page)
{
    regions[region].written[page] = ++change;
    make(regions[region].start + page * PAGE / 8, region, page);
}

static void check(int round)
{
    for (size_t region = 0; region < REGIONS; region++)
        for (size_t page = (size_t)round % factor; page < regions[region].pages; page += factor)
            for (size_t index = 0; index < PAGE / 8; index += 7) {
                uint64_t is = regions[region].start[page * PAGE / 8 + index];
                CHECK(is == word(region, page, index), "round %d: region %zu, page %zu, word %zu is %llx, change %u", round,
                      region, page, index, (unsigned long long)is, regions[region].written[page]);
            }
}

static void *map(void *where, size_t pages, int flags)
{
    void *place = mmap(where, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    CHECK(place != MAP_FAILED, "%s", strerror(errno));
    return place;
}

static void forget(struct region *region, size_t from, size_t count)
{
    memset(region->written + from, 0, count * sizeof *region->written);
}

// The kernel writes a page: from a pipe, which is how read, and everything like it, does.
static void write_by_kernel(size_t region, size_t page)
{
    uint64_t text[PAGE / 8] = {0};
    int ends[2];
    regions[region].written[page] = ++change;
    make(text, region, page);
    memset(regions[region].start + page * PAGE / 8, 0, PAGE); // of another round, words between ours may be set
    WORKS(pipe(ends));
    CHECK(write(ends[1], text, PAGE) == (ssize_t)PAGE, "%s", strerror(errno));
    CHECK(read(ends[0], regions[region].start + page * PAGE / 8, PAGE) == (ssize_t)PAGE, "%s", strerror(errno));
    close(ends[0]);
    close(ends[1]);
}

static uint64_t grow_stack(int depth)
{
    volatile uint64_t room[512];
    room[0] = room[511] = (uint64_t)depth;
    uint64_t below = depth ? grow_stack(depth - 1) : 7;
    CHECK(room[0] == (uint64_t)depth && room[511] == (uint64_t)depth, "the stack has changed at depth %d", depth);
    return below * 31 + room[0];
}

static void change_rights(struct region *region, int round)
{
    size_t half = region->pages / 2 * PAGE;
    WORKS(mprotect(region->start, half, round % 2 ? PROT_NONE : PROT_READ));
    step((uint64_t)round, 0.003);
    WORKS(mprotect(region->start, half, PROT_READ | PROT_WRITE));
}

// The child's writes are its own, and the parent's are not the child's.
static void copy_process(size_t region, size_t page)
{
    uint64_t *place = regions[region].start + page * PAGE / 8, before = place[0];
    pid_t child = WORKS(fork());
    if (child == 0) {
        place[0] = 1;
        usleep(2000);
        _exit(place[0] != 1);
    }
    write_page(region, page);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "the child has seen %d, before %llx", status,
          (unsigned long long)before);
}

int main(int argc, char **argv)
{
    start(&argc, &argv);
    if (argc > 1)
        factor = strtoul(argv[1], NULL, 10);
    char name[] = "changed-XXXXXX"; // stays: a life that is rebuilt opens it, also after MPI_Finalize
    int file = WORKS(mkstemp(name));
    WORKS(ftruncate(file, (off_t)(PAGES * PAGE)));
    for (size_t region = 0; region < REGIONS; region++) {
        struct region *this = &regions[region];
        this->pages = region == 0 ? PAGES : PAGES / 2;
        this->written = calloc(PAGES, sizeof *this->written);
        this->start = region == 0 ? map_guarded(PAGES * PAGE) : map(NULL, PAGES, region == 1 ? MAP_NORESERVE : 0);
        if (region == 2)
            madvise(this->start, PAGES * PAGE, MADV_HUGEPAGE);
        if (region == 3)
            CHECK(mmap(this->start, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, 0) == this->start,
                  "%s", strerror(errno));
        for (size_t page = 0; page < this->pages; page++)
            if (region != 4 || page % 3)
                write_page(region, page);
    }
    // Who comes back from a file opens it again by its name.
    const uint64_t *shared = mmap(NULL, PAGES * PAGE, PROT_READ, MAP_SHARED, file, 0);
    CHECK(shared != MAP_FAILED, "%s", strerror(errno));
    uint64_t hash = FNV_START;
    for (int round = 0; round < ROUNDS; round++) {
        for (int turn = 0; turn < 12; turn++) {
            uint64_t random = mixed(11, (uint64_t)(round * 12 + turn));
            size_t region = random % REGIONS, page = (random >> 8) % regions[region].pages;
            write_page(region, page);
            if (turn % 4 == 0)
                write_by_kernel(region, (random >> 24) % regions[region].pages);
        }
        size_t page = (size_t)round * 3 * factor;
        switch (round % 8) {
        case 0: // given back
            WORKS(madvise(regions[0].start + page * PAGE / 8, 5 * PAGE, MADV_DONTNEED));
            forget(&regions[0], page, 5);
            if (round % 16 == 0)
                write_page(0, page + 1);
            break;
        case 1: { // moved
            void *where = map(NULL, PAGES, 0);
            CHECK(mremap(regions[1].start, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, where) == where, "%s",
                  strerror(errno));
            regions[1].start = where;
            break;
        }
        case 2: // larger, or smaller
            regions[4].pages = regions[4].pages == PAGES / 2 ? PAGES : PAGES / 2;
            regions[4].start = mremap(regions[4].start, (PAGES + PAGES / 2 - regions[4].pages) * PAGE,
                                      regions[4].pages * PAGE, MREMAP_MAYMOVE);
            CHECK(regions[4].start != MAP_FAILED, "%s", strerror(errno));
            forget(&regions[4], PAGES / 2, PAGES / 2);
            break;
        case 3: // mapped anew at the same place
            map(regions[5].start + page * PAGE / 8, 7, MAP_FIXED);
            forget(&regions[5], page, 7);
            write_page(5, page + 3);
            break;
        case 4:
            change_rights(&regions[round % REGIONS], round);
            break;
        case 5:
            copy_process(0, page);
            break;
        case 6: // the break
            if (round % 16 == 6) {
                memset(WORKS(sbrk(64 << 10)), round, 64 << 10);
            } else {
                WORKS(sbrk(-(32 << 10)));
                CHECK(((char *)sbrk(0))[-1] == (char)(round - 8), "round %d: the break", round);
            }
            break;
        default: // the stack
            hash ^= grow_stack(20 + round * 8);
        }
        if (round == 60)
            close_range(1000, ~0u, 0); // none of ours
        check(round);
        check_guards(regions[0].start, PAGES * PAGE);
        for (size_t last = 0; round == ROUNDS - 1 && last < factor; last++)
            check((int)last);
        CHECK(shared[round] == 0, "round %d: the file has changed", round);
        hash = hash_bytes(hash, regions[round % REGIONS].start + page * PAGE / 8, PAGE);
        step(hash, 0.008);
    }
    return finish("changed", hash);
}
