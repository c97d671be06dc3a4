# SPDX-License-Identifier: Apache-2.0
"""Starts jobs, watches them, kills their processes, and makes sure that nothing of them stays."""

import contextlib
import ctypes
import json
import os
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEPS = Path(os.environ.get("RESURGO_DEPS", ROOT / ".deps"))
RESURGO = Path(os.environ.get("RESURGO", ROOT / "build/bin/resurgo")).absolute()
SOURCES = ROOT / "tests/programs"
PROGRAMS = ROOT / "build/programs"
INPUTS = ROOT / "tests/inputs"
MPICH = DEPS / "mpich"
IMPI = DEPS / "impi"
PYTHON = str(MPICH / "bin/python")
LIBMPICH = DEPS / "libmpich"  # where libmpich.so.12 is the wheel's library

# Plain MPICH without shared memory. It blocks in the kernel instead of spinning, and every rank is a node of its own,
# so that its collectives take the same shape as under resurgo. FI_TCP_MAX_SAVED keeps libfabric's tcp provider from
# stopping at 64 messages that no rank has asked for yet.
PLAIN = {
    "MPIR_CVAR_CH4_NETMOD": "ofi",
    "MPIR_CVAR_NOLOCAL": "1",
    "FI_PROVIDER": "tcp",
    "FI_TCP_MAX_SAVED": "1000000",
}
# Not the bridge of another test's nodes, which may go at any moment.
HERE = {"FI_TCP_IFACE": "lo"}
# The first line of a script in place of ssh: what it starts is on a machine of its own, as far as resurgo can tell.
OWN_NAMESPACE = "--uts" if os.geteuid() == 0 else "--map-current-user --uts"
APART = f'[ -n "$APART" ] || exec env APART=1 unshare {OWN_NAMESPACE} -- "$0" "$@"; unset APART\n'
# Results of undisturbed jobs, by command.
CALM = {}
TIMEOUT = 90.0  # seconds for a job that should take a few
SHORTEST_PATIENCE = 30.0
SHARE = "50%"  # of a job's time for images; "100%" in long runs (conftest.py)
SLOWNESS = 1.0  # of this machine, at least 1: the greatest that was measured
QUICK = 0.25  # seconds that `resurgo run -n 4 hello` takes at most on a machine that does nothing else
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
INTEL = {"VIRTUAL_ENV": IMPI, "RESURGO_LIBFABRIC_DIR": MPICH / "lib/mpich"}


def patience(seconds):
    """The seconds that a test waits for what should take `seconds` at most."""
    return max(SHORTEST_PATIENCE, seconds) * SLOWNESS


def slowness():
    """How much slower this machine is now than a quiet one: the best of three small jobs, between 1 and 8."""
    times = []
    for _ in range(3):
        start = time.monotonic()
        command = [RESURGO, "run", "-n", "4", PROGRAMS / "hello"]
        subprocess.run(command, env=environment(), capture_output=True, timeout=60, check=False)
        times.append(time.monotonic() - start)
    return min(8.0, max(1.0, min(times) / QUICK))


def measure():
    """Measures the slowness of this machine, at the start and when a job takes longer than it should."""
    global SLOWNESS
    SLOWNESS = max(SLOWNESS, slowness())


def slow(*values):
    """Parameters of a test that resemble others, and are left to long runs."""
    return pytest.param(*values, marks=pytest.mark.slow)


def environment(**more):
    """The environment with the mpich environment active, as a user would have it, and nothing left from elsewhere."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not re.match(r"(PMI|PMIX|HYDRA|HYDI|MPI|FI_|I_MPI|OMPI|RESURGO|UCX|LD_LIBRARY_PATH|PYTHON|PYTEST)", name)
    }
    kept |= {"VIRTUAL_ENV": str(MPICH), "PATH": f"{MPICH / 'bin'}:{os.environ['PATH']}"}
    # Tests want many images, whatever else the machine does.
    kept["RESURGO_CHECKPOINT_SHARE"] = SHARE
    # They do not depend on what this machine or its user has configured.
    kept["RESURGO_NO_CONFIG"] = "1"
    kept |= {name: str(value) for name, value in more.items() if value is not None}
    for name, value in more.items():
        if value is None:
            kept.pop(name, None)
    return kept


@dataclass
class Result:
    code: int
    out: bytes
    err: bytes
    seconds: float
    events: list = field(default_factory=list)

    @property
    def text(self):
        return self.out.decode(errors="replace")

    @property
    def program_errors(self):
        """The ranks' output on standard error."""
        return b"".join(line for line in self.err.splitlines(keepends=True) if not line.startswith(b"resurgo:"))

    @property
    def errors(self):
        return self.err.decode(errors="replace")

    def of(self, kind):
        return [event for event in self.events if event["event"] == kind]

    @property
    def restarts(self):
        return self.of("job_ended")[0]["restarts"] if self.of("job_ended") else None

    def describe(self):
        tail = self.errors[-3000:]
        return f"exit code {self.code} after {self.seconds:.1f} s\nstdout: {self.text[-1500:]}\nstderr: {tail}"

    def ok(self):
        assert self.code == 0, self.describe()
        assert b"the job can go on from wave" not in self.err, f"it has ended\n{self.describe()}"
        return self


def read_events(path):
    """The events so far; an incomplete last line waits for the next call."""
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]


def marked_processes(marks):
    """Pids of living processes with one of `marks` in their environment."""
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            present = Path(entry.path, "environ").read_bytes()
            if not any(mark.encode() in present for mark in marks):
                continue
            state = Path(entry.path, "stat").read_text().rpartition(")")[2].split()[0]
            if state not in "ZX":
                found.append(int(entry.name))
    return found


def own_shared_memory():
    """Gives this process, and what it starts, a /dev/shm of its own, if it may (as root). Otherwise files of other jobs
    on this machine could not be told from those of ours. Returns whether it has one."""
    if os.geteuid() != 0:
        return False
    new_mounts, private = 0x20000, 0x40000  # CLONE_NEWNS, MS_PRIVATE
    if ctypes.CDLL(None).unshare(new_mounts) != 0:
        return False
    mount("none", "/", "", RECURSIVELY | private, "")
    mount("none", "/dev/shm", "tmpfs", 0, "mode=1777")
    return True


BIND, RECURSIVELY = 0x1000, 0x4000  # MS_BIND, MS_REC


def mount(what, where, kind, flags, options):
    """As the system call."""
    words = [str(word).encode() for word in (what, where, kind)]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(*words, ctypes.c_ulong(flags), options.encode()) != 0:
        raise OSError(ctypes.get_errno(), f"mount {what} at {where}")


def open_to_others():
    """Lets other users reach this clone and what it needs, for tests that play another user, also where it lies below a
    folder that only its owner may enter. That folder is covered, for the tests alone, by one with the same entries."""
    for place in sorted({parent for path in (ROOT, DEPS.resolve()) for parent in path.parents}, key=lambda path: len(path.parts)):
        if place.stat().st_mode & 0o001:
            continue
        links = {path: os.readlink(path) for path in place.iterdir() if path.is_symlink()}
        others = {path: (path.is_dir(), os.open(path, os.O_PATH)) for path in place.iterdir() if path not in links}
        mount("none", place, "tmpfs", 0, "mode=0755")
        for path, target in links.items():
            path.symlink_to(target)
        for path, (is_directory, handle) in others.items():
            path.mkdir() if is_directory else path.touch()
            mount(f"/proc/self/fd/{handle}", path, "", BIND | RECURSIVELY, "")
            os.close(handle)
    os.chdir(os.getcwd())


def used_by_others(names):
    """Those of the files `names` in /dev/shm that a living process has mapped, and those of other users. Only root may
    read what other users' processes have mapped, and our jobs make no such files."""
    used = set()
    for name in names:
        try:
            if os.stat(f"/dev/shm/{name}").st_uid != os.geteuid():
                used.add(name)
        except FileNotFoundError:  # gone by now, which is as good
            used.add(name)
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                maps = Path(entry.path, "maps").read_text(errors="replace")
                used |= {name for name in names if f"/dev/shm/{name}" in maps}
    return used


def available_memory():
    """Bytes that the kernel could still give."""
    return 1024 * int(re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text())[1])


def command_of(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return "?"


def stands_where(pid):
    """What a process waits for, as far as the kernel and a debugger tell."""
    told = []
    for name in ("wchan", "syscall"):
        with contextlib.suppress(OSError):
            told.append(f"{name} {Path(f'/proc/{pid}/{name}').read_text().strip()}")
    with contextlib.suppress(OSError):
        told += re.findall(r"State:.*|voluntary_ctxt_switches:.*", Path(f"/proc/{pid}/status").read_text())
    if shutil.which("gdb"):
        with contextlib.suppress(subprocess.TimeoutExpired):
            command = ["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt 12"]
            stacks = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=10, check=False).stdout
            told += [line[:160] for line in stacks.splitlines() if re.match(r"#|Thread", line)]
    return "\n    ".join(told)


def states(pid):
    """Of the threads of a process, as in /proc: T stands still, S waits; a dead one has none."""
    found = set()
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                found.add(Path(f"/proc/{pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()[0])
    return found - set("ZX")


def pressure():
    """The load of the machine."""
    load = Path("/proc/loadavg").read_text().strip()
    with contextlib.suppress(OSError):
        load += "; " + Path("/proc/pressure/cpu").read_text().splitlines()[0]
    return load


def age_of(pid):
    """Orders processes by their start. Numbers alone do not, as they begin again at some time."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]), pid
    return 0, pid


def free_port():
    """A port at which nobody listens, and which the kernel gives to no connection and no other listener meanwhile."""
    least = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(least // 2, least)
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            return port


def parent_of(pid):
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


class Missed(AssertionError):
    """What a test is about did not come about, although its job went well: a rank was not there to be killed, the job
    was over before there was an image, or something else made the machine slow. `gate.py` tries such a test once more;
    a wrong answer, a hang or an error never is."""


class Expired(Missed):
    """Something that a test waits for did not come in time."""


def came_about(fact, result, what="what the test is about"):
    """Demands `fact` of a job; if that job has ended well without it, the test has missed its moment."""
    if not fact:
        kind = Missed if result.code == 0 else AssertionError
        raise kind(f"{what} did not come about\n{result.describe()}")


def in_time(fact, what):
    """Demands that something was fast enough. What else runs on the machine may delay it, so that it is tried again."""
    if not fact:
        raise Missed(f"not in time: {what}")


class Absent(Missed):
    """Something of a job is not there at this moment."""


class Lives(dict):
    """The running process of each rank: {rank: (pid, life)}. A rank without one is `Absent`."""

    def __missing__(self, rank):
        raise Absent(f"rank {rank} has no process at this moment; others: {dict(self)}")


class Present(list):
    """What there is at this moment. What there is not is `Absent`."""

    def __getitem__(self, index):
        try:
            return super().__getitem__(index)
        except IndexError:
            raise Absent(f"number {index} is not there at this moment; others: {list(self)}") from None


def has_come_to_mpi(life):
    pid, _ = life
    return "resurgo-node-memory" in Path(f"/proc/{pid}/maps").read_text()


class Job:
    """A running job. Its output and its events go to files."""

    def __init__(self, directory, command, stdin=None, env=None, cwd=None, events=None):
        self.directory = directory
        self.command = " ".join(str(part) for part in command)[:500]
        self.mark = f"RESURGO_TEST_MARK={uuid.uuid4().hex}"
        self.marks = [self.mark]  # also the marks of runs that it goes on from
        self.events_file = events
        self.destroyed = False  # ended by force, because it did not end
        self.out, self.err = directory / "stdout", directory / "stderr"
        name, _, value = self.mark.partition("=")
        env = dict(env if env is not None else environment())
        env[name] = value
        # While these files do not exist, the job's program takes its time: its own, and those of runs that it goes on from.
        self.awaited = [env["AWAITED"]] if env.get("AWAITED") else []
        self.started = time.monotonic()
        self.notes = []  # what the test has done with the job: its waits and blows
        self.before_blow = None  # the number of events before a blow that the test has not waited since
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = subprocess.Popen(
                [str(part) for part in command],
                stdin=stdin if stdin is not None else subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=env,
                cwd=cwd or directory,
                start_new_session=True,
            )

    @property
    def events(self):
        return read_events(self.events_file) if self.events_file else []

    def lives(self):
        running = Lives()
        for event in self.events:
            if event["event"] == "started":
                running[event["rank"]] = (event["pid"], event["life"])
            elif event["event"] in ("failed", "finished"):
                if running.get(event["rank"], (0, 0))[1] == event["life"]:
                    del running[event["rank"]]
        return running

    def of(self, kind, **fields):
        """What has been said until now of this kind and with these fields."""
        wanted = {"event": kind, **fields}
        return [event for event in self.events if event.items() >= wanted.items()]

    def newest(self, kind, timeout=30.0, **fields):
        """The newest event of this kind and with these fields; the test waits for the first one."""
        if not self.of(kind, **fields):
            self.reach_event(kind, timeout, **fields)
        return self.of(kind, **fields)[-1]

    def kill(self, ranks, number=signal.SIGKILL):
        """Signals the present processes of `ranks`; returns those that existed."""
        self.before_blow = len(self.events)
        lives, hit = self.lives(), []
        for rank in ranks:
            if rank in lives and self.hit(lives[rank][0], number):
                hit.append(rank)
        self.note(f"signal {number} to ranks {hit}")
        return hit

    def hit(self, pid, number):
        """Signals a process of this job; whether it was there. One that does not show its environment yet is about to execute its program."""
        if self.before_blow is None:
            self.before_blow = len(self.events)
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            return False
        try:
            end = time.monotonic() + patience(2)
            # By now the number may belong to another process.
            while not any(mark.encode() in Path(f"/proc/{pid}/environ").read_bytes() for mark in self.marks):
                if select.select([handle], [], [], 0.001)[0] or time.monotonic() > end:
                    return False
            signal.pidfd_send_signal(handle, number)
            # A thread that has no processor just now does not stop before it has one again.
            while number == signal.SIGSTOP and not states(pid) <= set("Tt") and time.monotonic() < end:
                time.sleep(0.001)
        except OSError:
            return False
        finally:
            os.close(handle)
        return True

    def kill_one(self, rng):
        """Kills one of the ranks that have processes, if there are any."""
        if lives := sorted(self.lives()):
            self.kill([rng.choice(lives)])

    def over(self):
        return self.process.poll() is not None

    def note(self, what):
        self.notes.append(f"{time.monotonic() - self.started:8.3f} s: {what}")

    def until(self, condition, timeout=30.0, what="condition"):
        """Waits until `condition()` is true; False when the job is over first. Tests that need it call `reach`. A condition on
        what is `Absent`, on a file that is not there or on a process that has ended is not true."""

        def holds():
            with contextlib.suppress(Absent, FileNotFoundError, ProcessLookupError):
                return bool(condition())
            return False

        timeout = patience(timeout)
        end = time.monotonic() + timeout
        self.before_blow = None
        while not holds():
            if self.over():
                self.note(f"the job was over before {what}")
                return holds()
            if time.monotonic() > end:
                raise Expired(f"waited {timeout} s for {what}\n{self.result(None).describe()}")
            time.sleep(0.002)
        self.note(f"has waited for {what}")
        return True

    def until_another(self, kind, timeout=30.0, **fields):
        """Waits for one more event of this kind and with these fields than there were before the blow that the test has
        just struck, or than there are now. False when the job is over first."""
        wanted = {"event": kind, **fields}
        before = len(self.events) if self.before_blow is None else self.before_blow
        return self.until(lambda: any(event.items() >= wanted.items() for event in self.events[before:]), timeout, f"another {kind}")

    def until_event(self, kind, timeout=30.0, **fields):
        return self.until(lambda: self.of(kind, **fields), timeout, f"{kind} {fields}")

    def reach(self, condition, timeout=30.0, what="condition"):
        """Waits until `condition()` is true, which must be before the job is over."""
        return self.has_reached(self.until(condition, timeout, what), what)

    def reach_event(self, kind, timeout=30.0, **fields):
        return self.has_reached(self.until_event(kind, timeout, **fields), f"{kind} {fields}")

    def reach_another(self, kind, timeout=30.0, **fields):
        return self.has_reached(self.until_another(kind, timeout, **fields), f"another {kind} {fields}")

    def has_reached(self, reached, what):
        if not reached:
            came_about(False, self.result(self.process.poll()), what)
        return True

    def says(self, words):
        """Waits until the program has said so."""
        return self.reach(lambda: words in self.out.read_bytes(), what=repr(words))

    def is_in_mpi(self):
        """Whether there is a process of each rank, and all have come to MPI_Init."""
        lives = self.lives()
        return bool(self.events) and len(lives) >= self.events[0]["ranks"] and all(map(has_come_to_mpi, lives.values()))

    def opens_mpi(self):
        return self.reach(self.is_in_mpi, what="MPI_Init")

    def strike(self, ranks, number=signal.SIGKILL):
        """Signals the present processes of all of `ranks`, which must exist."""
        hit = self.kill(ranks, number)
        if hit != ranks:
            described = self.result(self.process.poll()).describe()
            self.destroy()
            raise Missed(f"of ranks {ranks} only {hit} had processes\n{described}")

    def result(self, code):
        seconds = time.monotonic() - self.started
        return Result(code, self.out.read_bytes(), self.err.read_bytes(), seconds, self.events)

    def wait(self, timeout=TIMEOUT, lets_go=True):
        """Waits for the end. `lets_go`: the program need not take its time any more."""
        for file in self.awaited if lets_go else ():
            Path(file).touch()
        self.note("waits for the end")
        try:
            code = self.ends(timeout)
        except subprocess.TimeoutExpired:
            described = self.result(None).describe()
            where = "\n".join(f"{pid}: {command_of(pid)}\n    {stands_where(pid)}" for pid in self.processes()[:12])
            self.destroy()
            self.destroyed = True
            raise AssertionError(f"the job did not end in {timeout} s\n{described}\n{where}") from None
        self.note(f"has ended with {code}")
        return self.result(code)

    def ends(self, seconds):
        """The exit status, in time. A machine that has become slower than it was at the start gives more of it."""
        began = time.monotonic()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(patience(seconds))
        measure()
        self.note(f"takes long, on a machine that is slower by {SLOWNESS:.1f}")
        return self.process.wait(max(0.0, began + patience(seconds) - time.monotonic()))

    def tell(self, most=60):
        """The test's own deeds and the last events, for one who looks for the reason of a failure."""
        events = [json.dumps(event)[:300] for event in self.events[-most:]]
        return "\n".join([f"{self.directory.name}: {self.command}", *self.notes[-most:], *events])

    def goes_on_from(self, job):
        """Adds the marks of `job`: ranks keep the environment that they began with, in `job` or before."""
        self.marks += job.marks
        self.awaited += job.awaited

    def processes(self):
        return marked_processes(self.marks)

    def destroy(self):
        """Ends everything that the job has started; returns what was left."""
        found = self.processes()
        if not self.over():
            # When asked to end, mpiexec and resurgo remove the files that they would leave behind when killed.
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(3)
        for _ in range(20):
            pids = self.processes()
            if not pids:
                break
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        return found

    def leftovers(self, patience=3.0):
        """Processes of the job that still exist after `patience` seconds, or more on a slow machine."""
        end = time.monotonic() + patience * SLOWNESS
        while (pids := self.processes()) and time.monotonic() < end:
            time.sleep(0.05)
        return [(pid, command_of(pid)) for pid in pids]


class Launcher:
    """Starts jobs in a directory of their own. When closed, it demands that nothing is left of them."""

    def __init__(self, directory):
        self.directory = directory
        self.temporary = directory / "tmp"
        self.temporary.mkdir()
        self.jobs = []
        self.shared_memory = set(os.listdir("/dev/shm"))
        self.number = 0
        self.protocol = None
        self.before = []  # what runs resurgo

    def command(self, command, **options):
        """Starts any command."""
        self.number += 1
        directory = self.directory / f"job{self.number}"
        directory.mkdir()
        env = dict(options.pop("env", None) or environment())
        env.setdefault("TMPDIR", str(self.temporary))
        job = Job(directory, command, env=env, **options)
        self.jobs.append(job)
        return job

    def unhurried(self, env=None):
        """The environment in which the next job's program takes its time until the test waits for its end."""
        return {"AWAITED": str(self.directory / f"awaited{self.number + 1}"), **(env or environment())}

    def start(self, n, *program, protocol=None, options=(), env=None, **more):
        """Starts `resurgo run`; `program` is the command line of the program."""
        events = self.directory / f"events{self.number + 1}.json"
        more["env"] = self.unhurried(env)
        command = [*self.before, RESURGO, "run", "-n", n, "--json-events", events]
        if protocol := protocol or self.protocol:
            command += ["--protocol", protocol]
        return self.command([*command, *options, *program], events=events, **more)

    def run(self, n, *program, timeout=TIMEOUT, **more):
        return self.start(n, *program, **more).wait(timeout)

    def calm(self, n, *program, **more):
        """The result of an undisturbed job, in this test or an earlier one."""
        key = repr((n, [str(word) for word in program], sorted(more.items())))
        if key not in CALM:
            CALM[key] = self.run(n, *program, **more).ok()
        return CALM[key]

    def resurgo(self, *arguments, timeout=TIMEOUT, **more):
        """Runs resurgo with exactly these arguments."""
        return self.command([*self.before, RESURGO, *arguments], **more).wait(timeout)

    def mpiexec(self, n, *program, timeout=TIMEOUT, env=None, **more):
        """Runs the program under plain MPICH."""
        env = {**environment(), **PLAIN, **HERE, **(env or {})}
        job = self.command([MPICH / "bin/mpiexec", "-n", n, *program], env=env, **more)
        try:
            return job.wait(timeout)
        except AssertionError as hangs:  # as plain MPICH sometimes does in MPI_Comm_spawn
            raise Missed(str(hangs)) from None

    def abandon(self):
        """Ends the jobs of a test that has failed: what is left of them shows nothing more."""
        for job in self.jobs:
            job.destroy()
        shared = set(os.listdir("/dev/shm")) - self.shared_memory
        for name in shared - used_by_others(shared):
            with contextlib.suppress(OSError):
                os.unlink(f"/dev/shm/{name}")

    def close(self):
        left = []
        for job in self.jobs:
            left += job.leftovers()
        destroyed = [pid for job in self.jobs for pid in job.destroy()] + [job for job in self.jobs if job.destroyed]
        # Other users' jobs come and go: files that a living process has mapped are theirs, as all of ours are gone.
        end = time.monotonic() + 3 * SLOWNESS
        while shared := set(os.listdir("/dev/shm")) - self.shared_memory:
            shared -= used_by_others(shared)
            if not shared or time.monotonic() > end:
                break
            time.sleep(0.2)
        if destroyed:  # a job that could not clean up after itself is not blamed again
            for name in shared:
                with contextlib.suppress(OSError):
                    os.unlink(f"/dev/shm/{name}")
            shared = set()
        temporary = sorted(str(path) for path in self.temporary.rglob("*"))
        assert not left, f"processes were left behind: {left}"
        assert not shared, f"left in /dev/shm: {sorted(shared)}"
        assert not temporary, f"temporary files were left behind: {temporary}"


def held(jobs, script, size):
    """Starts jobs of a Python script whose ranks say that they are ready and then wait for a file; `end` makes it."""
    go = jobs.directory / "go"

    def begin(size=size, **more):
        job = jobs.start(size, PYTHON, "-c", script, go, **more)
        job.reach(lambda: job.out.read_bytes().count(b"ready") == size, what="the ranks to be ready")
        return job

    def end(job):
        go.touch()
        return job.wait().ok()

    begin.end = end
    return begin


def storm(job, rng, kills, span, together=0.25, everyone=0.1, in_replay=0.3):
    """Kills random ranks of `job` at random moments of the next `span` seconds, until `kills` blows are struck or the
    job is over. A blow hits one rank, several (probability `together`) or all (`everyone`). After some blows
    (`in_replay`) a victim is hit again as soon as it is back. Returns the blows."""
    done = []
    job.until_event("started")
    moments = sorted(rng.uniform(0, span) for _ in range(kills))
    start = time.monotonic()
    for moment in moments:
        while time.monotonic() - start < moment and not job.over():
            time.sleep(0.002)
        lives = job.lives()
        if job.over() or not lives:
            continue
        choice = rng.random()
        ranks = sorted(lives)
        if choice < everyone:
            victims = ranks
        elif choice < everyone + together:
            victims = rng.sample(ranks, rng.randint(1, len(ranks)))
        else:
            victims = [rng.choice(ranks)]
        hit = job.kill(victims)
        done.append((round(time.monotonic() - job.started, 3), hit))
        if hit and rng.random() < in_replay:
            again, life = hit[0], lives[hit[0]][1]
            if job.until(lambda: job.lives().get(again, (0, 0))[1] > life, 10, f"rank {again} to be back"):
                time.sleep(rng.uniform(0, 0.3))
                done.append((round(time.monotonic() - job.started, 3), job.kill([again])))
    return done


def by_rank(output):
    """Lines by the rank that they name ("rank N ..."), each rank's in order; other lines under None."""
    lines = {}
    for line in output.splitlines(keepends=True):
        match = re.match(rb"(?:hello from )?rank (\d+)\b", line)
        lines.setdefault(int(match[1]) if match else None, []).append(line)
    return lines


def rng_for(seed, *what):
    return random.Random(f"{seed} {what}")
