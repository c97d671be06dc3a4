# SPDX-License-Identifier: Apache-2.0
"""Images on their way: to places on this machine, to a partner, a server and S3 across two nodes, and what the program loses meanwhile.

Beside each is a plain TCP stream on the same way. On this machine a third of the data is noise, a third are numbers that compress, a third are
zeros; across nodes all of it is noise.
"""

import contextlib
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import cluster
from contenders import DEPS, PROGRAMS, RESURGO, Contender, Failed, Job, Rounds, environment
from report import Section, number, spread
from statistics import median

S3S = DEPS / "tools/bin/s3s-fs"
BLOCK = 1 << 20
LINK = "1gbit"
# They print the port, and the seconds.
RECEIVE = """import socket, sys
with socket.create_server((sys.argv[1], 0)) as server:
    print(server.getsockname()[1], flush=True)
    connection, buffer = server.accept()[0], bytearray(1 << 20)
    while connection.recv_into(buffer):
        pass
    connection.sendall(b'x')"""
SEND = """import socket, sys, time
start = time.monotonic()
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
connection.sendfile(open(sys.argv[3], 'rb'))
connection.shutdown(socket.SHUT_WR)
connection.recv(1)
print(time.monotonic() - start)"""


def write(path, mib, kinds=3):
    """The same each time: of one kind, noise; of three, also numbers and zeros."""
    numbers = random.Random(7)
    with open(path, "wb") as file:
        for block in range(mib):
            match block * kinds // mib:
                case 0:
                    file.write(numbers.randbytes(BLOCK))
                case 1:
                    few = [numbers.randbytes(6) + b"\0\0" for _ in range(256)]
                    file.write(b"".join(numbers.choices(few, k=BLOCK // 8)))
                case _:
                    file.write(bytes(BLOCK))


# Half of 1 Gbit/s, in MB/s, as the user can bound copies. (Emulated links do not tell their speed.)
PACE = 60
PACED = f"peers:1;rate={PACE * 10**6}"


def inside(space, *command):
    """A command, in a network namespace if one is named."""
    return [str(word) for word in (*(("ip", "netns", "exec", space) if space else ()), *command)]


def stream(path, address="127.0.0.1", receiver=None, sender=None):
    """Seconds to send a file through one TCP connection."""
    with subprocess.Popen(inside(receiver, sys.executable, "-c", RECEIVE, address), stdout=subprocess.PIPE, text=True) as listening:
        try:
            port = listening.stdout.readline().strip()
            sent = subprocess.run(inside(sender, sys.executable, "-c", SEND, address, port, path), capture_output=True, text=True, check=False)
        finally:
            listening.kill()
    if sent.returncode != 0:
        raise Failed(f"the plain stream: {sent.stderr.strip()}")
    return float(sent.stdout)


def resident(pid, field):
    """MiB of a process, as /proc/PID/status calls them."""
    with contextlib.suppress(OSError):
        if (Path(f"/proc/{pid}/exe").resolve()) == RESURGO.resolve():
            found = re.search(rf"{field}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
            return int(found[1]) / 1024 if found else 0.0
    return 0.0


def store(*words, space=None, **more):
    """Seconds, processor seconds and most MiB of memory of one command."""
    start = time.monotonic()
    process = subprocess.Popen(inside(space, RESURGO, "store", *words), stdout=subprocess.DEVNULL, env=os.environ | more)
    most = 0.0
    # The ru_maxrss of a process begins with the memory of the one that has started it.
    while (ended := os.wait4(process.pid, os.WNOHANG))[0] == 0:
        most = max(most, resident(process.pid, "VmHWM"))
        time.sleep(0.005)
    _, status, usage = ended
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise Failed(f"resurgo store {' '.join(map(str, words))} failed")
    return time.monotonic() - start, usage.ru_utime + usage.ru_stime, most


@contextlib.contextmanager
def server(scratch, address="127.0.0.1", space=None):
    """A checkpoint server, as a place and the variables for it."""
    command = inside(space, RESURGO, "checkpoint-server", "--directory", f"{scratch}/server", "--listen", f"{address}:0")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            port = re.search(r":(\d+),", process.stdout.readline())
            if not port:
                raise Failed("the checkpoint server does not start")
            yield f"server:{address}:{port[1]};key={scratch}/server/keys", {}
        finally:
            process.kill()


@contextlib.contextmanager
def s3(scratch, address="127.0.0.1", space=None):
    """A server that speaks S3."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.makedirs(f"{scratch}/s3/bucket")
    command = inside(space, S3S, "--host", address, "--port", port, "--access-key", "a", "--secret-key", "b", f"{scratch}/s3")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(100):
                with contextlib.suppress(OSError):
                    socket.create_connection((address, port)).close()
                    break
                time.sleep(0.05)
            else:
                raise Failed("the S3 server does not start")
            yield "s3://bucket", {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_ENDPOINT_URL": f"http://{address}:{port}"}
        finally:
            process.kill()


@contextlib.contextmanager
def directory(scratch):
    yield f"dir:{scratch}/dir", {}


def on_this_machine(section, scratch, mib):
    """put, again (nothing is new) and get, plain and sealed, without a network."""
    write(scratch / "files/image", mib)
    (scratch / "key").write_text(os.urandom(32).hex())
    (scratch / "key").chmod(0o600)
    plain = min(stream(scratch / "files/image") for _ in range(3))
    rows = []
    for name, place in (("dir", directory), ("server", server), *((("s3", s3),) if S3S.exists() else ())):
        with place(scratch) as (where, variables):
            for key in ([], ["--store-key", scratch / "key"]):
                back, job = scratch / "back", f"job{len(key)}"
                back.mkdir()
                for what, words in (
                    ("put", ["put", where, job, 1, 0, scratch / "files"]),
                    ("again", ["put", where, job, 2, 0, scratch / "files"]),
                    ("get", ["get", where, job, back]),
                ):
                    seconds, cpu, memory = store(*words, *key, **variables)
                    rows.append([name + (", sealed" if key else ""), what, number(mib / seconds), number(plain / seconds), number(cpu), number(memory)])
                shutil.rmtree(back)
    section.text(f"On this machine, {mib} MiB; a plain TCP stream takes {number(mib / plain)} MiB/s.")
    section.table(["place", "", "MiB/s", "of TCP", "processor, s", "memory, MiB"], rows)


def received(nodes, node):
    """Bytes that have come from a node."""
    return int(Path(f"/sys/class/net/{nodes.link(node)}/statistics/rx_bytes").read_text())


class Watched(threading.Thread):
    """While a job runs: bytes from its first node by time, and the memory of its agent."""

    def __init__(self, nodes):
        super().__init__()
        self.nodes, self.over, self.samples, self.memory = nodes, threading.Event(), [], 0.0

    def run(self):
        while not self.over.wait(0.02):
            self.samples.append((time.monotonic(), received(self.nodes, 1)))
            if len(self.samples) % 10 == 0:
                # Of its agent, without the memory that is a file's, as images in memory are.
                self.memory = max([self.memory, *(resident(pid, "RssAnon") for pid in self.nodes.pids(1))])

    def megabytes_a_second(self):
        """While much was sent: the median over stretches of 0.1 s with more than a tenth of the fastest one."""
        rates = [(b - a) / (u - t) / 1e6 for (t, a), (u, b) in zip(self.samples, self.samples[5:])]
        busy = [rate for rate in rates if rate > max(rates, default=0.0) / 10]
        return median(busy) if busy else 0.0


def job(nodes, *options):
    hosts = ",".join(f"{nodes.address(node)}:1" for node in (1, 2))
    launcher = (RESURGO, "run", "-q", "--protocol", "blocking", "--launcher", "ssh", "-hosts", hosts, *options)
    return Contender(" ".join(options) or "none", launcher, (("PATH", f"{nodes.bin}:{environment()['PATH']}"),))


def finished(contender, program):
    """When the last rank ended, how many waves there were, and what others used."""
    with Job(contender, 2, *program) as running:
        running.wait(300)
        return max(event["time"] for event in running.of("finished")), len(running.of("wave_complete")), running.others


def to_a_partner(nodes, program):
    """MB/s of images to the next node, and the agent's most MiB of memory."""
    watched = Watched(nodes)
    watched.start()
    try:
        _, waves, _ = finished(job(nodes, "--checkpoint-every", "1s"), program)
    finally:
        watched.over.set()
        watched.join()
    if not waves:
        raise Failed("no wave was complete: the program is over too soon")
    return watched.megabytes_a_second(), watched.memory


def rounds_for(nodes, mib, seconds):
    few, rounds = finished(job(nodes), ("groups", 2, 1, mib))[0], 200
    while (took := max(finished(job(nodes), ("groups", 2, rounds, mib))[0] - few, seconds / 100)) < 0.7 * seconds:
        rounds = int(rounds * min(10, 1.1 * seconds / took))
    return ("groups", 2, rounds, mib)


def across_nodes(section, scratch, quick):
    """Between two nodes, on links as they are and of 1 Gbit/s."""
    mib, repetitions = (32, 1) if quick else (256, 3)
    write(scratch / "files/image", mib, 1)
    rows, losses, rounds = [], [], Rounds(quick)
    for rate in (None, LINK):
        shown = rate or "as it is"
        with cluster.Cluster(2) as nodes:
            if rate:
                for node in nodes.nodes:
                    nodes.shape(node, rate)
            here, there, address = nodes.space(1), nodes.space(2), nodes.address(2)
            plain = [mib * 1.048576 / stream(scratch / "files/image", address, there, here) for _ in range(repetitions)]
            rows.append([shown, "plain TCP stream", spread(plain), "1", ""])
            for name, place in (("server", server), *((("s3", s3),) if S3S.exists() else ())):
                speeds, memories = [], []
                for repetition in range(repetitions):
                    with tempfile.TemporaryDirectory(dir=scratch) as at, place(at, address, there) as (where, variables):
                        seconds, _, memory = store("put", where, "job", 1, 0, scratch / "files", space=here, **variables)
                    speeds.append(mib * 1.048576 / seconds)
                    memories.append(memory)
                rows.append([shown, name, spread(speeds), number(median(speeds) / median(plain)), number(max(memories))])
                if rate:
                    section.at_least(f"images to a {name} across {rate}, against a plain TCP stream", 0.8, median(speeds) / median(plain))
            size = 16 if quick else 64
            program = rounds_for(nodes, size, 4 if quick else 10)
            speed, memory = to_a_partner(nodes, program)
            rows.append([shown, "partner", number(speed), number(speed / median(plain)), number(memory)])
            # By design they leave half of the network to the program.
            section.figure(f"images to a partner, link {shown}", "≤ 200 MB/s, ≤ 0.6 ×", f"{number(speed)} MB/s, {number(speed / median(plain))} ×",
                           speed <= 220 and (not rate or speed <= 0.65 * median(plain)))
            images = ("--checkpoint-every", "1s")
            paced = [(job(nodes, *images, "--store", PACED), PACE)] if rate else []
            with_images = [(job(nodes, *images), speed), *paced]
            waves = {}

            def timed(contender, program=program, waves=waves):
                seconds, count, others = finished(contender, program)
                waves[contender.name] = max(count, waves.get(contender.name, 0))
                return seconds, others

            plain_job = job(nodes)
            times = rounds.go([plain_job, *(contender for contender, _ in with_images)], repetitions, timed)
            base = median(times[plain_job.name])
            for contender, pace in with_images:
                slowed, count = median(times[contender.name]), waves[contender.name]
                share = count * size * 1.048576 / max(pace, 1e-9) / slowed
                loss, share = 100 * (slowed / base - 1), min(1.0, share)
                losses.append([shown, contender.name.removeprefix("--checkpoint-every 1s").strip() or "their own", spread(times[plain_job.name]),
                               spread(times[contender.name]), count, f"{loss:+.1f} %", f"{share:.0%}", f"{loss / share:+.1f} %" if share else "–"])
    section.text(f"Between two nodes, {mib} MiB of noise to places, images of {size} MiB to a partner.")
    section.table(["link", "to", "MB/s", "of TCP", "memory of the sender, MiB"], rows)
    section.text(f"A program with {size} MiB a rank, all of it written to meanwhile, with an image of each rank on the other node each second.")
    section.table(["link", "pace", "without images, s", "with, s", "waves", "loss", "images travel for", "loss while they travel"], losses)
    section.note = rounds.note()


def measure(quick):
    section = Section("store", "Images on their way", quick)
    section.note = "no emulated nodes"
    scratch = Path(tempfile.mkdtemp(prefix="resurgo-bench-store-", dir=Path.cwd()))
    try:
        (scratch / "files").mkdir()
        on_this_machine(section, scratch, 32 if quick else 1024)
        if cluster.is_possible():
            across_nodes(section, scratch, quick)
    finally:
        shutil.rmtree(scratch)
    return section
