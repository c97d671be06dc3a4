/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FT-MPI for programs that `resurgo run --ft-mode` runs: names of modes, states and attributes. It needs no functions: a
 * failure is MPI_ERR_OTHER, and survivors rebuild a communicator by MPI_Comm_dup, _split or _create of it. mpi_ext.F90
 * has the names in Fortran, and the Python module resurgo.ft in Python.
 *
 * And checkpoints in the memory of ranks, for all programs that deal with failures themselves. These are functions:
 * link libresurgo-ft.so.
 */
#ifndef RESURGO_FT_H
#define RESURGO_FT_H

#include <mpi.h>

/* Attributes of a communicator, for MPI_Comm_get_attr and MPI_Attr_get: the value is an address, as of MPI_TAG_UB. */
#define FTMPI_COMM_MODE 0x7f465400        /* int; MPI_Comm_set_attr(comm, key, (void *)FTMPI_COMM_MODE_...) sets it */
#define FTMPI_MSG_MODE 0x7f465401         /* int; the same with FTMPI_MSG_MODE_... */
#define FTMPI_COMM_STATE 0x7f465402       /* int: FT_... */
#define FTMPI_NUM_FAILED_PROCS 0x7f465403 /* int: members that have failed since it was rebuilt, or dealt with then */
#define FTMPI_FAILED_PROCS 0x7f465404     /* int for each: its rank, in the communicator as it was before */
#define FTMPI_FAILED_AT 0x7f465405        /* double for each: when, in seconds since the Epoch */
#define FTMPI_FAILED_CODES 0x7f465406     /* int for each: its exit code, or 128 and the signal */
#define FTMPI_COLL_MODE 0x7f465408        /* int; the same with FTMPI_COLL_MODE_... */
#define FTMPI_PROC_STATES 0x7f465407      /* int for each member: FT_PROC_... */

/* What a communicator with a failed member becomes when it is rebuilt. */
#define FTMPI_COMM_MODE_ABORT 0L  /* nothing: the job ends */
#define FTMPI_COMM_MODE_BLANK 1L  /* as large as before, with gaps: a message to or from one is MPI_ERR_RANK */
#define FTMPI_COMM_MODE_SHRINK 2L /* the survivors, numbered anew */
#define FTMPI_COMM_MODE_REBUILD 3L /* as before: new processes are in the places of failed ones */
#define FTMPI_COMM_MODE_REBUILD_SHRINK 4L /* the survivors, numbered anew, and new processes behind them */

/* What becomes of messages between survivors until then. */
#define FTMPI_MSG_MODE_NOP 0L  /* every call is an error */
#define FTMPI_MSG_MODE_CONT 1L /* they go on */

/* How collective calls end. */
#define FTMPI_COLL_MODE_LOOSE 0L  /* some members may have an error where others have none */
#define FTMPI_COLL_MODE_STRICT 1L /* a closing barrier: well for all members, or with an error for all that live */

/* States of a communicator. */
#define FT_OK 0        /* whole */
#define FT_DETECTED 1  /* a member has failed */
#define FT_RECOVER 2   /* it is being rebuilt */
#define FT_RECOVERED 3 /* it was rebuilt, and is whole */
#define FT_FAILED 4    /* another has taken its place, or rebuilding has failed */

/* States of a process. */
#define FT_PROC_OK 0
#define FT_PROC_UNAVAILABLE 1
#define FT_PROC_JOINING 2
#define FT_PROC_FAILED 3

/* What MPI_Init and MPI_Init_thread return, instead of MPI_SUCCESS, in a process that is in the place of a failed one. */
#define MPI_INIT_RESTARTED_NODE 0x7f4654f0

#ifdef __cplusplus
extern "C" {
#endif

/* The same, after MPI_Init, for who does not see what that has returned: 1 in such a process, else 0. In Python, where
 * mpi4py calls it, MPI_Init returns MPI_SUCCESS also there. This is a function: link libresurgo-ft.so. */
int resurgo_ft_is_restarted(void);

#ifdef __cplusplus
}
#endif

/* FT-MPI's programs give MPI_Comm_dup this for the new communicator. It makes no difference. */
#define FT_MPI_CHECK_RECOVER ((MPI_Comm)0x7f465480)

/*
 * Checkpoints. A call with a communicator is for all of its members that live; a failure ends it with an error, like any
 * collective call. In a job without --ft there are no checkpoints: resurgo_ft_checkpoint does nothing.
 */
#ifdef __cplusplus
extern "C" {
#endif

#define RESURGO_FT_PARTNER 0 /* whole copies at as many other ranks as losses are covered */
#define RESURGO_FT_PARITY 1  /* sets of ranks keep parity: each covers so many losses; less memory, more work */
#define RESURGO_FT_ALL (-1)

/* Answers of resurgo_ft_find and _restore, the same at all members. No error handler is called. */
#define RESURGO_FT_NOTHING 201 /* there is no checkpoint */
#define RESURGO_FT_LOST 202    /* more is lost than the last checkpoint covers */

/* This memory belongs to the checkpoints that follow, under a number of the program's choice, from 0. The same number
 * again says that the memory is elsewhere, or has another size. It must stay where it is until RESURGO_FT_ALL, or this
 * number, is unprotected. */
int resurgo_ft_protect(int id, void *address, MPI_Count count, MPI_Datatype datatype);
int resurgo_ft_unprotect(int id);

/* Keeps a copy of all that is protected, and makes up for so many losses. Members give the same version. The checkpoint
 * before it stays until all have the new one. */
int resurgo_ft_checkpoint(MPI_Comm comm, int version, int scheme, int losses);

/* Makes the last checkpoint whole again, and fills what is protected from it. Each rank gets its own data; in a
 * communicator as large as that of the checkpoint each gets that of its number. Regions whose number it had not then come
 * from the first rank that had one of that number. */
int resurgo_ft_restore(MPI_Comm comm, int *version);

/* The first half of it: nothing of the program's is written. Then the program knows of each region the size, in bytes
 * (-1: there is none), of this rank's number when the checkpoint was made, or of the one that resurgo_ft_restore would
 * take (MPI_ANY_SOURCE). */
int resurgo_ft_find(MPI_Comm comm, int *version);
int resurgo_ft_size(int rank, int id, MPI_Count *bytes);

/* The numbers, then, of lost ranks whose data this rank keeps now, as nobody has taken their place: at most so many. */
int resurgo_ft_inherited(int most, int *ranks, int *count);

/* Reads a region of the checkpoint that was found; MPI_PROC_NULL: this rank reads none. */
int resurgo_ft_read(MPI_Comm comm, int rank, int id, void *address, MPI_Count count, MPI_Datatype datatype);

#ifdef __cplusplus
}
#endif

#endif
