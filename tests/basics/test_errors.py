# SPDX-License-Identifier: Apache-2.0
"""A job that cannot work is refused before anything starts, in one clear message; `doctor` says the same."""

import json
import os
import shutil
import subprocess

import pytest

import harness
from survival import refused


@pytest.mark.parametrize(
    "typed, meant",
    [
        ("--protcol", "--protocol"),
        ("--faults", "--fault"),
        ("--max-restart", "--max-restarts"),
        ("-genvv", "-genv"),
        ("--json-event", "--json-events"),
        ("-wdri", "-wdir"),
    ],
)
def test_unknown_options_name_the_nearest(jobs, program, typed, meant):
    refused(jobs.resurgo("run", typed, "x", "-n", "2", *program("hello")), typed, meant, code=2)


@pytest.mark.parametrize("more", [[], ["--resume-if-any"]], ids=["begin", "resume"])
def test_a_file_is_no_directory_for_images(jobs, program, tmp_path, more):
    file = tmp_path / "file"
    file.touch()
    result = jobs.resurgo("run", "--checkpoint-dir", file, *more, *program("hello"))
    refused(result, f"--checkpoint-dir {file} is a file, not a directory", code=2)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["-n", "0"], ["-n 0", "at least one"]),
        (["-n", "-3"], ["-n"]),
        (["-n", "many"], ["-n", "many"]),
        (["-n", "2", "--protocol", "optimistic"], ["optimistic", "pessimistic"]),
        (["-n", "2", "--tolerate", "fools"], ["fools", "node"]),
        (["-n", "2", "--log-memory", "lots"], ["lots"]),
        (["-n", "2", "--max-restarts", "-1"], ["-1"]),
        (["-n", "2", "-wdir", "/nowhere"], ["/nowhere"]),
        (["-n", "2", "--spill-dir", "/nowhere"], ["/nowhere"]),
        (["-n", "2", "--json-events", "/nowhere/events"], ["/nowhere/events"]),
        (["-n", "2", "--stats-json", "/nowhere/stats"], ["/nowhere/stats", "--stats-json", "No such file"]),
        (["-n", "2", "--stats-json", "/"], ["--stats-json", "directory"]),
        (["-n", "2", "--checkpoint-policy", "robin"], ["robin", "round-robin"]),
        (["-n", "2", "--checkpoint-policy", "random"], ["--checkpoint-every"]),
        (["-n", "100000000"], ["100000000"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_wrong_values(jobs, program, arguments, words):
    refused(jobs.resurgo("run", *arguments, *program("hello")), *words)


def test_no_program(jobs):
    refused(jobs.resurgo("run", "-n", "2"), "program", code=2)
    refused(jobs.resurgo("run"), "program", code=2)
    refused(jobs.resurgo("run", "-n", "2", "--"), "program", code=2)


def test_no_verb(jobs):
    result = jobs.resurgo()
    assert result.code != 0 and "run" in result.errors + result.text
    refused(jobs.resurgo("rnu", "-n", "2", "x"), "rnu", "run")


def test_wrong_variable_in_the_environment(jobs, program):
    env = harness.environment(RESURGO_PROTOCOL="optimistic")
    refused(jobs.resurgo("run", *program("hello"), env=env), "optimistic", "RESURGO_PROTOCOL")


def test_no_such_program(jobs):
    refused(jobs.resurgo("run", "-n", "2", "./nothing"), "nothing", code=127)
    refused(jobs.resurgo("run", "-n", "2", "nothing-of-the-kind"), "nothing-of-the-kind", code=127)
    refused(jobs.resurgo("run", "-n", "2", "/etc/passwd"), "/etc/passwd", code=126)
    refused(jobs.resurgo("run", "-n", "2", "/etc"), "/etc", code=126)
    pipe = jobs.directory / "pipe"
    os.mkfifo(pipe, 0o777)
    for verb in ("run", "doctor"):
        refused(jobs.resurgo(verb, pipe, timeout=10), f"{pipe} is not a file", code=126)


def test_not_an_mpi_program(jobs, program):
    """It runs, with a message about it. Nothing says that it is protected."""
    for name in ("not_mpi", "not_mpi_static"):
        result = jobs.resurgo("run", "-n", "2", *program(name)).ok()
        assert result.text.count("no MPI here\n") == 2
        assert f"{name} is not an MPI program" in result.errors and len(result.errors.splitlines()) == 1
        assert jobs.resurgo("doctor", *program(name)).code != 0


def test_static_mpi(jobs, program):
    refused(jobs.resurgo("run", "-n", "2", *program("hello_static")), "hello_static", "static")


def test_open_mpi(jobs, program):
    env = harness.environment(LD_LIBRARY_PATH=harness.PROGRAMS / "openmpi")
    refused(jobs.resurgo("run", "-n", "2", *program("fake_openmpi"), env=env), "libmpi.so.40", "Open MPI", "install")


def without_mpich():
    """No environment active and none on the search path."""
    return harness.environment(VIRTUAL_ENV=None, PATH="/usr/local/bin:/usr/bin:/bin")


def test_mpich_without_libfabric(jobs, program):
    """Debian's own library, where no other can serve instead."""
    refused(jobs.resurgo("run", "-n", "2", *program("hello_debian"), env=without_mpich()), "libmpich.so.12", "UCX", "pip install mpich")


@pytest.fixture
def stray(jobs, program):
    """hello without its built-in run path: nothing in it leads to a library."""
    copy = jobs.directory / "hello"
    shutil.copy(program("hello")[0], copy)
    data = copy.read_bytes()
    path = str(harness.MPICH / "lib").encode()
    if path not in data:
        pytest.skip("the program has no run path")
    copy.write_bytes(data.replace(path, b"/" + b"x" * (len(path) - 1)))
    return copy


def test_no_mpi_library_at_all(jobs, stray):
    refused(jobs.resurgo("run", "-n", "2", stray, env=without_mpich()), "libmpi.so.12", "install")


@pytest.mark.parametrize("how", ["link", "copy", "link to it", "on the search path"])
def test_resurgo_in_an_environment_that_is_not_active(jobs, stray, how):
    """Its own environment has MPICH."""
    venv = jobs.directory / "my venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "lib").symlink_to(harness.MPICH / "lib")
    called, env = venv / "bin/resurgo", without_mpich()
    if how == "link":
        called.symlink_to(harness.RESURGO)
    else:
        # As installed with PREFIX=venv; here its lib is another's.
        shutil.copy(harness.RESURGO, called)
        env["RESURGO_FABRIC_DIR"] = str(harness.RESURGO.parent.parent / "lib/resurgo")
    if how == "link to it":
        called = jobs.directory / "resurgo"
        called.symlink_to("my venv/bin/resurgo")
    elif how == "on the search path":
        env["PATH"] += f":{called.parent}"
        called = "resurgo"
    result = jobs.command([called, "run", "-n", "2", stray], env=env).wait().ok()
    assert result.errors == "", result.errors


def test_doctor(jobs, program):
    result = jobs.resurgo("doctor", *program("hello")).ok()
    assert "libmpi.so.12" in result.text and "MPICH" in result.text
    result = jobs.resurgo("doctor", *program("hello_debian")).ok()
    assert "libmpich.so.12" in result.text and str(harness.MPICH) in result.text
    result = jobs.resurgo("doctor", harness.PYTHON, "-c", "import numpy").ok()
    assert "libmpi.so.12" in result.text and f"yes: resurgo run -n 4 {harness.PYTHON} -c 'import numpy'\n" in result.text
    for name in ("fake_openmpi", "hello_static", "not_mpi"):
        result = jobs.resurgo("doctor", *program(name))
        assert result.code != 0 and name in result.errors + result.text


def test_doctor_as_json(jobs, program):
    told = json.loads(jobs.resurgo("doctor", "--json", *program("hello")).ok().text)
    assert told["protected"] is True and told["program"] == program("hello")[0], told
    assert told["library"].endswith("libmpi.so.12") and told["maker"] == "MPICH with libfabric", told
    assert told["environment"]["FI_PROVIDER"] == "resurgo", told
    shell = json.loads(jobs.resurgo("doctor", "--json", "sh").ok().text)
    assert shell["protected"] is None and shell["library"] is None and "no MPI program itself" in shell["note"], shell
    result = jobs.resurgo("doctor", "--json", *program("hello_static"))
    told = json.loads(result.text)
    assert (result.code, result.errors, told["protected"]) == (2, "", False) and "statically" in told["reason"], told


APP = "#include <mpi.h>\nint gone(void);\nint main(void) { MPI_Init(0, 0); return gone() + MPI_Finalize(); }\n"


def needs_a_missing_library(directory):
    """An MPI program that needs a library which is gone."""
    for name, text in [("gone.c", "int gone(void) { return 7; }\n"), ("app.c", APP)]:
        (directory / name).write_text(text)
    library, app = directory / "libgone.so", directory / "app"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, directory / "gone.c"], check=True)
    words = [harness.MPICH / "bin/mpicc", "-o", app, directory / "app.c", f"-L{directory}", "-lgone"]
    subprocess.run(words, check=True)
    library.unlink()
    return app


def test_doctor_names_what_it_cannot_follow(jobs, tmp_path):
    """A module that is imported in a function only, and a library that the loader does not find."""
    (script := tmp_path / "main.py").write_text("import os\ndef solve():\n    import plugin_of_nobody\n")
    for words, said in [
        ([harness.PYTHON, script], "the module plugin_of_nobody is imported and not found"),
        ([needs_a_missing_library(tmp_path)], "libgone.so, which "),
    ]:
        text = jobs.resurgo("doctor", *words).ok().text
        assert f"unknown      {said}" in text and "protected    yes" not in text, text
        told = json.loads(jobs.resurgo("doctor", "--json", *words).ok().text)
        assert told["protected"] is None and any(line.startswith(said) for line in told["unknown"]), told


def test_doctor_and_run_agree(jobs, program):
    for name in ("fake_openmpi", "hello_static"):
        said = {
            verb: jobs.resurgo(verb, *program(name)).errors.strip() for verb in ("run", "doctor")
        }
        assert said["run"] == said["doctor"] != ""


@pytest.mark.parametrize("limit", [["-n", "20"], ["-Sn", "32"]])
def test_few_open_files(jobs, program, limit):
    """Too low a hard limit is refused; a low soft one is raised."""
    command = f"ulimit {' '.join(limit)}; exec {harness.RESURGO} run -n 16 {' '.join(program('hello'))}"
    result = jobs.command(["bash", "-c", command]).wait()
    if limit[0] == "-n":
        refused(result, "open files", "ulimit")
    else:
        assert "16 ranks" in result.ok().text


def test_few_processes(jobs, program):
    if os.geteuid() == 0:
        pytest.skip("root has no such limit")
    command = f"ulimit -u 3; exec {harness.RESURGO} run -n 8 {' '.join(program('hello'))}"
    result = jobs.command(["bash", "-c", command]).wait()
    assert result.code != 0 and "panicked" not in result.errors, result.describe()


def test_little_address_space(jobs, program):
    command = f"ulimit -v 300000; exec {harness.RESURGO} run -n 4 {' '.join(program('hello'))}"
    result = jobs.command(["bash", "-c", command]).wait(30)
    assert result.code == 0 or ("resurgo" in result.errors and "panicked" not in result.errors), result.describe()


def test_small_files_only(jobs, program):
    """RLIMIT_FSIZE counts for shared memory, too."""
    command = f"ulimit -f 1000; exec {harness.RESURGO} run -n 4 {' '.join(program('hello'))}"
    result = jobs.command(["bash", "-c", command]).wait(30)
    assert result.code == 0 or ("resurgo" in result.errors and "panicked" not in result.errors), result.describe()


def test_event_logger_port_in_use(jobs, program):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        result = jobs.run(2, *program("hello"), options=["--tolerate", "node", "--event-logger", place])
        refused(result, place, "or 0 for any that is free")


def test_what_is_no_image_file(jobs, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path, tmp_path / "pipe"):
        result = jobs.resurgo("image", "show", place, timeout=10)
        refused(result, str(place), "is not a file", code=1)


def test_an_address_of_another_machine(jobs, program):
    where = "192.0.2.1:0"  # of documentation, nobody's
    result = jobs.run(2, *program("hello"), protocol="channel-memory", options=["--channel-memory", where])
    refused(result, where, "give an address that this machine has")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a mount namespace of its own")
@pytest.mark.parametrize("state", ["missing", "read-only", "full"])
def test_dev_shm(jobs, program, state):
    """/dev/shm is unusable: either nobody needs it or the error says so."""
    prepare = {
        "missing": "umount -l /dev/shm && mount -t tmpfs none /dev -o size=1M && mknod /dev/null c 1 3 && "
        "mknod /dev/urandom c 1 9 && mknod /dev/zero c 1 5",
        "read-only": "mount -t tmpfs -o ro none /dev/shm",
        "full": "mount -t tmpfs -o size=4k none /dev/shm && head -c 4096 /dev/zero > /dev/shm/full",
    }[state]
    line = f"{prepare} && exec {harness.RESURGO} run -n 3 {' '.join(program('cg'))} 64 20"
    result = jobs.command(["unshare", "--mount", "bash", "-c", line]).wait(30)
    assert result.code == 0 or ("resurgo" in result.errors and "panicked" not in result.errors), result.describe()
