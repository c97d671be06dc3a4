// SPDX-License-Identifier: Apache-2.0
// Memory: the heap, the break, mappings that come and go and change their rights, also in parts, pages given back, shared memory of one
// process alone, a stack that grows, huge pages, locked pages.
#include <sys/mman.h>

#include "image.h"

#define MAPPINGS 40
#define BYTES ((size_t)1 << 20)

static char *map(size_t bytes, int flags)
{
    char *place = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    CHECK(place != MAP_FAILED, "%s", strerror(errno));
    return place;
}

static uint64_t grow_stack(int depth)
{
    volatile char room[4096];
    room[0] = (char)depth;
    room[4095] = 1;
    uint64_t below = depth ? grow_stack(depth - 1) : 7;
    CHECK(room[0] == (char)depth && room[4095] == 1, "the stack has changed at depth %d", depth);
    return below * 31 + (uint64_t)depth;
}

// The kernel enlarges only what it counts as one mapping.
static char *enlarged(char *from, size_t bytes, int round)
{
    char *where = mremap(from, bytes, bytes + BYTES, MREMAP_MAYMOVE);
    CHECK(where != MAP_FAILED, "round %d: %s", round, strerror(errno));
    WORKS(munmap(where + bytes, BYTES));
    return where;
}

int main(int argc, char **argv)
{
    start(&argc, &argv);
    char *mappings[MAPPINGS] = {0};
    uint64_t seeds[MAPPINGS] = {0};
    uint64_t *shared = (uint64_t *)map(4 * BYTES, MAP_SHARED);
    char *huge = map(8 * BYTES, MAP_PRIVATE), *locked = map(16 << 10, MAP_PRIVATE);
    madvise(huge, 8 * BYTES, MADV_HUGEPAGE);
    mlock(locked, 16 << 10);
    char *parts = map(4 * BYTES, MAP_PRIVATE);
    fill(parts, 4 * BYTES, 3);
    char *down = map(64 << 10, MAP_PRIVATE | MAP_GROWSDOWN);
    down[(64 << 10) - 1] = 1;
    char *first_break = sbrk(0);
    uint64_t hash = FNV_START;
    for (int i = 0; i < ROUNDS; i++) {
        for (int turn = 0; turn < 4; turn++) {
            int m = (int)(mixed(5, (uint64_t)(i * 4 + turn)) % MAPPINGS);
            size_t bytes = BYTES / 4;
            if (mappings[m]) {
                mprotect(mappings[m], bytes, PROT_READ);
                CHECK(first_wrong(mappings[m], bytes, seeds[m]) < 0, "round %d: mapping %d has changed", i, m);
                mprotect(mappings[m], bytes, PROT_READ | PROT_WRITE);
            }
            switch (turn) {
            case 0: // new
                if (mappings[m])
                    munmap(mappings[m], bytes);
                mappings[m] = map(bytes, MAP_PRIVATE);
                break;
            case 1: // given back: reads as zero
                if (!mappings[m])
                    continue;
                WORKS(madvise(mappings[m], bytes, MADV_DONTNEED));
                for (size_t k = 0; k < bytes; k += 4096)
                    CHECK(mappings[m][k] == 0, "round %d: a page that was given back", i);
                break;
            case 2: // moved
                if (!mappings[m])
                    continue;
                mappings[m] = mremap(mappings[m], bytes, bytes, MREMAP_MAYMOVE);
                break;
            default: // no rights for a while
                if (!mappings[m])
                    continue;
                mprotect(mappings[m], bytes, PROT_NONE);
                step(hash, 0.002);
                mprotect(mappings[m], bytes, PROT_READ | PROT_WRITE);
                CHECK(first_wrong(mappings[m], bytes, seeds[m]) < 0, "round %d: mapping %d has changed", i, m);
                continue;
            }
            seeds[m] = (uint64_t)(i * 4 + turn);
            fill(mappings[m], bytes, seeds[m]);
        }
        for (size_t k = 0; k < 4 * BYTES / 8; k += 512)
            CHECK(shared[k] == (uint64_t)i * k, "round %d: shared memory has %llx", i, (unsigned long long)shared[k]);
        for (size_t k = 0; k < 4 * BYTES / 8; k += 512)
            shared[k] += k;
        CHECK(first_wrong(huge, i ? BYTES : 0, (uint64_t)(i - 1)) < 0, "round %d: huge pages", i);
        fill(huge, BYTES, (uint64_t)i);
        CHECK(locked[i] == 0, "round %d: locked memory", i);
        locked[i] = 1;
        down[(64 << 10) - 2 - i * 400] = 2;
        CHECK(sbrk(0) >= (void *)(first_break + (size_t)i * 8192), "round %d: the break", i);
        char *more = sbrk(8192);
        CHECK(more != (char *)-1, "round %d: %s", i, strerror(errno));
        memset(more, i, 8192);
        if (i > 0)
            CHECK(more[-1] == (char)(i - 1) || more[-1] != 0, "round %d: below the break", i);
        hash ^= grow_stack(50 + i * 8);
        char *block = allocate((size_t)(i + 1) << 12);
        fill(block, (size_t)(i + 1) << 12, 9);
        hash = hash_bytes(hash, block, 64);
        mprotect(parts + i % 4 * BYTES, BYTES, i % 2 ? PROT_NONE : PROT_READ);
        step(hash, 0.01);
        mprotect(parts + i % 4 * BYTES, BYTES, PROT_READ | PROT_WRITE);
        parts = enlarged(parts, 4 * BYTES, i);
        CHECK(first_wrong(parts, 4 * BYTES, 3) < 0, "round %d: parts without rights have changed", i);
        CHECK(first_wrong(block, (size_t)(i + 1) << 12, 9) < 0, "round %d: the heap", i);
        free(block);
    }
    return finish("memory", hash);
}
