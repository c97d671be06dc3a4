# SPDX-License-Identifier: Apache-2.0
"""Places where images are kept beyond a job's machines: nothing that counts is ever half, and all comes back as it was."""

import contextlib
import os
import re
import socket
import subprocess
import threading
import time

import pytest

import harness
from harness import ROOT_ONLY
from places import check, contents, files, serving, store


class S3:
    """An S3 server of others, with one bucket, always at the same port."""

    def __init__(self, directory):
        self.directory, self.process = directory, None
        (directory / "bucket").mkdir(parents=True)
        self.port = harness.free_port()
        self.start()

    @property
    def environment(self):
        return {
            "AWS_ACCESS_KEY_ID": "tester",
            "AWS_SECRET_ACCESS_KEY": "not-a-secret",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
        }

    def start(self):
        command = [harness.DEPS / "tools/bin/s3s-fs", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--access-key", "tester", "--secret-key", "not-a-secret", self.directory]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            time.sleep(0.05)
        raise AssertionError("the S3 server does not start")

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def s3(tmp_path, monkeypatch):
    if not (harness.DEPS / "tools/bin/s3s-fs").exists():
        pytest.skip("no S3 server; scripts/setup.sh s3 builds one")
    server = S3(tmp_path / "s3")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    yield server
    server.kill()


def test_a_server_that_is_killed_all_the_time(tmp_path, rng, kills):
    """Transfers survive that, as long as the server comes back; killed clients leave nothing half."""
    sets = [files(tmp_path / str(number), rng) for number in range(2)]
    with serving(tmp_path / "place") as server:
        over = threading.Event()

        def storm():
            pause = harness.random.Random(rng.random())
            while not over.wait(pause.uniform(0.05, 0.6)):
                server.kill()
                server.start()

        killer = threading.Thread(target=storm)
        killer.start()
        try:
            for number in range(1, (kills or 10) + 1):
                command = ["put", server.place, "job", number, 0, sets[number % 2]]
                if number % 2:
                    store(*command)
                    continue
                client = subprocess.Popen([harness.RESURGO, "store", *map(str, command)], stdout=subprocess.DEVNULL)
                time.sleep(rng.uniform(0, 0.4))
                client.kill()
                client.wait()
        finally:
            over.set()
            killer.join()
        there = check(server.place, "job", {number: sets[number % 2] for number in range(100)}, tmp_path)
        assert set(range(1, (kills or 10) + 1, 2)) <= set(there)
        store("verify", server.place, "job")
        store("gc", server.place, "job")
        assert len(check(server.place, "job", {number: sets[number % 2] for number in range(100)}, tmp_path)) >= 2
        temporaries = [path for path in (tmp_path / "place/users").rglob(".tmp-*")]
        assert not temporaries


@ROOT_ONLY
@pytest.mark.parametrize("kind", ["dir", "server"])
def test_a_full_disk_is_said_and_nothing_is_lost(tmp_path, rng, kind):
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24M,mode=700", "none", disk], check=True)
    try:
        first, second = files(tmp_path / "1", rng), files(tmp_path / "2", rng, 20_000_000)
        with contextlib.ExitStack() as stack:
            place = f"dir:{disk}/place"
            if kind == "server":
                place = stack.enter_context(serving(disk / "place")).place
            store("put", place, "job", 1, 0, first)
            for _ in range(3):
                errors = store("put", place, "job", 2, 0, second, code=1)
                assert "no space left" in errors and "resurgo store" in errors, errors
            assert check(place, "job", {1: first}, tmp_path) == [1]
            store("rm", place, "job")
            store("put", place, "job", 3, 0, first)
            assert check(place, "job", {3: first}, tmp_path) == [3]
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize("kind", ["dir", "server"])
def test_two_writers_at_once(tmp_path, rng, kind):
    """Two nodes with the same chunks, and a remover."""
    sets = [files(tmp_path / str(number), rng) for number in range(2)]
    with contextlib.ExitStack() as stack:
        place = f"dir:{tmp_path}/place"
        if kind == "server":
            place = stack.enter_context(serving(tmp_path / "place")).place
        for round_ in range(4):
            command = [harness.RESURGO, "store", "put", place, "job"]
            both = [
                subprocess.Popen([*command, str(2 * round_ + node), str(node), sets[node]], stdout=subprocess.DEVNULL)
                for node in range(2)
            ]
            while any(one.poll() is None for one in both):
                store("gc", f"{place};keep=3", "job", code=None)
            assert [one.returncode for one in both] == [0, 0]
        there = check(place, "job", {number: sets[number % 2] for number in range(8)}, tmp_path)
        assert 7 in there or 6 in there
        known = store("put", place, "job", 9, 1, sets[1])
        assert " 0 sent" in known, known


def test_keys_and_quotas(tmp_path, rng):
    source = files(tmp_path / "1", rng)
    keys = {}
    for name, digit in ("ada", "1"), ("bob", "2"), ("eve", "3"):
        keys[name] = tmp_path / f"{name}.key"
        keys[name].write_text(f"{name}: {digit * 64}\n")
        keys[name].chmod(0o600)
    everybody = tmp_path / "keys"
    everybody.write_text(keys["ada"].read_text() + keys["bob"].read_text())
    everybody.chmod(0o600)
    with serving(tmp_path / "place", "--key-file", everybody, "--quota", "20M") as server:
        place = {name: f"server:127.0.0.1:{server.port};key={key}" for name, key in keys.items()}
        store("put", place["ada"], "job", 1, 0, source)
        assert store("ls", place["bob"]).count("\n") == 1
        assert "no user of this server has this key" in store("ls", place["eve"], code=1)
        assert "name the file with its key" in store("ls", f"server:127.0.0.1:{server.port}", code=1)
        assert "job" in store("ls", f"server:127.0.0.1:{server.port}", RESURGO_SERVER_KEY_FILE=keys["ada"])
        errors = store("put", place["ada"], "job", 2, 0, files(tmp_path / "2", rng, 30_000_000), code=1)
        assert "the quota is used up (ada may have 20.0 MiB)" in errors
        assert check(place["ada"], "job", {1: source}, tmp_path) == [1]
        keys["ada"].chmod(0o644)
        assert "chmod go=" in store("ls", place["ada"], code=1)


@pytest.mark.soak
@pytest.mark.parametrize("place", ["s3://bucket", "s3://bucket/some/prefix"])
def test_a_bucket(s3, tmp_path, rng, place):
    """Generations come back; only changes are sent; what nobody needs goes."""
    sets = [files(tmp_path / str(number), rng) for number in range(2)]
    expected = {number: sets[number % 2] for number in range(10)}
    (tmp_path / "key").write_text(rng.randbytes(32).hex())
    (tmp_path / "key").chmod(0o600)
    key = ["--store-key", tmp_path / "key"]
    for number in range(3):
        store("put", place, "job", number, 0, sets[number % 2], *key)
    assert " 0 sent" in store("put", place, "job", 3, 1, sets[1], *key)
    assert check(place, "job", expected, tmp_path, *key) == [0, 1, 2, 3]
    assert "another" in store("verify", place, "job", code=1) or "give the key" in store("verify", place, "job", code=1)
    assert re.search("removed 2 generations, [0-9]+ chunk", store("gc", place, *key))
    assert check(place, "job", expected, tmp_path, *key) == [2, 3]
    store("verify", place, "job", *key)
    store("rm", place, "job@2", *key)
    assert check(place, "job", expected, tmp_path, *key) == [3]
    store("rm", place, "job")
    assert store("ls", place).count("\n") == 1
    assert not [path for path in (s3.directory / "bucket").rglob("*") if path.is_file()]


@pytest.mark.soak
def test_a_bucket_that_is_not_there_or_not_ours(s3, tmp_path, rng, monkeypatch):
    source = files(tmp_path / "1", rng, 1000)
    # (This server makes buckets that something is put into.)
    errors = store("ls", "s3://other", code=1)
    assert "s3://other" in errors and "no such place" in errors, errors
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    errors = store("put", "s3://bucket", "job", 1, 0, source, code=1)
    assert "access is refused" in errors, errors


@pytest.mark.soak
def test_a_bucket_whose_server_is_killed(s3, tmp_path, rng):
    sets = [files(tmp_path / str(number), rng) for number in range(2)]
    over = threading.Event()

    def storm():
        pause = harness.random.Random(rng.random())
        while not over.wait(pause.uniform(0.3, 1)):
            s3.kill()
            s3.start()

    killer = threading.Thread(target=storm)
    killer.start()
    try:
        for number in range(4):
            store("put", "s3://bucket", "job", number, 0, sets[number % 2])
    finally:
        over.set()
        killer.join()
    assert check("s3://bucket", "job", {number: sets[number % 2] for number in range(4)}, tmp_path) == [0, 1, 2, 3]


def test_what_is_stored_with_a_key_needs_that_key(tmp_path, rng):
    source, place = files(tmp_path / "1", rng), f"dir:{tmp_path}/place"
    (source / "secret").write_bytes(b"attack at dawn " * 1000)
    for name in "one", "two":
        (tmp_path / name).write_text(rng.randbytes(32).hex())
        (tmp_path / name).chmod(0o600)
    key = ["--store-key", tmp_path / "one"]
    store("put", place, "job", 1, 0, source, *key)
    assert check(place, "job", {1: source}, tmp_path, *key) == [1]
    assert not any(b"attack" in path.read_bytes() for path in (tmp_path / "place").rglob("*") if path.is_file())
    for wrong, words in (["--store-key", tmp_path / "two"], "another key"), ([], "give the key"):
        (tmp_path / "back").mkdir()
        for command in ["get", place, "job", tmp_path / "back"], ["verify", place, "job"]:
            errors = store(*command, *wrong, code=1)
            assert words in errors and "damage" not in errors, errors
        assert not list((tmp_path / "back").iterdir())
        (tmp_path / "back").rmdir()
        assert "sealed" in store("ls", place, *wrong)
    (tmp_path / "one").chmod(0o640)
    assert "chmod go=" in store("ls", place, *key, code=2)


def test_damage_is_named_and_put_anew(tmp_path, rng):
    source, place = files(tmp_path / "1", rng), f"dir:{tmp_path}/place"
    store("put", place, "job", 1, 0, source)
    chunks = sorted((tmp_path / "place/job/chunks").iterdir())
    hurt = rng.sample(chunks, max(1, len(chunks) // 10))
    for number, chunk in enumerate(hurt):
        if number % 2:
            chunk.unlink()
        else:
            bytes_ = bytearray(chunk.read_bytes())
            bytes_[rng.randrange(len(bytes_))] ^= 1
            chunk.write_bytes(bytes_)
    result = store("verify", place, "job", code=None)
    assert result.returncode == 1 and "job@1: damaged" in result.stdout
    assert all(chunk.name in result.stderr for chunk in hurt), result.stderr
    (tmp_path / "back").mkdir()
    errors = store("get", place, "job", tmp_path / "back", code=1)
    assert re.search(r"file (image|other|zeros) of node 0, job/chunks/", errors), errors
    assert not list((tmp_path / "back").iterdir())
    store("put", place, "job", 2, 0, source)
    store("get", place, "job@2", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(source)


def test_a_writer_that_is_killed_at_any_moment(tmp_path, rng, kills):
    sets = [files(tmp_path / str(number), rng) for number in range(2)]
    place = f"dir:{tmp_path}/place"
    for number in range(kills or 25):
        command = [harness.RESURGO, "store", "put", place, "job", str(number), "0", sets[number % 2]]
        client = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        time.sleep(rng.uniform(0, 0.15))
        client.kill()
        client.wait()
    store("put", place, "job", 999, 0, sets[1])
    expected = {number: sets[number % 2] for number in range(1000)}
    assert 999 in check(place, "job", expected, tmp_path)
    store("verify", place, "job")
    store("gc", place)
    assert 999 in check(place, "job", expected, tmp_path)
    store("rm", place, "job")
    assert os.listdir(tmp_path / "place") == []


def test_wrong_words(tmp_path):
    for words, said in (
        ([], "say what to do"),
        (["lst", "dir:/x"], 'did you mean "resurgo store ls"'),
        (["ls"], "needs a place"),
        (["ls", "/x"], "write dir:/PATH"),
        (["rm", f"dir:{tmp_path}"], "a place and a job"),
        (["verify", f"dir:{tmp_path}", "job@x"], "JOB@NUMBER"),
        (["ls", f"dir:{tmp_path}", "--jsn"], "no option"),
        (["rm", f"dir:{tmp_path}", "none"], "there is no job"),
        (["ls", f"dir:{tmp_path};keep=0"], "at least 1"),
    ):
        errors = store(*words, code=2)
        assert said in errors, (words, errors)
    assert "no such place" in store("ls", f"dir:{tmp_path}/none", code=1)
    assert "no such place" in store("put", f"dir:{tmp_path}/a/b", "job", 1, 0, tmp_path, code=1)
    server = [harness.RESURGO, "checkpoint-server"]
    for words, said in (
        ([], "--directory"),
        (["--dir", "x"], "did you mean --directory"),
        (["--directory", tmp_path, "--expire", "0s"], "longer than 0"),
        (["--directory", tmp_path, "--quota", "much"], "is not a size"),
        (["--directory", tmp_path, "--key-file", tmp_path / "none"], "No such file"),
        (["--directory", tmp_path, "--listen", "nowhere.invalid:1"], "write an address"),
    ):
        result = subprocess.run([*server, *words], capture_output=True, text=True, timeout=30, check=False)
        assert result.returncode in (1, 2) and said in result.stderr, (words, result.stderr)
