# SPDX-License-Identifier: Apache-2.0
"""The test program that spawns others."""



# Equal runs: every process prints its lines once, but the order among processes is chance.
ARGUMENTS = ("6", "2", "20")  # rounds, children, work


def lines(result):
    return sorted(result.out.splitlines())
