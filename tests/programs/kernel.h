// SPDX-License-Identifier: Apache-2.0
// What the kernels share: size classes in the sense of the NAS benchmarks (S, W, A), each with the verification value
// that a run must end with, bit for bit and on any number of ranks. All arithmetic is done in an order that does not
// depend on the ranks, and without contraction to fused operations (-ffp-contract=off).
#ifndef KERNEL_H
#define KERNEL_H

#include "check.h"

typedef struct {
    const char *name;
    long n, steps; // of the grid's edge, and of the computation
    uint64_t verification;
} Class;

// Says on rank 0 what is wrong and ends the program with status 2.
#define REFUSE(rank, ...)                                                       \
    do {                                                                        \
        if ((rank) == 0)                                                        \
            fprintf(stderr, __VA_ARGS__);                                       \
        MPI_Finalize();                                                         \
        exit(2);                                                                \
    } while (0)

// The class that the first argument names (S without one), or NULL.
static inline const Class *class_of(int argc, char **argv, const Class *classes)
{
    const char *name = argc > 1 ? argv[1] : "S";
    for (const Class *class = classes; class->name; class++)
        if (strcmp(class->name, name) == 0)
            return class;
    return NULL;
}

// One number of the result, at place `at` of all of it. The sum over all places, on all ranks, is the verification value.
static inline uint64_t verified(uint64_t at, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return mixed(bits, at);
}

// The end of a kernel: adds up `mine` over all ranks, compares, and prints what was computed.
static inline void verify(const char *kernel, const Class *class, uint64_t mine, int rank)
{
    uint64_t all;
    MPI_Allreduce(&mine, &all, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    CHECK(all == class->verification, "%s: verification value %016llx, not %016llx",
          kernel, (unsigned long long)all, (unsigned long long)class->verification);
    if (rank == 0)
        printf("%s class=%s n=%ld steps=%ld verification=%016llx\n", kernel, class->name, class->n, class->steps,
               (unsigned long long)all);
}

// The first of the places that part `part` of `parts` has of `n`; it ends where the next begins.
static inline long part_of(long n, int parts, int part)
{
    return n * part / parts;
}

#endif
