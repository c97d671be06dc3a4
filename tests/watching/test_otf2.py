# SPDX-License-Identifier: Apache-2.0
"""`python -m resurgo.otf2`: the archive has what the trace has, as OTF2's own reader sees it."""

import subprocess

import pytest

import harness
from harness import PYTHON
from perfetto import Trace

otf2 = pytest.importorskip("otf2", reason="there is no wheel of it for this Python")


def convert(*words):
    command = [PYTHON, "-m", "resurgo.otf2", *words]
    environment = {**harness.environment(), "PYTHONPATH": harness.ROOT / "python"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=harness.patience(60), check=False)


def test_an_archive_has_what_the_trace_has(jobs, program):
    file, archive = jobs.directory / "job.pftrace", jobs.directory / "job.otf2"
    jobs.run(3, *program("heat"), 40, 40, 30, options=["--trace", file, "--fault", "rank=1,messages=60"], protocol="pessimistic").ok()
    converted = convert(file)
    assert converted.returncode == 0 and str(archive / "traces.otf2") in converted.stdout, converted
    trace = Trace(file)
    told = {rank: {"sent": [], "taken": [], "calls": []} for rank in range(3)}
    within, times = {}, {}
    with otf2.reader.open(str(archive / "traces.otf2")) as reader:
        assert reader.timer_resolution == 1_000_000_000
        for location, event in reader.events:
            assert event.time >= times.get(location.name, 0)
            times[location.name] = event.time
            owner, track = location.name.split(": ")
            assert location.group.name == owner
            stack = within.setdefault(location.name, [])
            kind = type(event).__name__
            if kind == "Enter":
                stack.append(event.region.name)
            elif kind == "Leave":
                assert stack.pop() == event.region.name
                if track == "MPI" and event.region.name.startswith("MPI_"):
                    told[int(owner.split()[1])]["calls"].append(event.region.name)
            elif kind == "MpiSend":
                told[int(owner.split()[1])]["sent"].append((event.time, event.receiver, event.msg_length))
            else:
                assert kind == "MpiRecv"
                told[int(owner.split()[1])]["taken"].append((event.time, event.sender, event.msg_length))
    assert not any(within.values())
    for rank, found in told.items():
        for name, kind in [("sent", "send"), ("taken", "receive")]:
            messages = [(span["begin"], span["args"]["peer"], span["args"]["bytes"]) for span in trace.messages(rank, kind)]
            assert found[name] == messages and len(messages) > 30
        calls = [span for span in trace.of(f"rank {rank}", track="MPI") if span["name"].startswith("MPI_")]
        named = [span["name"] + " (replay)" * (span["category"] == "replay") for span in calls]
        assert sorted(found["calls"]) == sorted(named)
    assert any(name.endswith("(replay)") for name in told[1]["calls"])


def test_what_is_no_trace_is_named(tmp_path):
    file, other = tmp_path / "trace", tmp_path / "there"
    other.mkdir()
    for content in [b"", b"\x0a\x05ab", b"nothing of the kind", bytes(range(256))]:
        file.write_bytes(content)
        refused = convert(file, tmp_path / "new")
        assert refused.returncode == 1 and "it is no trace of resurgo run --trace" in refused.stderr + refused.stdout, (content, refused)
        assert "Traceback" not in refused.stderr and not (tmp_path / "new").exists()
    assert "name another directory" in convert(file, other).stderr
    assert "No such file" in convert(tmp_path / "missing", tmp_path / "new").stderr
