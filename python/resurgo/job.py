# SPDX-License-Identifier: Apache-2.0
"""Starts jobs of `resurgo run`, follows their events, and gives them commands."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO, Dict, Iterator, List, Mapping, Optional, Sequence, Union

from .timeline import Figure, draw
from .timeline import words as line_about

#: What `--json-events` says of one event: `time`, `event`, and further fields that depend on the event.
Event = Dict[str, Any]
_Path = Union[str, "os.PathLike[str]"]
_Word = Union[_Path, int]

#: The exit status of a job that has been suspended.
SUSPENDED = 75
#: Seconds between two looks at the files of a job: until it has begun, and later.
_AT_FIRST, _LATER = 0.002, 0.05
#: How much of standard error is kept as the reason of a job that does not begin.
_REASON = 4096

# Set when Python ends: the threads that watch jobs end, too. The jobs go on.
_python_ends = threading.Event()
_watchers: List[threading.Thread] = []


@atexit.register
def _end_watchers() -> None:
    _python_ends.set()
    for watcher in list(_watchers):
        watcher.join()


class Error(Exception):
    """What the command `resurgo` has said about a mistake, without the prefix `resurgo:`.

    `status` is the command's exit status; None if no command was run.
    """

    def __init__(self, message: str, status: Optional[int] = None) -> None:
        super().__init__(message)
        self.status = status


def run(
    command: Union[_Path, Sequence[_Word]],
    n: Optional[int] = None,
    protocol: Optional[str] = None,
    options: Sequence[_Word] = (),
    env: Optional[Mapping[str, str]] = None,
    cwd: Optional[_Path] = None,
    stdin: Any = subprocess.DEVNULL,
    stdout: Any = None,
    stderr: Any = None,
) -> Job:
    """Starts `resurgo run` with a program and its arguments, and returns while it runs.

    `n` is the number of ranks, and `options` are further words of the command line, as in
    `["--checkpoint-every", "1m"]`. `env`, `cwd`, `stdin`, `stdout` and `stderr` are those of `subprocess.Popen`; without
    `stderr` the job's standard error appears in `sys.stderr`.

    Raises:
        Error: an option is wrong, or the program cannot be run. Nothing was started.
    """
    words: List[_Word] = [] if n is None else ["-n", n]
    words += [] if protocol is None else ["--protocol", protocol]
    program: List[_Word] = [command] if isinstance(command, (str, os.PathLike)) else list(command)
    if not program:
        raise Error("the command is empty: it names the program to run")
    streams = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
    title = " ".join([os.path.basename(_text(program[0])), *map(_text, program[1:])])
    return Job(_binary(), ["run", *words, *options], ["--", *program], title, env, cwd, streams)._begun()


def resume(
    job: Union[Job, _Word, None] = None,
    options: Sequence[_Word] = (),
    env: Optional[Mapping[str, str]] = None,
    cwd: Optional[_Path] = None,
    stdin: Any = subprocess.DEVNULL,
    stdout: Any = None,
    stderr: Any = None,
) -> Job:
    """Goes on with a suspended or interrupted job: a `Job`, its number, or its directory.

    With `options=["--from", PLACE]` it comes from a place of `--store`; `job` is then its name there, or None for the
    only one. The job that goes on is a new `Job` with a number of its own.
    """
    streams = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
    words = ["resume", *options]
    if isinstance(job, Job):
        return Job(job._binary, words, [job.number], job._title, env or job._env, cwd, streams)._begun()
    name = [] if job is None else [job]
    return Job(_binary(), words, name, "a resumed job", env, cwd, streams)._begun()


def jobs() -> List[Dict[str, Any]]:
    """Your jobs on this machine, also those that can be resumed: the list of `resurgo ps --json`."""
    found: List[Dict[str, Any]] = json.loads(_ask(_binary(), ["ps", "--json"]))
    return found


def _binary() -> str:
    """The program `resurgo`: the one that $RESURGO names, that is installed with this package, or that is in PATH."""
    named = os.environ.get("RESURGO")
    if named:
        found = shutil.which(named)
        if not found:
            raise Error(f"$RESURGO names {named}, which is no program that can be run")
        return os.path.abspath(found)
    # ENVIRONMENT/lib/python3/site-packages/resurgo and PREFIX/lib/resurgo/python/resurgo; pip install --target DIR.
    above = Path(os.path.abspath(__file__)).parent.parents
    places = [str(above[level] / "bin") for level in (3, 0) if level < len(above)]
    found = shutil.which("resurgo", path=os.pathsep.join([*places, os.environ.get("PATH", os.defpath)]))
    if not found:
        raise Error("there is no program resurgo, neither beside this package nor in PATH; $RESURGO can name it")
    return os.path.abspath(found)


def _text(word: _Word) -> str:
    return str(word) if isinstance(word, int) else os.fspath(word)


def _reason(said: bytes) -> str:
    """What the command has said, without its name."""
    lines = said.decode(errors="replace").strip().splitlines()
    return "\n".join(line[len("resurgo: ") :] if line.startswith("resurgo: ") else line for line in lines)


def _ask(binary: str, words: Sequence[str], env: Optional[Mapping[str, str]] = None) -> str:
    """Runs a command of resurgo, and returns what it prints."""
    done = subprocess.run([binary, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
    if done.returncode:
        raise Error(_reason(done.stderr or done.stdout), done.returncode)
    return done.stdout.decode(errors="replace")


class _Tail:
    """What has been added to a file since the last look. The file need not be there yet."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: Optional[BinaryIO] = None

    @property
    def is_there(self) -> bool:
        return self._file is not None

    def read(self) -> bytes:
        if self._file is None:
            try:
                self._file = open(self._path, "rb")
            except FileNotFoundError:
                return b""
        return self._file.read()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class Job:
    """One run of a job; `run` and `resume` make it.

    In a notebook it shows its timeline. As a context manager it waits for the job's end; an exception ends the job.
    """

    def __init__(
        self,
        binary: str,
        options: Sequence[_Word],
        program: Sequence[_Word],
        title: str,
        env: Optional[Mapping[str, str]],
        cwd: Optional[_Path],
        streams: Dict[str, Any],
    ) -> None:
        self._binary, self._title, self._env = binary, title, env
        self._all: List[Event] = []
        self._said = b""  # on standard error, until the job has begun
        self._is_accepted = self._is_over = False
        self._changed = threading.Condition()
        directory = tempfile.mkdtemp(prefix="resurgo-")
        events, errors = os.path.join(directory, "events"), os.path.join(directory, "errors")
        try:
            with open(errors, "wb") as file:
                if streams["stderr"] is None:
                    streams = {**streams, "stderr": file}
                command = [binary, *map(_text, [*options, "--json-events", events, *program])]
                self._process = subprocess.Popen(command, env=env, cwd=cwd, **streams)
        except BaseException:
            shutil.rmtree(directory)
            raise
        self.stdin, self.stdout, self.stderr = self._process.stdin, self._process.stdout, self._process.stderr
        watcher = threading.Thread(target=self._watch, args=[directory, _Tail(events), _Tail(errors)], daemon=True)
        _watchers.append(watcher)
        watcher.start()

    @property
    def number(self) -> int:
        """The job's number, as in `resurgo ps`: the process number of its `resurgo run`."""
        return self._process.pid

    @property
    def exit_status(self) -> Optional[int]:
        """The exit status of `resurgo run`, as in its reference; None while the job runs."""
        return self._process.returncode if self._is_over else None

    def events(self) -> Iterator[Event]:
        """All events from the job's start on, as they come. The iterator ends with the job."""
        seen = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_over or len(self._all) > seen)
                news = self._all[seen:]
            if not news:
                self._begun()
                return
            seen += len(news)
            yield from news

    def wait(self, timeout: Optional[float] = None) -> int:
        """Waits for the job's end, and returns its exit status.

        Raises:
            TimeoutError: the job still runs after `timeout` seconds. It goes on.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_over, timeout):
                raise TimeoutError(f"job {self.number} still runs after {timeout} s")
        self._begun()
        return self._process.returncode

    def checkpoint(self) -> None:
        """Takes an image of every rank, and waits for it."""
        self._tell(["checkpoint"])

    def suspend(self) -> None:
        """Takes an image of every rank and ends them; `resume` goes on with the job. It needs `--checkpoint-dir`."""
        self._tell(["suspend"])
        self.wait()

    def kill_rank(self, rank: int) -> None:
        """Kills a rank on purpose: what follows is what follows from a crash."""
        self._tell(["kill", "--rank", str(rank)])

    def end(self) -> int:
        """Ends the job as Ctrl-C does, and waits for that; a second call ends it at once. Returns its exit status."""
        if not self._is_over:
            # A shell that starts Python in the background may have made it, and the job, ignore Ctrl-C.
            ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
            self._process.send_signal(signal.SIGTERM if ignored else signal.SIGINT)
        with self._changed:
            self._changed.wait_for(lambda: self._is_over)
        return self._process.returncode

    def statistics(self) -> Event:
        """What the job has cost in messages, images and recoveries: its event `job_ended`.

        Raises:
            Error: the job has not ended.
        """
        for event in reversed(self._all):
            if event["event"] == "job_ended":
                return event
        raise Error(f"job {self.number} has no statistics: it has not ended")

    def table(self) -> Any:
        """The events until now as a pandas DataFrame: a row for each, and a column for each field."""
        try:
            import pandas
        except ImportError:
            raise Error("a table needs pandas: pip install pandas") from None
        return pandas.DataFrame([{"time": None, "event": None, **event} for event in self._all])

    def timeline(self) -> Figure:
        """The job until now, as a picture: lives of its ranks, images, waves, failures, and what was repeated."""
        return Figure(self._repr_html_())

    def show(self, interval: float = 0.5, wait: bool = True) -> None:
        """Shows the timeline in a notebook, and what comes to it until the job ends. Elsewhere prints a line for each step.

        With `wait=False` a notebook goes on with its next cells meanwhile.
        """
        shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
        if not hasattr(shell, "kernel"):
            for event in self.events():
                line = line_about(event)
                if line:
                    print(f"{event['time']:9.2f} s  {line}", flush=True)
            return
        from IPython.display import display

        name = f"resurgo-{os.urandom(8).hex()}"
        display(self, display_id=name)
        if wait:
            self._update(name, interval)
            self._begun()
            return
        updater = threading.Thread(target=self._update, args=[name, interval], daemon=True)
        _watchers.append(updater)
        updater.start()

    def _update(self, name: str, interval: float) -> None:
        """Draws the display of that name anew until the job ends, and takes at most a tenth of a processor for it."""
        from IPython.display import update_display

        is_over, pause = False, interval
        while not is_over and not _python_ends.is_set():
            with self._changed:
                is_over = self._changed.wait_for(lambda: self._is_over, pause)
            began = time.monotonic()
            update_display(self, display_id=name)
            pause = max(interval, 10 * (time.monotonic() - began))
        with contextlib.suppress(ValueError):
            _watchers.remove(threading.current_thread())

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self.wait()
        else:
            self.end()

    def __repr__(self) -> str:
        return f"<resurgo job {self.number}: {self._title}: {self._state()}>"

    def _repr_html_(self) -> str:
        started = next((event for event in self._all if event["event"] == "job_started"), None)
        now = None if self._is_over or started is None else time.time() - started["unix_time"]
        return draw(self._all, self._title, self._state(), now)

    def _state(self) -> str:
        if not self._is_over:
            return "running"
        return "suspended" if self._process.returncode == SUSPENDED else f"ended with status {self._process.returncode}"

    def _tell(self, words: Sequence[str]) -> None:
        """Gives the job a command, when it can take one."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self._all)
        if self._is_over:
            raise Error(f"job {self.number} has ended")
        _ask(self._binary, [*words, str(self.number)], self._env)

    def _begun(self) -> Job:
        """Waits until the command line is known to be right. Raises `Error` if the job has ended before it began."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self._is_accepted)
        status = self._process.returncode
        if self._is_over and status and not self._all:
            line = _reason(self._said) or f"resurgo ended with status {status} before the job began"
            raise Error(line, status)
        return self

    def _watch(self, directory: str, events: _Tail, errors: _Tail) -> None:
        """Reads what the job writes until it is over; the files need no names any more then."""
        is_over, rest, unshown = False, b"", b""
        while not is_over and not _python_ends.wait(_LATER if self._all else _AT_FIRST):
            is_over = self._process.poll() is not None
            *lines, rest = (rest + events.read()).split(b"\n")
            said = errors.read()
            unshown += said
            with self._changed:
                self._all += [json.loads(line) for line in lines]
                self._is_accepted = events.is_there
                if not self._all:
                    self._said = (self._said + said)[-_REASON:]
                self._is_over = is_over
                self._changed.notify_all()
            # What is wrong with a command line is in the exception only.
            if unshown and self._is_accepted:
                with contextlib.suppress(OSError, ValueError):
                    sys.stderr.write(unshown.decode(errors="replace"))
                    sys.stderr.flush()
                unshown = b""
        events.close()
        errors.close()
        shutil.rmtree(directory, ignore_errors=True)
        _watchers.remove(threading.current_thread())
