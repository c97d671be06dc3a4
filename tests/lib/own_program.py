# SPDX-License-Identifier: Apache-2.0
"""What a newcomer has: a first program of one's own."""

APP = """
#include <mpi.h>
#include <stdio.h>
int main(int argc, char **argv)
{
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    printf("an app's rank %d\\n", rank);
    return MPI_Finalize();
}
"""
APP_PYTHON = """
from mpi4py import MPI
print("an app's rank", MPI.COMM_WORLD.rank)
"""
