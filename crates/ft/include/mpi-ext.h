/* SPDX-License-Identifier: Apache-2.0 */
/*
 * User-Level Failure Mitigation for programs that `resurgo run --ft` runs, under the names that Open MPI's mpi-ext.h
 * has. MPICH's mpi.h declares some of them.
 */
#ifndef RESURGO_MPI_EXT_H
#define RESURGO_MPI_EXT_H

#include <mpi.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OMPI_HAVE_MPI_EXT 1
#define OMPI_HAVE_MPI_EXT_FTMPI 1
#define OMPI_HAVE_MPIX_COMM_GET_FAILED 1
#define OMPI_HAVE_MPIX_COMM_ACK_FAILED 1
#define OMPI_HAVE_MPIX_COMM_ISHRINK 1

#ifndef MPIX_ERR_PROC_FAILED
#error "mpi-ext.h of Resurgo is for MPICH 5: compile with its mpicc"
#endif

int MPIX_Comm_revoke(MPI_Comm comm);
int MPIX_Comm_is_revoked(MPI_Comm comm, int *flag);
int MPIX_Comm_shrink(MPI_Comm comm, MPI_Comm *newcomm);
int MPIX_Comm_ishrink(MPI_Comm comm, MPI_Comm *newcomm, MPI_Request *request);
int MPIX_Comm_agree(MPI_Comm comm, int *flag);
int MPIX_Comm_iagree(MPI_Comm comm, int *flag, MPI_Request *request);
int MPIX_Comm_get_failed(MPI_Comm comm, MPI_Group *failedgrp);
int MPIX_Comm_ack_failed(MPI_Comm comm, int num_to_ack, int *num_acked);
int MPIX_Comm_failure_ack(MPI_Comm comm);
int MPIX_Comm_failure_get_acked(MPI_Comm comm, MPI_Group *failedgrp);
int MPIX_Win_revoke(MPI_Win win);
int MPIX_Win_get_failed(MPI_Win win, MPI_Group *failedgrp);
int MPIX_File_revoke(MPI_File file);

#ifdef __cplusplus
}
#endif

#endif
