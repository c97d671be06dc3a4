# SPDX-License-Identifier: Apache-2.0
"""Intel's MPI benchmarks, unmodified, on the wheel's MPICH and on Intel MPI.

They print measured times, so what is compared is the shape of the output: every line with its numbers taken out.
At the end of each measurement the ranks send rank 0 their times; a rank that is replayed measures others. So rank 0
can be killed at any time, the others may also end the job with the error that says so; never with a wrong table.
"""

import pytest

import harness
from harness import INTEL, slow
from imb_suite import SHORT, command, shape

pytestmark = pytest.mark.intel

LIBRARIES = {"mpich": {}, "intel": INTEL}


@pytest.mark.parametrize("protocol", [slow("none"), "pessimistic"])
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", SHORT)
@pytest.mark.gate("IMB-MPI1-mpich-*", "IMB-NBC-intel-*", "IMB-RMA-mpich-*")
def test_undisturbed(jobs, name, library, protocol):
    env = harness.environment(**LIBRARIES[library])
    result = jobs.run(2, *command(name, 2), protocol=protocol, env=env).ok()
    assert "# All processes entering MPI_Finalize" in result.text
    assert len(shape(result.text)) > 20
    assert len(result.of("failed")) == 0


@pytest.mark.gate("mpich")
@pytest.mark.parametrize("library", LIBRARIES)
def test_all_of_mpi1_on_four_ranks(jobs, library):
    env = harness.environment(**LIBRARIES[library])
    jobs.run(4, *command("IMB-MPI1", 2, "-msglog", "10:12"), env=env).ok()


@pytest.mark.gate("pessimistic")
@pytest.mark.parametrize("protocol", ["none", "pessimistic"])
def test_long_aggregated_puts_on_mpich(jobs, protocol):
    """Plain MPICH crashes here with MPIR_CVAR_CH4_OFI_ENABLE_RMA=0: it must fetch long active messages by remote
    reads."""
    run = command("IMB-RMA", 2, "-msglog", "13:15", "Unidir_put")
    jobs.run(2, *run, protocol=protocol).ok()


KILLED = {"IMB-MPI1": ["-msglog", "3:10", "PingPong", "Exchange", "Allreduce", "Alltoall", "Bcast", "Allgatherv"],
          "IMB-NBC": ["-msglog", "3:8", "Ibcast", "Iallreduce", "Ialltoall"],
          "IMB-RMA": ["-msglog", "3:8", "Unidir_put", "Bidir_get", "Accumulate", "Fetch_and_op", "Exchange_put"]}


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", KILLED)
@pytest.mark.gate("IMB-MPI1-intel", "IMB-NBC-mpich")
def test_rank_0_is_killed(jobs, name, library):
    env = harness.environment(**LIBRARIES[library])
    calm = jobs.calm(2, *command(name, 2, *KILLED[name]), env=env)
    half = sum(event["messages"] for event in calm.of("job_ended")) // 2
    options = ["--fault", f"rank=0,messages={max(10, half // 2)}"]
    result = jobs.run(2, *command(name, 2, *KILLED[name]), env=env, options=options).ok()
    assert result.restarts == 1
    assert shape(result.text) == shape(calm.text)


def test_another_rank_is_killed(jobs):
    """Before the ranks send their first times all is well; afterwards the job finds the difference."""
    run = command("IMB-MPI1", 2, *KILLED["IMB-MPI1"])
    calm = jobs.calm(2, *run)
    early = jobs.run(2, *run, options=["--fault", "rank=1,messages=12"]).ok()
    assert shape(early.text) == shape(calm.text) and early.restarts == 1
    late = jobs.run(2, *run, options=["--fault", "rank=1,messages=2000"])
    if late.code == 0:
        assert shape(late.text) == shape(calm.text)
    else:
        assert "rank 1 sent something else" in late.errors, late.describe()


@pytest.mark.soak
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("protocol", ["none", "pessimistic"])
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", SHORT)
def test_everything(jobs, name, library, protocol, size):
    """Every benchmark. The log keeps everything sent, tens of gigabytes for 4 MiB each. So under the protocol that
    logs, messages end at 512 KiB, and what does not fit into little memory goes to a file."""
    env = harness.environment(**LIBRARIES[library])
    options = []
    run = command(name, 2, "-iter", "20")
    if protocol == "pessimistic":
        spill = jobs.directory / "spill"
        spill.mkdir()
        options = ["--log-memory", "512M", "--spill-dir", spill]
        run += ["-msglog", "0:19"]
    result = jobs.run(size, *run, protocol=protocol, options=options, env=env, timeout=900).ok()
    assert "# All processes entering MPI_Finalize" in result.text
