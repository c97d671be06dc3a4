# SPDX-License-Identifier: Apache-2.0
"""Long messages, in each way that MPICH has for them when it is told to make a rendezvous early."""

import pytest

from harness import environment, slow, storm
from settings import MANY

WAYS = ["auto", "pipeline", "read", "write", "direct"]


def early(way):
    return {"MPIR_CVAR_CH4_OFI_EAGER_THRESHOLD": "16384", "MPIR_CVAR_CH4_OFI_RNDV_PROTOCOL": way}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("protocol", ["none", "pessimistic", slow("auto"), slow("channel-memory")])
@pytest.mark.gate("none-write", "pessimistic-*")
def test_same_answer_as_plain_mpich(jobs, program, plain, protocol, way):
    expected = plain(3, *program("rendezvous"), "4", env=early(way))
    assert jobs.run(3, *program("rendezvous"), "4", protocol=protocol, env=environment(**early(way))).ok().out == expected.out


@pytest.mark.gate("none-auto")
@pytest.mark.parametrize("way", ["auto", slow("pipeline"), slow("read"), "write", slow("direct")])
@pytest.mark.parametrize("protocol", ["none", slow("auto"), slow("blocking")])
def test_between_nodes(jobs, program, plain, protocol, way):
    expected = plain(3, *program("rendezvous"), "4", env=early(way))
    options = ["--nodes", "3", "-ppn", "1"]
    result = jobs.run(3, *program("rendezvous"), "4", protocol=protocol, options=options, env=environment(**early(way)))
    assert result.ok().out == expected.out


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("protocol", ["pessimistic", "causal", "channel-memory", "blocking", "chandy-lamport", "auto"])
@pytest.mark.gate("pessimistic-write", "auto-auto")
def test_random_kills(jobs, program, rng, protocol, way):
    """Written memory is a delivery like others: replayed, part of a wave."""
    calm = jobs.run(3, *program("rendezvous"), "40", env=environment(**early(way))).ok()
    options = [*MANY, "--checkpoint-every", "50ms"]
    job = jobs.start(3, *program("rendezvous"), "40", protocol=protocol, options=options, env=environment(**early(way)))
    storm(job, rng, 5, max(0.3, calm.seconds))
    result = job.wait().ok()
    assert result.out == calm.out, result.describe()
