# SPDX-License-Identifier: Apache-2.0
"""Which of the node's ranks a rank is. The environment says it as under mpiexec; for MPI every rank is alone."""

import pytest

import harness

OTHERS = {"OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "PALS_LOCAL_RANKID"}


def test_the_environment_tells_the_local_rank(jobs):
    """Leftovers of other launchers do not count. Slurm's own variable, where it exists, is that of the rank."""
    show = ["sh", "-c", "env | grep -E '^(MPI_LOCAL|PALS_|OMPI_|SLURM_)' | sed \"s/^/rank $PMI_RANK /\""]
    left = {"PALS_LOCAL_RANKID": "7", "MPI_LOCALRANKID": "7", "OMPI_COMM_WORLD_RANK": "7"}
    lines = jobs.run(3, *show, env=harness.environment(**left, SLURM_LOCALID="0")).ok().text.splitlines()
    plain = jobs.mpiexec(3, *show).ok().text.splitlines()
    assert {line for line in lines if "MPI_LOCAL" in line} == set(plain) and len(plain) == 6
    for name in OTHERS | {"SLURM_LOCALID"}:
        assert sorted(line for line in lines if f" {name}=" in line) == [f"rank {rank} {name}={rank}" for rank in range(3)]
    assert not any("SLURM" in line for line in jobs.run(1, *show).ok().text.splitlines())


@pytest.mark.parametrize("protocol", ["pessimistic", harness.slow("blocking")])
def test_for_mpi_every_rank_is_alone_on_its_node(jobs, program, protocol):
    """So a window in shared memory works for a rank alone, even with kills; for several ranks it is an error."""
    options = ["--fault", "rank=1,messages=300", "--fault", "rank=0,messages=700"]
    result = jobs.run(3, *program("shared_window.py"), protocol=protocol, options=options).ok()
    assert result.restarts == 2 or protocol == "blocking" and result.restarts, result.describe()
    total = 1000 * sum(round + 3 for round in range(200))
    first, *rest = sorted(result.text.splitlines(), key=lambda line: line.startswith("rank"))
    assert first == f"node of 1 of 3, sums {[total] * 3}", result.describe()
    assert len(rest) == 3 and all("not in the same shared memory domain" in line for line in rest), result.describe()
