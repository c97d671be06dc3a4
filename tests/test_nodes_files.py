# SPDX-License-Identifier: Apache-2.0
"""Jobs on several nodes whose image files outlive all of their processes: on one file system, or each node on its own."""

import os
import shutil
import signal
import subprocess
import time

import pytest

import harness
from catalogue import BY_NAME, arguments
from harness import by_rank, slow
from test_interrupted import EVERY, chain, interrupt, recorded  # noqa: F401
from test_nodes import agents

HEAT = ("400", "400", "8000")

BLOCKING = ["--protocol", "blocking", *EVERY]


def nodes_of(result):
    """The nodes that ranks have run on."""
    return {event.get("node") for event in result.of("started")}


@pytest.mark.parametrize("others", [slow(()), slow(("--nodes", "1")), ("--nodes", "3", "-ppn", "1"), slow(("-hosts", "localhost"))])
def test_a_power_cut_loses_what_came_after_the_last_wave(jobs, chain, program, rng, others):  # noqa: F811
    """All agents, all ranks and the launcher at once; then the job is on the same nodes, on fewer or on more."""
    calm = jobs.calm(4, *program("heat"), *HEAT)
    job = chain.start(4, *program("heat"), *HEAT, options=["--nodes", "2", *BLOCKING])
    assert recorded(job, 2)
    time.sleep(rng.uniform(0, 0.3))
    wave = job.result(0).of("wave_recorded")[-1]["wave"]
    assert interrupt(job, "everything")
    chain.resume(options=others)
    result = chain.end()
    begun = {event["image"] for event in result.of("started")}
    assert len(begun) == 1 and begun.pop() >= wave, result.describe()
    expected = {(): {"0", "1"}, ("--nodes", "3", "-ppn", "1"): {"0", "1", "2"}}
    assert nodes_of(result) == expected.get(others, {None}), result.describe()
    assert chain.out == calm.out


@pytest.mark.slow
def test_a_job_of_one_node_goes_on_on_several(jobs, chain, program):  # noqa: F811
    calm = jobs.calm(4, *program("heat"), *HEAT)
    job = chain.start(4, *program("heat"), *HEAT, options=BLOCKING)
    assert recorded(job)
    assert interrupt(job, "launcher")
    chain.resume(options=["--nodes", "2"])
    assert nodes_of(chain.end()) == {"0", "1"}
    assert chain.out == calm.out


@pytest.mark.parametrize("protocol", ["blocking"])
@pytest.mark.parametrize("name", ["master_worker", slow("cg"), slow("heat"), slow("messages")])
def test_again_and_again(jobs, chain, program, rng, name, protocol):  # noqa: F811
    """Launcher, an agent, everything or a rank, at random moments, and suspensions; each time on other nodes."""
    entry = BY_NAME[name]
    calm_file, file = jobs.directory / "calm", jobs.directory / "result"
    calm = jobs.calm(4, *program(name), *arguments(entry, True, calm_file))
    options = ["--nodes", "2", "--checkpoint-every", "50ms", "--lease", "1s"]
    job = chain.start(4, *program(name), *arguments(entry, True, file), options=options, protocol=protocol)
    for _ in range(5):
        if not recorded(job):
            break
        time.sleep(rng.uniform(0, 0.3))
        if rng.random() < 0.3:
            job.kill([rng.randrange(4)])
        if rng.random() < 0.3 and len(left := agents(job)) > 1:
            os.kill(rng.choice(left), signal.SIGKILL)
        if rng.random() < 0.3:
            if not chain.suspend():
                break
        elif not interrupt(job, rng.choice(["launcher", "everything"])):
            break
        job = chain.resume(chain.directory, options=["--nodes", rng.choice("123")])
    result = job.wait().ok()
    assert by_rank(chain.out) == by_rank(calm.out), result.describe()
    assert not entry.result or file.read_bytes() == calm_file.read_bytes()
    assert not list(chain.images.iterdir())


@pytest.mark.slow
def test_images_on_one_file_system_need_no_partner(jobs, chain, program, rng):  # noqa: F811
    """A lost node's ranks begin from files that all nodes see, and nothing is sent for that."""
    calm = jobs.calm(3, *program("heat"), *HEAT)
    options = ["--nodes", "3", "--lease", "1s", *BLOCKING]
    job = chain.start(3, *program("heat"), *HEAT, options=options)
    for loss in range(2):
        assert recorded(job, 2 * loss + 2)
        os.kill(rng.choice(agents(job)), signal.SIGKILL)
        assert job.until(lambda: len([event for event in job.events if event["event"] == "returned"]) > loss)  # noqa: B023
    result = chain.end()
    assert all(event["wave"] > 0 for event in result.of("returned")), result.describe()
    assert chain.out == calm.out


@pytest.mark.slow
def test_it_is_suspended_and_goes_on_elsewhere(jobs, chain, program):  # noqa: F811
    calm = jobs.calm(4, *program("heat"), *HEAT)
    job = chain.start(4, *program("heat"), *HEAT, options=["--nodes", "2"], protocol="blocking")
    assert job.until(lambda: len(job.lives()) == 4)
    time.sleep(0.3)
    assert chain.suspend()
    chain.resume(options=["--nodes", "3", "-ppn", "2"])
    result = chain.end()
    assert nodes_of(result) == {"0", "1"}, "two ranks are on each node"
    assert chain.out == calm.out


@pytest.fixture
def own_disks(tmp_path):
    """Starts agents of hosts that have a file system of their own at one path: the options, that path, and what makes a host's."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        pytest.skip("mounts cannot be made here")
    disks = tmp_path / "disks"
    place = tmp_path / "place"
    for directory in (disks, place):
        directory.mkdir()
    script = tmp_path / "ssh"
    # What a host has stays when its processes end, as long as the host is not removed.
    script.write_text(
        '#!/bin/sh\nshift 5; host=$1; shift\n'
        f"mkdir -p -m 700 {disks}/$host\n"
        f'exec unshare -m --propagation private sh -c "mount --bind {disks}/$host {place} && '
        f'{{ [ ! -e {disks}/$host.mount ] || . {disks}/$host.mount; }} && $*"\n'
    )
    script.chmod(0o755)
    return ["-launcher-exec", script], place, disks


def test_each_node_keeps_its_images(jobs, chain, program, own_disks):  # noqa: F811
    """Of two nodes with disks of their own, and a third: the images are found where they are, and sent to where ranks go on."""
    launcher, place, disks = own_disks
    chain.images = place
    calm = jobs.calm(4, *program("heat"), *HEAT)
    job = chain.start(4, *program("heat"), *HEAT, options=["-hosts", "a.invalid:2,b.invalid:2", *launcher, *BLOCKING])
    assert recorded(job)
    assert interrupt(job, "everything")
    assert sorted(path.name for path in disks.iterdir()) == ["a.invalid", "b.invalid"]
    assert not list(place.glob("*/rank-*")), "the launcher's machine has none"
    # The launcher's machine is the only one, and has no image.
    told = chain.resurgo("resume", "-hosts", "localhost", chain.directory)
    assert told.code == 1 and told.errors.count("\n") == 1 and "which none of these nodes has" in told.errors, told.describe()
    # A partner has the images of a lost node.
    shutil.rmtree(disks / "b.invalid")
    chain.resume(options=["-hosts", "c.invalid:3,a.invalid:1", *launcher])
    result = chain.last.wait().ok()
    assert nodes_of(result) == {"a.invalid", "c.invalid"}
    assert {event["image"] for event in result.of("started")} != {0}
    assert chain.out == calm.out
    assert not list(place.iterdir()) and not [path for host in ("a", "c") for path in (disks / f"{host}.invalid").iterdir()]


def test_an_image_that_no_node_has_is_named(jobs, chain, program, own_disks):  # noqa: F811
    launcher, place, disks = own_disks
    chain.images = place
    job = chain.start(2, *program("heat"), *HEAT, options=["-hosts", "a.invalid,b.invalid", *launcher, *BLOCKING])
    assert recorded(job)
    assert interrupt(job, "everything")
    for host in ("a", "b"):
        for path in (disks / f"{host}.invalid").glob("*/rank-1.image-*"):
            path.unlink()
    told = chain.resurgo("resume", *["-hosts", "a.invalid,b.invalid", *launcher], chain.directory)
    assert told.code == 1 and told.errors.count("\n") == 1, told.describe()
    assert "of rank 1 is in" in told.errors and "rank-1.image-" in told.errors and "of node b.invalid" in told.errors
    chain.resurgo("rm", chain.directory).ok()


def test_a_directory_that_cannot_be_used_is_named_with_its_node(jobs, chain, program, own_disks):  # noqa: F811
    launcher, place, disks = own_disks
    (disks / "b.invalid.mount").write_text(f"mount -t tmpfs -o ro none {place}")
    options = ["-hosts", "a.invalid,b.invalid", *launcher, "--protocol", "blocking", "--checkpoint-dir", place]
    told = chain.resurgo("run", *options, *program("hello"))
    assert told.code == 1 and told.errors.count("\n") == 1, told.describe()
    assert "node b.invalid: cannot keep image files in" in told.errors and "Read-only file system" in told.errors
    assert not list(place.iterdir()), "nothing is left of it here"


@pytest.mark.slow
def test_a_full_disk_of_one_node_costs_images_only(jobs, chain, program, own_disks):  # noqa: F811
    launcher, place, disks = own_disks
    (disks / "b.invalid.mount").write_text(f"mount -t tmpfs -o mode=700,size=2m none {place}")
    chain.images = place
    calm = jobs.calm(2, *program("heat"), *HEAT)
    job = chain.start(2, *program("heat"), *HEAT, options=["-hosts", "a.invalid,b.invalid", *launcher, *BLOCKING])
    result = job.wait().ok()
    assert result.of("image_not_written") and not result.of("wave_recorded"), result.describe()
    assert chain.out == calm.out and not list(place.iterdir())
