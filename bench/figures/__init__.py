# SPDX-License-Identifier: Apache-2.0
"""The papers' experiments, one function a figure."""

from figures import causal, ft_mpi, gao, mpich_v, nodes_lost, remote, replication, walters

FIGURES = {figure.name: figure for module in (mpich_v, remote, nodes_lost, causal, gao, walters, replication, ft_mpi) for figure in module.FIGURES}
