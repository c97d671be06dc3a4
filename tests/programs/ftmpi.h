/* SPDX-License-Identifier: Apache-2.0 */
/* What the programs share that deal with failures by FT-MPI's rules. */
#ifndef FTMPI_H
#define FTMPI_H

#include "ulfm.h"
#include <resurgo_ft.h>

/* Where `rank` is that of this process. */
#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            printf("WRONG: rank %d, line %d: %s\n", rank, __LINE__, #what);                                            \
            fflush(stdout);                                                                                            \
            MPI_Abort(MPI_COMM_WORLD, 3);                                                                              \
        }                                                                                                              \
    } while (0)

static inline int attribute(MPI_Comm comm, int key, int at)
{
    int *value = NULL, is_there = 0;
    MPI_Comm_get_attr(comm, key, &value, &is_there);
    return is_there ? value[at] : -1;
}

#endif
