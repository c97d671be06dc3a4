# SPDX-License-Identifier: Apache-2.0
"""Process images: how long a rank stands still for one, what they cost, and how soon a killed rank runs again."""

import time
from statistics import median

from contenders import PESSIMISTIC, Job, Rounds, run
from node_memory import NodeMemory
from report import Section, spread

MIB = 1024  # of a rank's heap, all written
OFTEN = PESSIMISTIC.with_options("an image every 300 ms", "--checkpoint-every", "300ms")
USUAL = PESSIMISTIC.with_options("an image every 10 s", "--checkpoint-every", "10s")
# Long enough for some images of each rank.
PROGRAMS = {"heat, 4 ranks": ("heat", 1024, 1024, 30000), "cg, 4 ranks": ("cg", 1024, 6000)}
QUICK = {"heat, 4 ranks": ("heat", 512, 512, 2000), "cg, 4 ranks": ("cg", 512, 500)}


def stalls(quick):
    """Milliseconds that rank 0 stood still for images, and that its own forks took in the same run."""
    with Job(OFTEN, 2, "dirty", 256 if quick else MIB, 4 if quick else 12) as job:
        job.wait()
        images = [event["stall_seconds"] * 1e3 for event in job.of("checkpointed", rank=0)]
        return (images, [float(line) for line in job.output.split()]), job.others


def back(victim):
    """Milliseconds from SIGKILL to the new process, and to the first delivery of the woken rank."""
    with Job(OFTEN, 2, "heat", 512, 512, 12000) as job:
        job.until(lambda: len(job.of("checkpointed", rank=victim)) > 1, "an image")
        pid = job.of("started", rank=victim)[0]["pid"]
        with NodeMemory(pid) as memory:
            killed = time.monotonic_ns()
            job.kill(pid)
            again = job.until(
                lambda: (ns := memory.get(victim, "first_delivery_ns")) and ns > killed and ns, "a delivery", pause=0.0005
            )
        job.wait()
        opened = job.of("job_started")[0]["unix_time"] - (time.time() - time.monotonic())
        restarted = opened + job.of("started", rank=victim, life=2)[0]["time"]
        return (restarted * 1e3 - killed * 1e-6, (again - killed) * 1e-6), job.others


def measure(quick):
    section = Section("images", "Process images", quick)
    rounds = Rounds(quick)
    measured = rounds.go((OFTEN,), 1 if quick else 3, lambda _: stalls(quick))[OFTEN.name]
    images = [stall for stood, _ in measured for stall in stood]
    forks = [fork for _, forked in measured for fork in forked]
    size = f"{256 if quick else MIB} MiB, all written"
    section.at_most(f"stall for an image, {size}, against a bare fork of the same process", 1.3, images, forks)
    kills = rounds.go((OFTEN,), 3 if quick else 9, lambda _: back(1))[OFTEN.name]
    started, running = ([kill[part] for kill in kills] for part in (0, 1))
    section.figure("SIGKILL to running again from a sleeping snapshot", "< 50 ms", f"{median(running):.1f} ms",
                   median(running) < 50)
    section.table(
        ["ms", ""],
        [[f"stall for an image, {size}", spread(images)], [f"bare fork, {size}", spread(forks)],
         ["SIGKILL to the new process", spread(started)], ["SIGKILL to its first delivery", spread(running)]],
    )
    rows = []
    for name, program in (QUICK if quick else PROGRAMS).items():
        def seconds(contender, program=program):
            _, took, others = run(contender, 4, *program)
            return took, others

        times = rounds.go((PESSIMISTIC, USUAL), 1 if quick else 5, seconds)
        section.at_most(f"{name}: an image of each rank every 10 s", 1.02, times[USUAL.name], times[PESSIMISTIC.name])
        rows.append([name, spread(times[PESSIMISTIC.name]), spread(times[USUAL.name])])
    section.table(["s", PESSIMISTIC.name, USUAL.name], rows)
    section.note = rounds.note()
    return section
