# SPDX-License-Identifier: Apache-2.0
"""Jobs on several nodes whose image files outlive all of their processes: on one file system, or each node on its own."""

import os
import shutil
import signal
import time

import pytest

from catalogue import BY_NAME, arguments
from chains import SUSPENDED, interrupt, reach_recorded, until_recorded
from harness import by_rank, came_about, patience, slow, states
from image_files import from_files, kill_with_snapshots, reach_written
from on_nodes import agents, lose
from settings import EVERY, TOGETHER, TOLERATE_NODE, WAVES

HEAT = ("400", "400", "5000")

BLOCKING = ["--protocol", "blocking", *EVERY]


def nodes_of(result):
    """The nodes that ranks have run on."""
    return {event.get("node") for event in result.of("started")}


@pytest.mark.parametrize("protocol", ["auto", *map(slow, TOGETHER)])
@pytest.mark.parametrize("others", [slow(()), slow(("--nodes", "1")), ("--nodes", "3", "-ppn", "1"), slow(("-hosts", "localhost"))])
def test_a_power_cut_loses_what_came_after_the_last_wave(jobs, chain, program, rng, others, protocol):
    """All agents, all ranks and the launcher at once; then the job is on the same nodes, on fewer or on more."""
    calm = jobs.calm(4, *program("heat"), *HEAT)
    job = chain.start(4, *program("heat"), *HEAT, options=["--nodes", "2", *EVERY], protocol=protocol)
    reach_recorded(job, 2)
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


@pytest.mark.parametrize("how", ["suspended", "interrupted"])
@pytest.mark.parametrize("protocol", [*map(slow, WAVES)])
def test_a_job_of_one_node_goes_on_on_several(jobs, chain, program, protocol, how):
    calm = jobs.calm(4, *program("heat"), *HEAT)
    job = chain.start(4, *program("heat"), *HEAT, options=EVERY, protocol=protocol)
    reach_recorded(job)
    assert chain.suspend() if how == "suspended" else interrupt(job, "launcher")
    chain.resume(options=["--nodes", "2"])
    assert nodes_of(chain.end()) == {"0", "1"}
    assert chain.out == calm.out


def again_and_again(jobs, chain, command, arguments, protocol, rng, rounds):
    """Launcher, an agent, everything or a rank, at random moments, and suspensions; each time on other nodes. What was done."""
    options = ["--nodes", rng.choice("1234"), "--checkpoint-every", rng.choice(["50ms", "200ms"])]
    job = chain.start(4, *command, *arguments, options=options, protocol=protocol)
    done = []
    for _ in range(rounds):
        if not until_recorded(job):
            break
        time.sleep(rng.uniform(0, 0.3))
        if rng.random() < 0.3:
            job.kill([rng.randrange(4)])
            done.append("rank")
        if rng.random() < 0.3 and len(left := agents(job)) > 1:
            os.kill(rng.choice(left), signal.SIGKILL)
            done.append("node")
        done.append(rng.choice(["suspend", "launcher", "everything", "everything"]))
        if not (chain.suspend() if done[-1] == "suspend" else interrupt(job, done[-1])):
            break
        if not list(chain.images.glob("*/suspended")):
            pytest.skip("its program had just ended when it was killed")
        done.append(nodes := rng.choice("1234"))
        job = chain.resume(chain.directory, options=["--nodes", nodes])
    return job, done


def killed_and_compared(jobs, chain, program, rng, name, protocol, rounds):
    entry = BY_NAME[name]
    calm_file, file = jobs.directory / "calm", jobs.directory / "result"
    calm = jobs.calm(4, *program(name), *arguments(entry, True, calm_file))
    first = len(chain.runs)
    job, done = again_and_again(jobs, chain, program(name), arguments(entry, True, file), protocol, rng, rounds)
    print(f"{name} {protocol}: {' '.join(done)}")
    result = job.wait(300).ok()
    out = b"".join(run.out.read_bytes() for run in chain.runs[first:])
    assert by_rank(out) == by_rank(calm.out), result.describe()
    assert not entry.result or file.read_bytes() == calm_file.read_bytes()
    assert not list(chain.images.iterdir())


@pytest.mark.parametrize("protocol", ["auto", *map(slow, TOGETHER)])
@pytest.mark.parametrize("name", ["master_worker", slow("cg"), slow("heat"), slow("messages")])
def test_again_and_again(jobs, chain, program, rng, name, protocol):
    killed_and_compared(jobs, chain, program, rng, name, protocol, 5)


@pytest.mark.soak
@pytest.mark.parametrize("protocol", WAVES)
@pytest.mark.parametrize("name", ["master_worker", "cg", "heat", "messages", "numpy_cg.py"])
def test_hundreds_of_times(jobs, chain, program, rng, request, name, protocol):
    for _ in range(request.config.option.rounds):
        killed_and_compared(jobs, chain, program, rng, name, protocol, 12)


@pytest.mark.parametrize("protocol", [*map(slow, WAVES)])
def test_images_on_one_file_system_need_no_partner(jobs, chain, program, rng, protocol):
    """A lost node's ranks begin from files that all nodes see, and nothing is sent for that."""
    calm = jobs.calm(3, *program("heat"), *HEAT)
    options = ["--nodes", "3", "--lease", "2s", *EVERY]
    job = chain.start(3, *program("heat"), *HEAT, options=options, protocol=protocol)
    for loss in range(2):
        reach_recorded(job, 2 * loss + 2)
        os.kill(rng.choice(agents(job)), signal.SIGKILL)
        job.reach(lambda: len([event for event in job.events if event["event"] == "returned"]) > loss)  # noqa: B023
    result = chain.end()
    assert all(event["wave"] > 0 for event in result.of("returned")), result.describe()
    assert chain.out == calm.out


@pytest.mark.parametrize("by", ["command", "SIGTERM"])
@pytest.mark.parametrize("protocol", ["pessimistic", *map(slow, ["causal", *WAVES])])
def test_it_is_suspended_and_goes_on_elsewhere(jobs, chain, program, protocol, by):
    calm = jobs.calm(4, *program("heat"), *HEAT)
    job = chain.start(4, *program("heat"), *HEAT, options=["--nodes", "2", "--grace", "20s"], protocol=protocol)
    job.opens_mpi()
    if by == "command":
        assert chain.suspend()
    else:
        job.process.terminate()
        assert job.wait(lets_go=False).code == SUSPENDED
    chain.resume(options=["--nodes", "3", "-ppn", "2"])
    result = chain.end()
    assert nodes_of(result) == {"0", "1"}, "two ranks are on each node"
    assert chain.out == calm.out


def test_a_notice_to_resurgo_run_suspends_the_job(jobs, chain, program):
    """It cannot leave its machine."""
    calm = jobs.calm(4, *program("heat"), *HEAT)
    options = ["--nodes", "2", "--grace", "20s", "--preempt-signal", "USR2"]
    job = chain.start(4, *program("heat"), *HEAT, options=options, protocol="blocking")
    job.opens_mpi()
    job.process.send_signal(signal.SIGUSR2)
    assert job.wait(lets_go=False).code == SUSPENDED
    chain.resume(options=["--nodes", "2"])
    chain.end()
    assert chain.out == calm.out


@pytest.mark.parametrize("protocol", ["auto", slow("blocking")])
def test_each_node_keeps_its_images(jobs, chain, program, own_disks, protocol):
    """Of two nodes with disks of their own, and a third: the images are found where they are, and sent to where ranks go on."""
    launcher, place, disks = own_disks
    chain.images = place
    calm = jobs.calm(4, *program("heat"), *HEAT)
    options = ["-hosts", "a.invalid:2,b.invalid:2", *launcher, *EVERY]
    job = chain.start(4, *program("heat"), *HEAT, options=options, protocol=protocol)
    reach_recorded(job)
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
    # Agents of other machines may still be tidying up when the launcher has ended.
    places = [place, disks / "a.invalid", disks / "c.invalid"]
    end = time.monotonic() + patience(10)
    while (left := [path for where in places for path in where.iterdir()]) and time.monotonic() < end:
        time.sleep(0.1)
    assert not left


def test_agents_of_a_former_run_are_ended_first(jobs, chain, program, own_disks):
    """They stand still, and so do not hear that the launcher has died; their ranks run."""
    launcher, place, _ = own_disks
    chain.images = place
    calm = jobs.calm(4, *program("heat"), *HEAT)
    hosts = ["-hosts", "a.invalid:2,b.invalid:2", *launcher]
    job = chain.start(4, *program("heat"), *HEAT, options=[*hosts, *EVERY])
    reach_recorded(job)
    former = [*agents(job), *job.lives().values()]
    for agent in agents(job):
        assert job.hit(agent, signal.SIGSTOP)
    job.process.kill()
    job.process.wait()
    chain.resume(options=hosts)
    chain.last.opens_mpi()
    assert not [pid for pid in former if states(pid)]
    chain.last.wait().ok()
    assert chain.out == calm.out


def test_an_image_that_no_node_has_is_named(jobs, chain, program, own_disks):
    launcher, place, disks = own_disks
    chain.images = place
    job = chain.start(2, *program("heat"), *HEAT, options=["-hosts", "a.invalid,b.invalid", *launcher, *BLOCKING])
    reach_recorded(job)
    assert interrupt(job, "everything")
    for host in ("a", "b"):
        for path in (disks / f"{host}.invalid").glob("*/rank-1.image-*"):
            path.unlink()
    told = chain.resurgo("resume", *["-hosts", "a.invalid,b.invalid", *launcher], chain.directory)
    assert told.code == 1 and told.errors.count("\n") == 1, told.describe()
    assert "of rank 1 is in" in told.errors and "rank-1.image-" in told.errors and "of node b.invalid" in told.errors
    chain.resurgo("rm", chain.directory).ok()


def test_a_directory_that_cannot_be_used_is_named_with_its_node(jobs, chain, program, own_disks):
    launcher, place, disks = own_disks
    (disks / "b.invalid.mount").write_text(f"mount -t tmpfs -o ro none {place}")
    options = ["-hosts", "a.invalid,b.invalid", *launcher, "--protocol", "blocking", "--checkpoint-dir", place]
    told = chain.resurgo("run", *options, *program("hello"))
    assert told.code == 1 and told.errors.count("\n") == 1, told.describe()
    assert "node b.invalid: cannot keep image files in" in told.errors and "Read-only file system" in told.errors
    assert not list(place.iterdir()), "nothing is left of it here"


@pytest.mark.slow
def test_a_full_disk_of_one_node_costs_images_only(jobs, chain, program, own_disks):
    launcher, place, disks = own_disks
    (disks / "b.invalid.mount").write_text(f"mount -t tmpfs -o mode=700,size=2m none {place}")
    chain.images = place
    calm = jobs.calm(2, *program("heat"), *HEAT)
    job = chain.start(2, *program("heat"), *HEAT, options=["-hosts", "a.invalid,b.invalid", *launcher, *BLOCKING])
    result = job.wait().ok()
    assert not result.of("wave_recorded"), result.describe()
    came_about(result.of("image_not_written"), result)
    assert chain.out == calm.out and not list(place.iterdir())


@pytest.mark.parametrize("protocol", ["pessimistic", slow("causal"), slow("hierarchical")])
@pytest.mark.parametrize("disks", [slow("one"), "own"])
def test_a_lost_node_takes_back_its_own_ranks(jobs, program, rng, kills, tmp_path, request, disks, protocol):
    """From images in files, with the logs that lie beside: all nodes see them, or another one has a copy."""
    nodes, place = 3, tmp_path / "images"
    if disks == "own":
        launcher, place, _ = request.getfixturevalue("own_disks")
        nodes = ["-hosts", "a.invalid:2,b.invalid:1,c.invalid:1", *launcher]
    result = lose(jobs, program, rng, kills, "cg", protocol, nodes, [*TOLERATE_NODE, *EVERY, "--checkpoint-dir", place])
    if protocol != "hierarchical":
        assert not result.of("returned") or any(event["wave"] == 0 for event in result.of("returned")), result.describe()
    assert not list(place.iterdir())


@pytest.mark.parametrize("protocol", [slow("pessimistic"), slow("causal"), "hierarchical"])
def test_a_rank_without_its_copy_begins_from_its_file(jobs, program, rng, tmp_path, protocol):
    calm = jobs.calm(4, *program("heat"), *HEAT)
    options = ["--nodes", "2", "--checkpoint-dir", tmp_path / "images", *EVERY]
    job = jobs.start(4, *program("heat"), *HEAT, options=options, protocol=protocol)
    rank = rng.randrange(4)
    reach_written(job, rank)
    kill_with_snapshots(job, rank)
    result = job.wait().ok()
    came_about(from_files(result), result)
    assert result.out == calm.out
