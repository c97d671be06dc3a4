# SPDX-License-Identifier: Apache-2.0
"""`resurgo run --trace`: the trace has what ranks did before they died, and what followed, however the job ends."""

import json
import re
import signal
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

import harness
from perfetto import Trace
from settings import every
from survival import ring

pytestmark = pytest.mark.protocol("pessimistic")
RING = ["99", "kill", "0", "always"]


def lives(trace, rank):
    return [span["args"]["life"] for span in trace.of(f"rank {rank}", track="lives", category="life")]


def flows(trace, size):
    """Of the messages that both sides have noted: the moments at which they were sent and taken."""
    sent, taken = {}, {}
    for rank in range(size):
        sent |= {flow: span for span in trace.messages(rank, "send") for flow in span["flows"]}
        taken |= {flow: span for span in trace.messages(rank, "receive") for flow in span["ends"]}
    return [(sent[flow], taken[flow]) for flow in sent.keys() & taken.keys()]


def test_a_rank_is_killed_in_the_middle(jobs, program):
    file = jobs.directory / "trace"
    options = ["--trace", file, "--fault", "rank=1,messages=2000"]
    result = jobs.run(3, *program("crash"), *RING, "2000", options=options).ok()
    trace = Trace(file)
    (failure,) = trace.of("rank 1", name="failed")
    (replay,) = trace.of("rank 1", track="replay")
    (recovery,) = trace.of("rank 1", track="recovery")
    assert failure["args"]["cause"] == "killed by SIGKILL" and lives(trace, 1) == [1, 2]
    assert replay["category"] == "replay" and replay["args"]["complete"] and replay["begin"] > failure["begin"]
    assert recovery["begin"] == failure["begin"] and recovery["end"] >= replay["end"]
    (caught_up,) = result.of("caught_up")
    assert replay["args"]["deliveries"] == caught_up["deliveries"]
    # Messages before the death, repeated ones, and those of afterwards.
    before = [span for span in trace.messages(1) if span["begin"] < failure["begin"]]
    after = [span for span in trace.messages(1) if span["begin"] > failure["begin"]]
    repeated = trace.messages(1, category="replay")
    assert len(before) == 2000 and all(span["begin"] >= replay["end"] for span in after), len(before)
    assert all(replay["begin"] <= span["begin"] <= replay["end"] for span in repeated)
    assert len([span for span in repeated if span["name"].startswith("receive")]) == caught_up["deliveries"]
    sends = [span["args"]["number"] for span in trace.messages(1, "send to 2")]
    assert sends == list(range(1, len(sends) + 1)), "each message once, and none is missing"
    assert lives(trace, 0) == lives(trace, 2) == [1]
    pairs = flows(trace, 3)
    assert len(pairs) > 6000 and all(sent["begin"] <= taken["begin"] for sent, taken in pairs)
    assert all(sent["args"]["bytes"] == taken["args"]["bytes"] for sent, taken in pairs)


def test_a_job_that_fails_has_a_trace(jobs, program):
    file = jobs.directory / "trace"
    options = ["--trace", file, "--fault", "rank=1,messages=500"]
    result = jobs.run(3, *program("crash"), *RING, "100000", options=options, protocol="none")
    assert result.code != 0
    trace = Trace(file)
    assert trace.of("rank 1", name="failed") and not trace.of("rank 1", track="replay")
    assert len(trace.messages(1)) == 500 and trace.messages(0, "receive from 2"), "all that the dead rank did"
    assert trace.of("job", name="job_ended")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_job_that_the_user_ends_has_a_trace(jobs, program, number):
    file = jobs.directory / "trace"
    job = ring(jobs, program, 3, "started", options=["--trace", file, "--trace-memory", "64K"])
    job.says(b"iteration 50 ")
    job.process.send_signal(number)
    assert job.wait().code == 128 + number
    trace = Trace(file)
    for rank in range(3):
        assert trace.of(f"rank {rank}", name="started") and lives(trace, rank) == [1]
    assert any(trace.messages(rank) for rank in range(3))


def test_the_newest_records_stay(jobs, program):
    """When the ring is full the oldest records go, and the trace says how many."""
    file = jobs.directory / "trace"
    options = ["--trace", file, "--trace-memory", "64K"]
    jobs.run(2, *program("crash"), *RING, "5000", options=options).ok()
    trace = Trace(file)
    for rank in range(2):
        (missing,) = trace.of(f"rank {rank}", category="missing")
        noted = [span for span in trace.of(f"rank {rank}", track="MPI") if span["category"] != "missing"]
        assert len(noted) <= 1024 and missing["args"]["missing"] + len(noted) > 10000
        # A wait may have begun before: it is noted when it is over.
        assert missing["begin"] <= min(span["end"] or span["begin"] for span in noted)
        assert max(span["args"]["number"] for span in trace.messages(rank, "send")) >= 5000


@pytest.mark.protocol("blocking")
def test_all_ranks_return_to_a_wave(jobs, program):
    """The rings stay when the node memory is emptied, and a woken process goes on in its own."""
    file = jobs.directory / "trace"
    job = ring(jobs, program, 3, "wave_complete", options=[*every("100ms"), "--trace", file, "--trace-memory", "256M"])
    first = job.of("wave_complete")[-1]["wave"]
    job.kill([1])
    job.reach_event("returned")
    job.reach(lambda: job.of("wave_complete")[-1]["wave"] > first, what="a wave after the return")
    job.process.send_signal(signal.SIGTERM)
    job.wait()
    trace = Trace(file)
    (returned,) = trace.of("job", name="returned")
    (failure,) = trace.of("rank 1", name="failed")
    assert trace.of("job", track="waves")
    for rank in range(3):
        assert len(lives(trace, rank)) == 2
        messages = trace.messages(rank)
        assert any(span["begin"] < failure["begin"] for span in messages), "of the first life"
        assert any(span["begin"] > returned["begin"] for span in messages), "of the second"
        assert [span["args"]["life"] for span in trace.of(f"rank {rank}", track="MPI", category="life")] == [1, 2]


def test_a_rank_goes_on_from_its_image(jobs, program):
    file = jobs.directory / "trace"
    job = ring(jobs, program, 3, "checkpointed", options=[*every("60ms"), "--trace", file, "--trace-memory", "256M"])
    job.kill([1])
    job.reach_event("caught_up")
    job.process.send_signal(signal.SIGTERM)
    result = job.wait()
    trace = Trace(file)
    (began,) = (event for event in result.of("started") if event["rank"] == 1 and event["life"] == 2)
    # There is none if nothing has happened since the image.
    replays = [span["args"]["deliveries"] for span in trace.of("rank 1", track="replay")]
    assert began["image"] > 0 and sum(replays) == result.of("caught_up")[0]["deliveries"]
    images = [span["args"]["image"] for span in trace.of("rank 1", track="images")]
    assert began["image"] in images


@pytest.mark.gate("2")
@pytest.mark.parametrize("number", [1, 2])
def test_a_node_is_lost(jobs, program, number):
    """Of the lost node the trace has what had come to the dispatcher; the others are whole."""
    file = jobs.directory / "trace"
    options = ["--nodes", "3", "-ppn", "1", "--spares", "1", "--lease", "1s", "--trace", file, *every("100ms")]
    # Few messages: the ranks wait for the test after most of their steps.
    job = jobs.start(2, *program("crash"), *RING, "4000", protocol="blocking", options=options)
    job.reach_event("wave_complete")
    # The dispatcher asks for news each second.
    time.sleep(3)
    job.hit(harness.parent_of(job.lives()[1][0]), signal.SIGKILL)
    job.reach_event("node_lost")
    before = len(job.of("wave_complete"))
    job.reach(lambda: number == 1 or len(job.of("wave_complete")) >= before + 3)
    job.process.send_signal(signal.SIGTERM)
    job.wait()
    trace = Trace(file)
    (lost,) = trace.of("nodes", name="node_lost")
    nodes = {span["args"]["node"]: span for span in trace.of("nodes", category="node")}
    assert set(nodes) == {0, 1, 2} and nodes[1]["end"] <= lost["begin"] < nodes[0]["end"]
    assert any(span["begin"] < lost["begin"] for span in trace.messages(1)), "news came each second"
    assert any(span["begin"] < lost["begin"] for span in trace.messages(0))
    if number == 2:
        assert any(span["begin"] > lost["begin"] for span in trace.messages(1)), "of the spare node"


@pytest.mark.parametrize("is_traced", [True, False])
def test_a_resumed_job(jobs, program, is_traced):
    """A job that was traced can be traced again; another has no memory for it."""
    first, second = jobs.directory / "first", jobs.directory / "second"
    options = ["--checkpoint-dir", jobs.directory / "images", *(["--trace", first] if is_traced else [])]
    job = jobs.start(2, *program("crash"), *RING, "40000", options=options)
    job.says(b"iteration 3000 ")
    jobs.resurgo("suspend", job.process.pid).ok()
    assert job.wait(10).code == 75
    result = jobs.resurgo("resume", "--trace", second, job.process.pid)
    if not is_traced:
        assert result.code == 2 and "without it" in result.errors and result.errors.count("\n") == 1, result.describe()
        jobs.resurgo("kill", job.process.pid).ok()
        return
    result.ok()
    assert Trace(first).of("job", name="suspended")
    trace = Trace(second)
    for rank in range(2):
        numbers = [span["args"]["number"] for span in trace.messages(rank, "send")]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "the woken process goes on in a new ring"
        assert 3000 < numbers[0] < 40000 <= numbers[-1]


def test_a_file_that_cannot_be_written(jobs, program):
    for file, word in [("/nowhere/trace", "No such file"), ("/", "directory")]:
        result = jobs.run(2, *program("hello"), options=["--trace", file])
        assert result.code == 1 and result.errors.count("\n") == 1, result.describe()
        assert "--trace" in result.errors and word in result.errors and "hello" not in result.text
    result = jobs.run(2, *program("hello"), options=["--trace", "/dev/full"])
    assert result.ok().errors.count("--trace") == 1 and "No space left" in result.errors, result.describe()


def test_wrong_amounts(jobs, program):
    for amount in ("1K", "1T", "lots"):
        result = jobs.resurgo("run", "--trace-memory", amount, *program("hello"))
        assert result.code == 2 and result.errors.count("\n") == 1 and "--trace-memory" in result.errors


def of_calls(trace, rank, category="mpi"):
    return [span for span in trace.of(f"rank {rank}", category=category) if span["name"].startswith("MPI_")]


DIES = """
import os, signal, sys
from mpi4py import MPI
world = MPI.COMM_WORLD
for turn in range(50):
    world.allreduce(turn)
    if world.rank == 0:
        world.Send(bytearray(100), 1, tag=7)
    else:
        world.Recv(bytearray(100), 0, tag=7)
"""


def test_calls_have_names(jobs):
    """Also those of the life that has died, and of its replay."""
    file = jobs.directory / "trace"
    options = ["--trace", file, "--fault", "rank=1,messages=60"]
    jobs.run(2, harness.PYTHON, "-c", DIES, options=options).ok()
    trace = Trace(file)
    names = [[span["name"] for span in of_calls(trace, rank)] for rank in range(2)]
    assert names[0].count("MPI_Send") >= 50
    assert any(name.startswith("MPI_Init") for name in names[0]) and names[0][-1] == "MPI_Finalize"
    first, second = names[1].count("MPI_Recv"), len([s for s in of_calls(trace, 1, "replay") if s["name"] == "MPI_Recv"])
    assert first + second > 50 and second > 0, (first, second)
    (died,) = [span for span in of_calls(trace, 1) if span["args"].get("complete") is False]
    (failure,) = trace.of("rank 1", name="failed")
    assert died["end"] <= failure["begin"] and died["name"].startswith("MPI_")
    assert {span["args"]["tag"] for span in trace.messages(0, "send")} >= {7}
    sends = [span for span in of_calls(trace, 0) if span["name"] == "MPI_Send"]
    inside = [m for m in trace.messages(0, "send to 1") if m["args"].get("tag") == 7 and m["args"]["bytes"] == 100]
    assert inside
    for message in inside:
        assert any(call["begin"] <= message["begin"] <= call["end"] for call in sends)


@pytest.mark.gate("cg_mpif", "heat_f08", "mpiio")
@pytest.mark.parametrize("name", ["heat", "heat_f08", "cg_mpif", "rma_halo", "mpiio"])
def test_calls_of_languages_and_kinds(jobs, program, name):
    file = jobs.directory / "trace"
    command = [*program(name), *([jobs.directory / "data"] if name == "mpiio" else [])]
    calm = jobs.run(2, *command).ok()
    result = jobs.run(2, *command, options=["--trace", file, "--trace-memory", "64M"]).ok()
    assert result.code == calm.code
    names = {span["name"] for span in of_calls(Trace(file), 0)}
    expected = {"rma_halo": {"MPI_Win_fence", "MPI_Put"}, "mpiio": {"MPI_File_open", "MPI_File_close"}}
    assert names >= {"MPI_Finalize"} and (names & expected.get(name, names)), sorted(names)
    assert len(names) > 3, sorted(names)


@pytest.mark.protocol("none")
def test_calls_with_survivors(jobs, program):
    """The library of --ft is a layer above MPI, too: both are in the process."""
    file = jobs.directory / "trace"
    result = jobs.run(3, *program("ulfm_loop"), options=["--ft", "--trace", file, "--fault", "rank=1,messages=200"])
    trace = Trace(file)
    assert trace.of("rank 1", name="failed") or trace.of("rank 1", name="lost"), result.describe()
    for rank in (0, 2):
        assert any(span["name"] in ("MPI_Allreduce", "MPI_Barrier", "MPI_Init") for span in of_calls(trace, rank))


LATE = """
import os, sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
world.Barrier()
for _ in range(3):
    if world.rank == 0:
        time.sleep(0.05)
        world.Send(bytearray(100), 1)
    else:
        world.Recv(bytearray(100), 0)
"""


def test_a_report(jobs, program):
    file = jobs.directory / "trace"
    jobs.run(2, harness.PYTHON, "-c", LATE, options=["--trace", file]).ok()
    report = json.loads(jobs.resurgo("trace", "report", file, "--json").ok().text)
    late = [late for late in report["late_senders"] if late["call"] == "MPI_Recv"]
    (late,) = [late for late in late if (late["receiver"], late["sender"]) == (1, 0)]
    assert late["messages"] >= 3 and late["seconds"] > 0.1 >= 0 and late["longest_seconds"] <= late["seconds"]
    for rank in report["ranks"]:
        parts = [rank[f"{part}_seconds"] for part in ("computing", "mpi", "replay")]
        assert 0 < rank["waiting_seconds"] and sum(parts) <= rank["total_seconds"] * 1.001
    assert report["ranks"][1]["calls"]["MPI_Recv"]["calls"] == 3
    assert report["ranks"][1]["calls"]["MPI_Recv"]["seconds"] >= late["seconds"]
    assert report["failures"] == []
    text = jobs.resurgo("trace", "report", file).ok().text
    assert "rank 1 waited for rank 0" in text and "MPI_Recv" in text and "load balance" in text


def test_a_report_of_a_failure(jobs, program):
    file = jobs.directory / "trace"
    options = ["--trace", file, "--fault", "rank=1,messages=2000"]
    result = jobs.run(3, *program("crash"), *RING, "2000", options=options).ok()
    report = json.loads(jobs.resurgo("trace", "report", file, "--json").ok().text)
    (failure,) = report["failures"]
    (caught_up,) = result.of("caught_up")
    assert failure["rank"] == 1 and failure["life"] == 2 and failure["complete"]
    assert failure["cause"] == "killed by SIGKILL"
    assert failure["cost_seconds"] == pytest.approx(caught_up["lost_seconds"], abs=0.02)
    assert failure["begin_seconds"] + failure["replay_seconds"] <= failure["cost_seconds"]
    assert 0 < failure["replay_seconds"] == report["ranks"][1]["replay_seconds"]
    text = jobs.resurgo("trace", "report", file).ok().text
    assert "rank 1 killed by SIGKILL" in text and "of replay" in text


SVG = "{http://www.w3.org/2000/svg}"


class Picture:
    """What is drawn of each rank: class, places in the line (from 0 to 1000), and what a mouse is told."""

    def __init__(self, file):
        self.root = ElementTree.parse(file).getroot()
        assert self.root.tag == f"{SVG}svg"
        self.style = self.root.findtext(f"{SVG}style")
        groups = {group.get("id"): group for group in self.root.iter(f"{SVG}g") if group.get("id")}
        self.ranks = {int(name[5:]): self.drawn(group) for name, group in groups.items() if name.startswith("rank-")}
        self.shares = {int(name[7:]): self.drawn(group) for name, group in groups.items() if name.startswith("shares-")}
        self.texts = [text.text for text in self.root.iter(f"{SVG}text")]

    @staticmethod
    def drawn(group):
        paths = group.findall(f"{SVG}path")
        return [(path.get("class"), [float(at) for at in re.findall(r"M([\d.]+)", path.get("d"))], path.findtext(f"{SVG}title"))
                for path in paths]

    def of(self, rank, kind):
        """The places of what is of this class."""
        return [at for name, places, _ in self.ranks[rank] if name == kind for at in places]

    def told(self, rank, kind):
        return [title for name, _, title in self.ranks[rank] if name == kind]


def test_a_picture(jobs, program):
    """The killed rank has a failure, is dead, and repeats its work; the file that was there before is replaced."""
    file, out = jobs.directory / "trace", jobs.directory / "trace & more.svg"
    options = ["--trace", file, "--fault", "rank=1,messages=2000"]
    jobs.run(3, *program("crash"), *RING, "2000", options=options).ok()
    out.write_text("something else" * 100_000)
    report = json.loads(jobs.resurgo("trace", "report", file, "--json", "--picture", out).ok().text)
    picture = Picture(out)
    assert set(picture.ranks) == set(picture.shares) == {0, 1, 2}
    assert [text for text in picture.texts if text.startswith("rank ")] == 2 * ["rank 0", "rank 1", "rank 2"]
    assert "prefers-color-scheme: dark" in picture.style and any(text.endswith(" s") for text in picture.texts)
    (failure,) = report["failures"]
    (at,) = picture.of(1, "failed")
    assert at == pytest.approx(1000 * failure["at_seconds"] / report["seconds"], abs=2)
    assert "rank 1 killed by SIGKILL" in picture.told(1, "failed")[0]
    replays, deaths = picture.of(1, "replay"), picture.of(1, "dead")
    assert replays and deaths and at - 2 <= min(deaths) < min(replays), (at, deaths, replays)
    begins = 1000 * (failure["at_seconds"] + failure["begin_seconds"]) / report["seconds"]
    assert min(replays) == pytest.approx(begins, abs=3)
    assert [title.split(":")[0] for title in picture.told(1, "life")] == ["rank 1, life 1", "rank 1, life 2"]
    for rank in (0, 2):
        assert not any(picture.of(rank, kind) for kind in ("failed", "replay", "dead", "again"))
        assert picture.of(rank, "waiting") and len(picture.told(rank, "life")) == 1
    # The shares are those of the report.
    for rank in report["ranks"]:
        titles = {kind: title for kind, _, title in picture.shares[rank["rank"]]}
        share = float(re.search(r"([\d.]+) %", titles["computing"])[1])
        assert share == pytest.approx(100 * rank["computing_seconds"] / rank["total_seconds"], abs=0.1)
        assert ("replay" in titles) == (rank["rank"] == 1)
    text = jobs.resurgo("trace", "report", f"--picture={out}", file).ok().text
    assert "load balance" in text and Picture(out).ranks == picture.ranks


def test_a_picture_of_nodes_and_waves(jobs, program):
    file, out = jobs.directory / "trace", jobs.directory / "trace.svg"
    options = ["--nodes", "3", "-ppn", "1", "--spares", "1", "--lease", "1s", "--trace", file, *every("100ms")]
    job = ring(jobs, program, 2, "wave_complete", protocol="blocking", options=options)
    job.hit(harness.parent_of(job.lives()[1][0]), signal.SIGKILL)
    job.reach_event("node_lost")
    before = len(job.of("wave_complete"))
    job.reach(lambda: len(job.of("wave_complete")) >= before + 2, what="waves after the loss")
    job.process.send_signal(signal.SIGTERM)
    job.wait()
    jobs.resurgo("trace", "report", file, "--picture", out).ok()
    picture = Picture(out)
    assert "rank 0 on 0" in picture.texts and "rank 1 on 1, 2" in picture.texts, picture.texts
    (loss,) = [path for path in picture.root.findall(f"{SVG}path") if path.get("class") == "node-lost"]
    assert loss.findtext(f"{SVG}title").startswith("node 1 lost at")
    waves = [path.findtext(f"{SVG}title") for path in picture.root.findall(f"{SVG}path") if path.get("class") == "wave"]
    assert len(waves) >= 3 and all(re.match(r"wave \d+ complete at \d", title) for title in waves)
    for rank in range(2):
        assert len(picture.of(rank, "again")) == 1 and len(picture.told(rank, "life")) == 2
    assert picture.of(1, "dead"), "from the loss of its node until it began again"


def test_a_picture_of_images(jobs, program):
    file, out = jobs.directory / "trace", jobs.directory / "trace.svg"
    job = ring(jobs, program, 2, "checkpointed", options=[*every("60ms"), "--trace", file])
    job.process.send_signal(signal.SIGTERM)
    result = job.wait()
    jobs.resurgo("trace", "report", file, "--picture", out).ok()
    picture = Picture(out)
    for rank in range(2):
        images = [event["image"] for event in result.of("checkpointed") if event["rank"] == rank]
        titles = picture.told(rank, "shot")
        assert images and [int(re.match(rf"rank {rank}: image (\d+) at \d", title)[1]) for title in titles] == images


def test_a_picture_without_the_oldest_records(jobs, program):
    """The time of which nothing is known is neither computing nor anything else."""
    file, out = jobs.directory / "trace", jobs.directory / "trace.svg"
    jobs.run(2, *program("crash"), *RING, "5000", options=["--trace", file, "--trace-memory", "64K"]).ok()
    report = json.loads(jobs.resurgo("trace", "report", file, "--json", "--picture", out).ok().text)
    picture = Picture(out)
    for rank in report["ranks"]:
        parts = [rank[f"{part}_seconds"] for part in ("computing", "mpi", "unrecorded")]
        assert rank["unrecorded_seconds"] > 0 and sum(parts) == pytest.approx(rank["total_seconds"], rel=0.01)
        assert picture.of(rank["rank"], "unrecorded")


def test_a_picture_that_cannot_be_written(jobs, program):
    file = jobs.directory / "trace"
    jobs.run(2, *program("hello"), options=["--trace", file]).ok()
    before = file.read_bytes()
    for out, why in [("/nowhere/x.svg", "No such file"), ("/", "directory"), ("/dev/full", "No space left"), (file, "it is the trace")]:
        result = jobs.resurgo("trace", "report", file, "--picture", out)
        assert result.code == 2 and result.errors.count("\n") == 1 and not result.text, result.describe()
        assert f"--picture {out}: " in result.errors and why in result.errors
    assert file.read_bytes() == before
    for arguments in (["--picture"], ["--picture", "--json"]):
        result = jobs.resurgo("trace", "report", file, *arguments)
        assert result.code == 2 and result.errors.count("\n") == 1 and "--picture needs the file" in result.errors


@pytest.mark.parametrize("arguments", [[], ["show"], ["report"], ["report", "--xml", "x"], ["report", "/nowhere"], ["report", "/proc/self/status"]])
def test_what_is_no_trace(jobs, arguments):
    result = jobs.resurgo("trace", *arguments)
    assert result.code == 2 and result.errors.count("\n") == 1 and result.errors.startswith("resurgo: trace: "), result.describe()


def test_the_agent_is_killed(jobs, program):
    """The rings are gone with it. The trace has what had come to the dispatcher."""
    file = jobs.directory / "trace"
    job = ring(jobs, program, 2, "started", options=["--trace", file])
    job.says(b"iteration 50 ")
    (agent,) = [pid for pid in job.processes() if b"resurgo agent" in command_line(pid)]
    time.sleep(3)  # the dispatcher asks each second
    job.hit(agent, signal.SIGKILL)
    assert job.wait().code == 1
    trace = Trace(file)
    assert all(trace.messages(rank) and of_calls(trace, rank) for rank in range(2))
    assert trace.of("job", name="error") and lives(trace, 0) == lives(trace, 1) == [1]


def command_line(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")


THREADS = """
import threading
from mpi4py import MPI
world = MPI.COMM_WORLD
comms = [world.Dup() for _ in range(2)]
def turn(comm):
    for _ in range(20):
        comm.Barrier()
other = threading.Thread(target=turn, args=[comms[1]])
other.start()
turn(comms[0])
other.join()
"""


@pytest.mark.protocol("none")
def test_threads_have_tracks_of_their_own(jobs):
    file = jobs.directory / "trace"
    jobs.run(2, harness.PYTHON, "-c", THREADS, options=["--trace", file]).ok()
    trace = Trace(file)
    for rank in range(2):
        for track in ("MPI", "MPI, thread 1"):
            assert len(trace.of(f"rank {rank}", track=track, name="MPI_Barrier")) == 20
        assert not trace.of(f"rank {rank}", category="missing")
