# SPDX-License-Identifier: Apache-2.0
"""The papers' experiments, one function a figure."""

from figures import causal, gao, mpich_v

FIGURES = {figure.name: figure for module in (mpich_v, causal, gao) for figure in module.FIGURES}
