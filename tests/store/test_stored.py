# SPDX-License-Identifier: Apache-2.0
"""Recorded waves are copied into places (--store): a job goes on from there when its machines and their disks are lost."""

import contextlib
import http.server
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
import urllib.parse
from pathlib import Path

import pytest

from catalogue import BY_NAME, arguments
from chains import HEAT, interrupt, reach_recorded
from harness import ROOT_ONLY, in_time, slow
from on_nodes import agents
from places import LONG, damage, serving, store
from settings import WAVES


@pytest.mark.parametrize("protocol", [WAVES[0], *map(slow, WAVES[1:])])
def test_a_job_outlives_its_disks(jobs, stored, program, rng, protocol):
    """Twice, from any wave. At the end nothing is left in the place."""
    calm = jobs.calm(2, *program("heat"), *LONG)
    stored.start(2, *program("heat"), *LONG, protocol=protocol)
    for _ in range(2):
        stored.reach_stored(rng.randint(1, 3))
        time.sleep(rng.uniform(0, 0.1))
        last = stored.stored()[-1]
        assert stored.loses_all()
        job = stored.go_on()
        job.reach_event("resumed")
        stored.last.reach(lambda: stored.last.result(0).of("started"), what="ranks")
        assert min(event["image"] for event in stored.last.result(0).of("started")) >= last
    stored.end()
    assert stored.is_complete(calm)
    assert not list(stored.place.iterdir())


@pytest.mark.parametrize("name", [slow("numpy_cg.py"), "master_worker", slow("messages"), slow("cg")])
def test_programs_end_with_the_same_answer(jobs, stored, program, rng, tmp_path, name):
    entry = BY_NAME[name]
    files = [tmp_path / "calm", tmp_path / "disturbed"]
    calm = jobs.calm(3, *program(name), *arguments(entry, True, files[0]))
    stored.start(3, *program(name), *arguments(entry, True, files[1]), protocol=rng.choice(WAVES[:3]))
    for _ in range(3):
        if not stored.until_stored() or not stored.loses_all():
            break
        stored.go_on()
    stored.last.wait().ok()
    seen = b"".join(run.out.read_bytes() for run in stored.runs)
    assert set(seen.splitlines()) == set(calm.out.splitlines())
    assert not entry.result or files[0].read_bytes() == files[1].read_bytes()
    assert not list(stored.place.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("protocol", [slow("auto"), slow("blocking"), "chandy-lamport"])
def test_other_nodes_go_on(jobs, stored, program, protocol):
    """Each node copies its own files. Other nodes, and another number of them, go on."""
    calm = jobs.calm(4, *program("heat"), *HEAT)
    stored.start(4, *program("heat"), *HEAT, options=["--nodes", "2"], protocol=protocol)
    stored.reach_stored(2)
    assert stored.loses_all()
    stored.go_on(options=["--nodes", "4", "-ppn", "1"])
    result = stored.end()
    assert {event["node"] for event in result.of("started")} == {"0", "1", "2", "3"}
    assert stored.is_complete(calm) and not list(stored.place.iterdir())


@pytest.mark.slow
def test_a_node_is_lost_while_it_copies(jobs, stored, program, rng):
    calm = jobs.calm(4, *program("heat"), *LONG)
    options = ["--nodes", "3", "--lease", "10s"]
    job = stored.start(4, *program("heat"), *LONG, options=options, more_of_it=";rate=4M", protocol="blocking")
    reach_recorded(job, 2)
    time.sleep(rng.uniform(0, 0.3))
    os.kill(rng.choice(agents(job)), signal.SIGKILL)
    stored.reach_stored(2)
    assert stored.loses_all()
    stored.go_on()
    stored.end()
    assert stored.is_complete(calm)


@pytest.mark.parametrize("protocol", ["auto", slow("blocking")])
def test_a_suspended_job_is_in_its_place(jobs, stored, program, protocol):
    calm = jobs.calm(2, *program("heat"), *LONG)
    job = stored.start(2, *program("heat"), *LONG, protocol=protocol, more_of_it=";every=1000")
    reach_recorded(job, 2)
    assert stored.suspend() and len(stored.stored()) == 1
    shutil.rmtree(stored.images)
    stored.go_on()
    stored.end()
    assert stored.out == calm.out and not list(stored.place.iterdir())


def test_what_is_kept_and_how_often(jobs, stored, program):
    stored.start(2, *program("heat"), *LONG, options=["--checkpoint-keep", "--stats"], more_of_it=";every=3;keep=1", protocol="blocking")
    stored.reach_stored(3)
    result = stored.last.wait().ok()
    waves = stored.stored()
    recorded = [event["wave"] for event in result.of("wave_recorded")]
    assert recorded.index(waves[0]) >= 2 and 3 * len(waves) <= len(recorded), (waves, recorded)
    (own,) = stored.place.iterdir()
    assert len(list((own / "generations").iterdir())) == 1
    line = next(line for line in result.errors.splitlines() if stored.shown in line and "went there" in line)
    assert f"{len(waves)} wave" in line and f"wave {waves[-1]} is there since" in line, line


def test_a_damaged_wave_is_passed_over(jobs, stored, program):
    """The one before is whole. Later waves do not rely on what is damaged."""
    calm = jobs.calm(2, *program("heat"), *LONG)
    stored.start(2, *program("heat"), *LONG, protocol="blocking")
    stored.reach_stored(3)
    waves = stored.stored()
    assert stored.loses_all()
    (own,) = stored.place.iterdir()
    before, newest = sorted((own / "generations").iterdir())[-2:]
    for chunk in (own / "chunks").iterdir():
        if chunk.stat().st_mtime_ns > before.stat().st_mtime_ns:
            damage(chunk)
    stored.go_on()
    stored.reach_stored()
    assert stored.loses_all()
    stored.go_on()
    result = stored.end()
    errors = stored.runs[1].result(0).errors
    assert "it is damaged" in errors and f"wave {int(newest.name.split('-')[0])} of" not in errors, errors
    assert min(event["image"] for event in result.of("started")) >= waves[0]
    assert stored.is_complete(calm)


def test_a_checkpoint_server_is_killed_while_it_takes_waves(jobs, stored, program, rng, tmp_path):
    """The job is none the wiser. Both places are read: chunks of the one that lacks some come from the other."""
    calm = jobs.calm(2, *program("heat"), *LONG)
    with serving(tmp_path / "server") as server:
        directory = stored.shown
        stored.shown = f"{server.place};every=2,{directory};every=3"
        stored.start(2, *program("heat"), *LONG, protocol=rng.choice(WAVES))
        for _ in range(3):
            stored.reach_stored(len(stored.stored()) + 1)
            server.kill()
            time.sleep(rng.uniform(0, 0.5))
            server.start()
        stored.reach_stored(len(stored.stored()) + 1)
        assert stored.loses_all()
        (own,) = stored.place.iterdir()
        for chunk in rng.sample(sorted((own / "chunks").iterdir()), 3):
            damage(chunk)
        stored.go_on()
        stored.end()
        assert stored.is_complete(calm)
        assert not list(stored.place.iterdir()) and store("ls", server.place).count("\n") <= 1


def test_what_is_stored_cannot_be_read_without_the_key(jobs, stored, program, tmp_path):
    keys = [tmp_path / "key", tmp_path / "other"]
    for number, key in enumerate(keys):
        key.write_text(f"{number}" * 64)
        key.chmod(0o600)
    calm = jobs.calm(2, *program("heat"), *LONG)
    stored.start(2, *program("heat"), *LONG, options=["--store-key", keys[0]], protocol="blocking")
    stored.reach_stored(2)
    assert stored.loses_all()
    (own,) = stored.place.iterdir()
    assert not any(b"heat" in path.read_bytes() for path in own.rglob("*") if path.is_file())
    assert "--store-key" in stored.refused() and "another key" in stored.refused("--store-key", keys[1])
    stored.go_on("--store-key", keys[0])
    stored.end()
    assert stored.is_complete(calm)
    keys[0].chmod(0o644)
    result = jobs.run(1, *program("hello"), options=["--checkpoint-dir", stored.images, "--store", stored.shown, "--store-key", keys[0]])
    assert result.code == 2 and "others may use this key" in result.errors, result.describe()


def test_a_place_that_goes_away_costs_a_warning(jobs, stored, program):
    calm = jobs.calm(2, *program("heat"), *HEAT)
    job = stored.start(2, *program("heat"), *HEAT, protocol="blocking")
    stored.reach_stored()
    (own,) = stored.place.iterdir()
    (own / "chunks").rename(own / "away")
    (own / "chunks").write_text("")
    job.reach_event("wave_not_flushed")
    result = job.wait().ok()
    assert result.out == calm.out and len(re.findall("warning: wave .* could not be stored: ", result.errors)) == 1, result.describe()


def test_a_slow_place_is_told_once(jobs, stored, program):
    calm = jobs.calm(2, *program("heat"), *LONG)
    job = stored.start(2, *program("heat"), *LONG, more_of_it=";rate=200K", protocol="blocking")
    job.reach(lambda: b"waves come faster than dir:" in job.err.read_bytes(), what="the warning")
    result = job.wait().ok()
    assert result.out == calm.out and result.errors.count("waves come faster than dir:") == 1, result.describe()
    in_time(result.seconds < 60, result.describe())


@ROOT_ONLY
def test_a_full_place_keeps_what_it_has(jobs, stored, program):
    stored.place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m,mode=700", "tmpfs", stored.place], check=True)
    try:
        calm = jobs.calm(2, *program("heat"), *LONG)
        job = stored.start(2, *program("heat"), *LONG, more_of_it=";keep=1", protocol="blocking")
        stored.reach_stored()
        filler = stored.place / ".filler"
        with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))
        job.reach_event("wave_not_flushed")
        assert "there is no space left" in job.result(0).of("wave_not_flushed")[0]["reason"]
        assert stored.loses_all()
        filler.unlink()
        stored.go_on()
        stored.end()
        assert stored.is_complete(calm)
    finally:
        subprocess.run(["umount", stored.place], check=True)


def test_a_lost_place_does_not_keep_a_job_from_going_on(jobs, stored, program, tmp_path):
    """Of two places one is lost with the disks. What is written to the other one from then on is whole."""
    other = tmp_path / "other" / "place"
    other.parent.mkdir()
    calm = jobs.calm(2, *program("heat"), *LONG)
    stored.start(2, *program("heat"), *LONG, options=["--store", f"dir:{other}"], protocol="blocking")
    stored.last.reach(lambda: len({event["place"] for event in stored.last.events if event["event"] == "wave_flushed"}) == 2, what="both")
    stored.reach_stored() and stored.loses_all()
    shutil.rmtree(other.parent)
    for _ in range(2):
        stored.go_on()
        if not stored.until_stored(2) or not stored.loses_all():
            break
    stored.go_on()
    stored.end()
    assert stored.is_complete(calm) and not list(stored.place.iterdir())
    errors = stored.runs[1].result(0).errors
    assert len(re.findall("warning: wave .* could not be stored: dir:.*/other/place: there is no such place", errors)) == 1, errors


@pytest.mark.slow
def test_the_key_of_a_server_is_found_again(jobs, stored, program, tmp_path):
    """Named from the first run's directory; the later one, from the environment, has another."""
    calm = jobs.calm(2, *program("heat"), *LONG)
    with serving(tmp_path / "server") as server:
        place, key = server.place.split(";key=")
        first = jobs.directory / f"job{jobs.number + 1}"
        stored.shown = f"{place};key={os.path.relpath(key, first)}"
        stored.start(2, *program("heat"), *LONG, protocol="blocking")
        stored.reach_stored()
        assert stored.loses_all()
        stored.shown = place
        stored.env["RESURGO_SERVER_KEY_FILE"] = key
        stored.go_on()
        stored.reach_stored()
        result = stored.end()
        assert stored.is_complete(calm) and "could not be stored" not in result.errors, result.describe()
        # In the environment it does not keep jobs from running.
        result = jobs.run(1, *program("hello"), options=["--checkpoint-dir", stored.images, "--store", place], env=stored.env)
        assert result.ok()


def test_what_can_be_resumed_is_listed(jobs, stored, program, tmp_path):
    stored.start(2, *program("heat"), *LONG, protocol="blocking")
    stored.reach_stored()
    assert interrupt(stored.last, "everything")
    (own,) = stored.place.iterdir()
    (one,) = json.loads(stored.resurgo("ps", "--json", "--store", stored.shown).ok().text)
    assert (one["job"], one["number"], one["ranks"]) == (own.name, stored.last.process.pid, 2)
    assert one["wave"] >= stored.stored()[-1] and 0 <= one["seconds_since_wave"] < 60 and one["bytes"] > 100_000
    lines = stored.resurgo("ps", f"--store={stored.shown}").ok().text.splitlines()
    assert len(lines) == 2 and own.name in lines[1] and stored.shown in lines[1], lines
    told = stored.resurgo("ps", "--store", f"{stored.shown},dir:{tmp_path}/none")
    assert told.code == 1 and own.name in told.text and "there is no such place" in told.errors, told.describe()
    assert stored.resurgo("ps", "--store", "ftp://x").code == 2
    for job in stored.images.iterdir():
        stored.resurgo("rm", job).ok()


def test_a_server_that_is_away_at_the_start_delays_nothing(jobs, stored, program, tmp_path):
    calm = jobs.calm(2, *program("heat"), *LONG)
    with serving(tmp_path / "server") as server:
        server.kill()
        stored.shown = server.place
        begun = time.monotonic()
        job = stored.start(2, *program("heat"), *LONG, protocol="blocking")
        job.reach_event("started")
        in_time((seconds := time.monotonic() - begun) < 10, f"{seconds} s")
        server.start()
        stored.reach_stored()
        result = stored.end()
    assert result.out == calm.out and len(re.findall("warning: server:", result.errors)) == 1, result.describe()
    assert "the job begins without it" in result.errors and "could not be stored" not in result.errors, result.describe()


def test_the_key_is_found_from_another_directory(jobs, stored, program, tmp_path):
    """It is named from the directory of the first run; the job goes on elsewhere, and seals with it."""
    key = tmp_path / "key"
    key.write_text("5" * 64)
    key.chmod(0o600)
    calm = jobs.calm(2, *program("heat"), *LONG)
    first = jobs.directory / f"job{jobs.number + 1}"
    stored.start(2, *program("heat"), *LONG, options=["--store-key", os.path.relpath(key, first)], protocol="blocking")
    stored.reach_stored()
    assert interrupt(stored.last, "everything")
    stored.resume(options=["--checkpoint-keep"])
    stored.reach_stored(2)
    result = stored.last.wait().ok()
    assert stored.is_complete(calm) and "could not be stored" not in result.errors
    assert "another key" not in store("ls", stored.shown, "--store-key", key) + store("ls", stored.shown)
    (own,) = stored.place.iterdir()
    assert not any(b"heat" in path.read_bytes() for path in own.rglob("*") if path.is_file())


class Bucket(http.server.BaseHTTPRequestHandler):
    """As much of S3 as places use. It knows one user."""

    protocol_version = "HTTP/1.1"
    user, objects = "Credential=tester/", {}

    def log_message(self, *_):
        pass

    def answer(self, code, body=b"", **headers):
        self.send_response(code)
        for name, value in {"Content-Length": len(body), "ETag": '"e"', "Last-Modified": "Fri, 27 Nov 2026 10:00:00 GMT", **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def serve(self):
        url = urllib.parse.urlsplit(self.path)
        name, query = urllib.parse.unquote(url.path), dict(urllib.parse.parse_qsl(url.query))
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.user not in self.headers.get("Authorization", ""):
            return self.answer(403, b"<Error><Code>AccessDenied</Code></Error>")
        if "list-type" in query:
            return self.answer(200, self.listed(name.rstrip("/") + "/", query.get("prefix", "")).encode())
        if self.command == "POST":
            keys = re.findall("<Key>(.*?)</Key>", content.decode())
            for key in keys:
                self.objects.pop(name.rstrip("/") + "/" + key, None)
            gone = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
            return self.answer(200, f"<DeleteResult>{gone}</DeleteResult>".encode())
        if self.command == "PUT":
            self.objects[name] = content
        elif self.command == "DELETE":
            self.objects.pop(name, None)
            return self.answer(204)
        elif name not in self.objects:
            return self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        return self.answer(200, b"" if self.command == "PUT" else self.objects[name])

    def listed(self, bucket, prefix):
        there = [name[len(bucket):] for name in sorted(self.objects) if name.startswith(bucket + prefix)]
        folders = {prefix + name[len(prefix):].split("/")[0] + "/" for name in there if "/" in name[len(prefix):]}
        when = "2026-11-27T10:00:00.000Z"
        objects = "".join(
            f"<Contents><Key>{name}</Key><LastModified>{when}</LastModified><ETag>e</ETag><Size>{len(self.objects[bucket + name])}</Size></Contents>"
            for name in there
            if "/" not in name[len(prefix):]
        )
        common = "".join(f"<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>" for folder in sorted(folders))
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{objects}{common}</ListBucketResult>"

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = serve


@contextlib.contextmanager
def bucket():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Bucket)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_job_goes_on_from_a_bucket(jobs, stored, program):
    """It is listed there, and goes on when its own disk is lost. At the end nothing is left."""
    calm = jobs.calm(2, *program("heat"), *LONG)
    with bucket() as port:
        secret = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "not-a-secret"}
        stored.env.update(secret, AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}")
        stored.shown = "s3://bucket/prefix"
        stored.start(2, *program("heat"), *LONG, protocol="blocking")
        stored.reach_stored()
        last = stored.stored()[-1]
        assert stored.loses_all()
        (one,) = json.loads(stored.resurgo("ps", "--json", "--store", stored.shown).ok().text)
        assert (one["number"], one["ranks"]) == (stored.last.process.pid, 2) and one["wave"] >= last
        stored.go_on()
        result = stored.end()
    assert stored.is_complete(calm) and not Bucket.objects
    assert all(event["image"] >= last for event in result.of("started")), result.describe()


def test_other_nodes_get_the_credentials(jobs, stored, program, tmp_path):
    """Agents whose environment is empty, as behind ssh. Neither command lines nor files have them."""
    calm = jobs.calm(2, *program("heat"), *LONG)
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift 2\nexec env -i PATH="$PATH" sh -c "$*"\n')
    ssh.chmod(0o755)
    with bucket() as port:
        secret = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "no-one-may-know-this"}
        stored.env.update(secret, AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}")
        stored.shown = "s3://bucket/prefix"
        options = ["-hosts", "localhost:1,127.0.0.1:1", "-launcher", "ssh", "-launcher-exec", ssh, "-genvnone", "-genvlist", "PATH,HOME,AWAITED"]
        job = stored.start(2, *program("heat"), *LONG, options=options, protocol="blocking")
        stored.reach_stored()
        for pid in [*agents(job), *job.processes()]:
            with contextlib.suppress(OSError):
                assert b"no-one-may" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        for pid in agents(job):
            assert b"AWS" not in Path(f"/proc/{pid}/environ").read_bytes()
        result = stored.end()
    assert result.out == calm.out and "could not be stored" not in result.errors and not Bucket.objects


def test_what_cannot_be(jobs, stored, program, tmp_path):
    """One line that says what to do."""
    for options, words in [
        (["--store", "dir:relative"], "write the whole path"),
        (["--store", "ftp://x"], "is no place"),
        (["--store", stored.shown, "--protocol", "pessimistic"], "run it with one of auto"),
        (["--store-key", "k"], "none is named"),
        (["--store", stored.shown, "--store", stored.shown], "is named twice"),
        (["--store", f"dir:{stored.images}/place"], "it is in --checkpoint-dir"),
    ]:
        result = jobs.run(1, *program("hello"), options=["--checkpoint-dir", stored.images, *options])
        assert result.code == 2 and result.errors.count("\n") == 1 and words in result.errors, result.describe()
    result = jobs.run(1, *program("hello"), options=["--store", stored.shown])
    assert result.code == 2 and "needs --checkpoint-dir" in result.errors, result.describe()
    (tmp_path / "file").write_text("")
    result = jobs.run(1, *program("hello"), options=["--checkpoint-dir", stored.images, "--store", f"dir:{tmp_path}/file"])
    assert result.code == 1 and result.errors.count("\n") == 1, result.describe()
    stored.place.mkdir()
    assert "has no jobs" in stored.refused()
    assert stored.refused("--into") and not stored.images.exists()


def test_which_job_is_meant(jobs, stored, program):
    for _ in range(2):
        stored.start(2, *program("heat"), *LONG, protocol="blocking")
        stored.reach_stored()
        assert interrupt(stored.last, "everything")
    names = sorted(path.name for path in stored.place.iterdir())
    assert all(name in stored.refused() for name in names)
    assert "has no job nothing" in stored.refused("nothing")
    assert "is there already" in stored.refused(names[0])
    assert "number of a wave" in stored.refused(f"{names[0]}@x")
    number = stored.last.process.pid
    calm = jobs.calm(2, *program("heat"), *LONG)
    stored.runs = stored.runs[1:]
    stored.go_on("--into", stored.images.with_name("elsewhere"), str(number))
    stored.last.wait().ok()
    assert stored.is_complete(calm)
    assert len(list(stored.place.iterdir())) == 1
    for own in stored.images.iterdir():
        stored.resurgo("rm", own).ok()
