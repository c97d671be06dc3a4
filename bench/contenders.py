# SPDX-License-Identifier: Apache-2.0
"""The measured launchers, and how their jobs are started, watched and ended."""

import contextlib
import functools
import hashlib
import json
import mmap
import os
import re
import select
import shutil
import stat
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from machine import DISTURBED, Watch, wait_until_quiet

ROOT = Path(__file__).resolve().parent.parent  # of the source tree, or share/resurgo of an installation
IS_TREE = (ROOT / "Cargo.toml").exists()
DEPS = Path(os.environ.get("RESURGO_DEPS", ROOT / ".deps"))
RESURGO = Path(os.environ.get("RESURGO", ROOT / "build/bin/resurgo")).absolute()
TIMEOUT = 120.0  # seconds for one job


def mpich():
    """The prefix of the MPICH to compare with: the set-up's, or the one whose mpiexec is found first."""
    found = shutil.which("mpiexec")
    if (DEPS / "mpich/bin/mpiexec").exists() or not found:
        return DEPS / "mpich"
    return Path(found).absolute().parent.parent


MPICH = mpich()


def programs():
    """The directory of the measured programs: in an installation, one for each MPICH."""
    if IS_TREE:
        return ROOT / "build/bench"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "resurgo/bench" / hashlib.blake2s(str(MPICH).encode(), digest_size=4).hexdigest()


PROGRAMS = programs()


def make_own(directory):
    """Makes a directory that nobody else can write to or exchange, for programs that are built and run there: see
    own_directory.rs."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for place in (directory, *directory.parents):
        link, real = place.lstat(), place.stat()
        if stat.S_ISLNK(link.st_mode) and link.st_uid not in (0, os.geteuid(), place.parent.stat().st_uid):
            sys.exit(f"bench: {place} is a symbolic link of somebody else's: remove it, or set XDG_CACHE_HOME")
        if place == directory and real.st_uid != os.geteuid():
            sys.exit(f"bench: {place} belongs to somebody else: set XDG_CACHE_HOME to another place")
        if real.st_mode & 0o002 and (place == directory or not real.st_mode & stat.S_ISVTX):
            sys.exit(f"bench: everybody may write to {place}: chmod o-w, or set XDG_CACHE_HOME to another place")


def environment():
    """The environment with the mpich environment active, and without settings for any MPI, libfabric or Resurgo, also
    those of configuration files."""
    settings = re.compile(r"PMI|HYDRA|HYDI|MPI|FI_|I_MPI|OMPI|RESURGO|UCX|LD_LIBRARY_PATH|PYTHON")
    kept = {name: value for name, value in os.environ.items() if not settings.match(name)}
    return kept | {"RESURGO_NO_CONFIG": "1", "VIRTUAL_ENV": str(MPICH), "PATH": f"{MPICH / 'bin'}:{os.environ['PATH']}"}


def prepare():
    """Builds the measured programs; ends this program with one line if something for that is missing."""
    how = "run scripts/setup.sh" if IS_TREE else "activate a Python environment with the package mpich, or load its module"
    needed = [(RESURGO, "build it")] + [(MPICH / f"bin/{tool}", how) for tool in ("mpiexec", "mpicc")]
    for path, what in needed:
        if not path.exists():
            sys.exit(f"bench: {path.name} of MPICH is missing: {what}" if path.parent != RESURGO.parent
                     else f"bench: {path} is missing: {what}")
    if not shutil.which("make"):
        sys.exit("bench: make is missing: install it, it builds the programs that are measured")
    told = subprocess.run([MPICH / "bin/mpiexec", "--version"], capture_output=True, text=True, check=False).stdout
    if "HYDRA" not in told:
        sys.exit(f"bench: {MPICH / 'bin/mpiexec'} is not MPICH's: {how}")
    if not IS_TREE:
        make_own(PROGRAMS)
    make = ["make", "-s", "-C", str(ROOT / "bench/programs"), f"BUILD={PROGRAMS}", f"MPICC={MPICH / 'bin/mpicc'}"]
    make += [f"FT_INCLUDE={RESURGO.parent.parent / 'include/resurgo'}", f"FT_LIBRARY={RESURGO.parent.parent / 'lib/resurgo'}"]
    make += [] if IS_TREE else ["WARNINGS="]  # other compilers warn about other things
    if subprocess.run(make, check=False, env=environment()).returncode != 0:
        sys.exit("bench: the programs could not be built")


@dataclass(frozen=True)
class Contender:
    name: str
    launcher: tuple
    settings: tuple = ()  # in the environment: pairs

    def command(self, ranks, program, options=()):
        return [str(part) for part in (*self.launcher, *options, "-n", ranks, PROGRAMS / program[0], *program[1:])]

    def with_options(self, name, *options):
        return Contender(name, (*self.launcher, *options), self.settings)

    @property
    def is_resurgo(self):
        return RESURGO in self.launcher


DEFAULT = Contender("MPICH", (MPICH / "bin/mpiexec",))
TCP = Contender(
    "MPICH ofi/tcp",
    (MPICH / "bin/mpiexec",),
    (("MPIR_CVAR_CH4_NETMOD", "ofi"), ("MPIR_CVAR_NOLOCAL", "1"), ("FI_PROVIDER", "tcp")),
)
NONE = Contender("none", (RESURGO, "run", "-q", "--protocol", "none"))
PESSIMISTIC = Contender("pessimistic", (RESURGO, "run", "-q", "--protocol", "pessimistic"))
AUTO = Contender("auto", (RESURGO, "run", "-q", "--protocol", "auto"))
BLOCKING = Contender("blocking", (RESURGO, "run", "-q", "--protocol", "blocking"))


@functools.cache
def offered():
    """The protocols and options that this binary knows, as its help names them."""
    text = subprocess.run([RESURGO, "--help"], capture_output=True, text=True, check=False).stdout
    options = set(re.findall(r"^ +(--[a-z-]+)", text, re.MULTILINE))
    about = re.search(r"^ +--protocol NAME +((?:.+\n)(?: {8,}.+\n)*)", text, re.MULTILINE)
    protocols = re.findall(r"^ *([a-z][a-z-]*)(?: \(default\))?:", about[1] if about else "", re.MULTILINE)
    return set(protocols), options


class Failed(Exception):
    pass


def about(pid):
    """The content of /proc/PID/stat, from the process's state on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def status(pid):
    """State and parent of a process; None when it is gone."""
    try:
        fields = about(pid)
    except OSError:
        return None
    return fields[0], int(fields[1])


class Job:
    """A running job. As a context it kills at its end what is left of the job."""

    def __init__(self, contender, ranks, *program, options=(), directory=None):
        self.mark = f"RESURGO_BENCH_MARK={uuid.uuid4().hex}"
        self.folder = tempfile.TemporaryDirectory(prefix="resurgo-bench-", dir=directory)
        self.directory = Path(self.folder.name)
        self.files = set()
        self.events_file = self.directory / "events.json"
        options = [*options, "--json-events", self.events_file] if contender.is_resurgo else options
        self.line = contender.command(ranks, program, options)
        name, _, value = self.mark.partition("=")
        self.watch = Watch()
        self.started = time.monotonic()
        with open(self.directory / "out", "wb") as out, open(self.directory / "err", "wb") as err:
            self.process = subprocess.Popen(
                self.line,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                # A measurement of images wants as many as it asks for.
                env=environment() | {"RESURGO_CHECKPOINT_SHARE": "100%"} | dict(contender.settings) | {name: value},
                cwd=self.directory,
                start_new_session=True,
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.destroy()
        self.folder.cleanup()

    @property
    def output(self):
        return (self.directory / "out").read_text(errors="replace")

    @property
    def errors(self):
        return (self.directory / "err").read_text(errors="replace")

    @property
    def events(self):
        """The events so far; an incomplete line waits for the next call."""
        try:
            data = self.events_file.read_bytes()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]

    def of(self, kind, **fields):
        return [
            event
            for event in self.events
            if event["event"] == kind and all(event.get(name) == value for name, value in fields.items())
        ]

    def over(self):
        return self.process.poll() is not None

    def until(self, condition, what, timeout=30.0, pause=0.002):
        """Waits for `condition()` and returns its value."""
        end = time.monotonic() + timeout
        while not (value := condition()):
            if self.over() or time.monotonic() > end:
                raise Failed(f"waited in vain for {what}: {self.describe()}")
            time.sleep(pause)
        return value

    def wait(self, timeout=TIMEOUT, any_code=False):
        """Waits for the end, at most `timeout` seconds after the start. Returns the seconds from the start to the
        end."""
        if self.process.returncode is None:
            # Popen.wait with a timeout looks only every 50 ms.
            handle = os.pidfd_open(self.process.pid)
            try:
                if not select.select([handle], [], [], max(0.0, self.started + timeout - time.monotonic()))[0]:
                    raise Failed(f"not finished after {timeout:.0f} s: {self.describe()}")
            finally:
                os.close(handle)
        seconds = time.monotonic() - self.started
        code = self.process.wait()
        self.others = self.watch.others()
        if code != 0 and not any_code:
            raise Failed(f"exit code {code}: {self.describe()}")
        return seconds

    def describe(self):
        return f"{' '.join(self.line)}\n{self.output[-500:]}\n{self.errors[-1500:]}"

    def processes(self):
        """Pids of all living processes that the job has started."""
        found = []
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if self.mark.encode() in Path(entry.path, "environ").read_bytes():
                        if (status(entry.name) or "Z")[0] not in "ZX":
                            found.append(int(entry.name))
        return found

    def ranks(self):
        """Pids of the ranks, by rank; found by the variable that every launcher gives them."""
        found = {}
        for pid in self.processes():
            with contextlib.suppress(OSError):
                rank = re.search(rb"(?:^|\0)PMI_RANK=(\d+)", Path(f"/proc/{pid}/environ").read_bytes())
                if rank and os.readlink(f"/proc/{pid}/exe").startswith(str(PROGRAMS)):
                    found[int(rank[1])] = pid
        return found

    def copies(self, rank):
        """Pids of a rank's sleeping images."""
        found = []
        for pid in self.processes():
            with contextlib.suppress(OSError):
                sleeps = Path(f"/proc/{pid}/comm").read_text() == "resurgo-image\n"
                if sleeps and re.search(rb"(?:^|\0)PMI_RANK=%d\0" % rank, Path(f"/proc/{pid}/environ").read_bytes()):
                    found.append(pid)
        return found

    def kill(self, pid):
        """Sends SIGKILL to a process of this job; False when it is gone."""
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(pid)
            try:
                # By now the number may belong to another process.
                if self.mark.encode() in Path(f"/proc/{pid}/environ").read_bytes():
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                    return True
            finally:
                os.close(handle)
        return False

    def shared_memory(self):
        """Files in /dev/shm that the job's processes have mapped: a killed MPICH job leaves them behind."""
        found = set()
        for pid in self.processes():
            with contextlib.suppress(OSError):
                found |= set(re.findall(r"(/dev/shm/\S+)", Path(f"/proc/{pid}/maps").read_text(errors="replace")))
        return found

    def remember_shared_memory(self):
        """Call before one of the job's processes is killed."""
        self.files |= self.shared_memory()

    def destroy(self):
        self.remember_shared_memory()
        if self.process.poll() is None:
            # The launcher also knows ranks that start just now. (By SIGTERM it would suspend a job with image files, for some seconds.)
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
        for _ in range(50):
            pids = self.processes()
            for pid in pids:
                self.kill(pid)
            if not pids:
                break
            time.sleep(0.02)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        for name in self.files:
            with contextlib.suppress(OSError):
                os.unlink(name)


def run(contender, ranks, *program, options=(), timeout=TIMEOUT):
    """Runs a job to its end. Returns its output, its seconds, and the share of the machine that others used
    meanwhile."""
    with Job(contender, ranks, *program, options=options) as job:
        seconds = job.wait(timeout)
        return job.output, seconds, job.others


def stats_of(contender, ranks, *program, options=(), timeout=TIMEOUT):
    """Runs a job of Resurgo to its end. Returns what it measured of itself, and the share of the machine that others
    used meanwhile."""
    with Job(contender, ranks, *program, options=(*options, "--stats-json", "stats")) as job:
        job.wait(timeout)
        return json.loads((job.directory / "stats").read_text()), job.others


def distance():
    """Nanoseconds that a cache line takes from one processor to another, in a list; empty if there is only one
    processor."""
    answer = subprocess.run([PROGRAMS / "distance"], capture_output=True, text=True, check=False)
    return [int(line) for line in answer.stdout.split()]


def have_memory_at_hand(mib):
    """Takes so much memory, or a quarter of what is free, and gives it back, in large pages, which become small ones
    when small ones are needed. A virtual machine returns free memory to its host, and the next process that needs it
    waits for the host. Which contender that is must not depend on the memory that the one before left free, nor on its
    page size. It takes little more than needed: returning memory takes the host's time."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    memory = mmap.mmap(-1, max(mmap.PAGESIZE, min(mib << 20, free // 4)), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    for page in range(0, len(memory), mmap.PAGESIZE):
        memory[page] = 0
    memory.close()


class Rounds:
    """Contenders in turn, A B C C B A A B C …: changes on the machine hit all alike, and so does what the contender
    before leaves behind. A measurement that others disturbed is repeated when they are quiet, for a limited time."""

    PATIENCE = 45.0  # seconds for one measurement

    def __init__(self, quick, mib=640):
        """`mib`: memory that every contender finds at hand."""
        self.mib = mib
        self.patience = 0.0 if quick else self.PATIENCE
        self.disturbances = []
        self.distances = []
        self.repeated = 0

    def go(self, contenders, repetitions, measure):
        """`measure(contender)` returns (value, share used by others), or None to leave this contender out from then on.
        Returns a list of values for each contender's name."""
        values = {contender.name: [] for contender in contenders}
        left_out = set()
        for repetition in range(repetitions):
            self.distances += distance()
            for contender in contenders[:: -1 if repetition % 2 else 1]:
                while contender.name not in left_out:
                    have_memory_at_hand(self.mib)
                    start = time.monotonic()
                    measured = measure(contender)
                    if measured is None:
                        left_out.add(contender.name)
                        break
                    value, others = measured
                    if others > DISTURBED and self.patience > 0:
                        wait_until_quiet(self.patience)
                        self.patience -= time.monotonic() - start
                        self.repeated += 1
                        continue
                    self.disturbances.append(others)
                    values[contender.name].append(value)
                    break
        return values

    def note(self):
        disturbed = sum(others > DISTURBED for others in self.disturbances)
        text = f"others used at most {max(self.disturbances):.0%} of the machine"
        if self.repeated:
            text += f", {self.repeated} disturbed runs were repeated"
        if disturbed:
            text += f", **{disturbed} of {len(self.disturbances)} runs were disturbed**"
        if self.distances:
            shortest, usual, longest = (int(part(self.distances)) for part in (min, median, max))
            text += f"; a line of the cache went from one processor to another in {usual} ns ({shortest}–{longest})"
        return text
