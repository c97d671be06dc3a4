# SPDX-License-Identifier: Apache-2.0
"""The picture: time to solution against the number of kills."""

import csv
import random
import textwrap
import time
from functools import partial
from statistics import median

from contenders import BLOCKING, DEFAULT, PESSIMISTIC, TCP, Job, Rounds, run
from report import OUT, Section, number, spread
from svg import Panel, around, write

RANKS = 4
PROGRAM = ("heat", 1024, 1024, 8000)
QUICK = ("heat", 512, 512, 3000)
KILLS = (0, 1, 2, 4, 8)
IMAGES = ("--checkpoint-every", "500ms")
ENDURING = ("--max-restarts", "1000", "--max-restarts-per-rank", "1000")
SURVIVOR = PESSIMISTIC.with_options("pessimistic", *ENDURING)
WITH_IMAGES = PESSIMISTIC.with_options("pessimistic, images every 0.5 s", *ENDURING, *IMAGES)
BLOCKING = BLOCKING.with_options("blocking, waves every 0.5 s", *ENDURING, *IMAGES)
SURVIVORS = (SURVIVOR, WITH_IMAGES, BLOCKING)


def moments(seed, kills, span):
    """When which rank is killed: independent moments, uniform over `span` seconds from the start of the job."""
    chance = random.Random(f"{seed} {kills}")
    return sorted((chance.uniform(0, span), chance.randrange(RANKS)) for _ in range(kills))


def answer(output):
    return output.splitlines()[-1]


def strike(job, due, rank, start, find):
    """Kills `rank` at `due` seconds after `start`, as soon as it runs; False when the job was over before."""
    while (left := start + due - time.monotonic()) > 0:
        if job.over():
            return False
        time.sleep(min(left, 0.05))
    while not job.over():
        pid = find(rank)
        if pid and job.kill(pid):
            return True
        time.sleep(0.001)
    return False


def running(job, rank):
    """The process of a rank of a job of resurgo; None while the rank has none."""
    pid = None
    for event in job.events:
        if event.get("rank") == rank and event["event"] == "started":
            pid = event["pid"]
        elif event.get("rank") == rank and event["event"] in ("failed", "finished"):
            pid = None
    return pid


def with_resurgo(contender, program, blows):
    """Seconds to the solution, the kills that struck, and the answer."""
    with Job(contender, RANKS, *program) as job:
        struck = sum(strike(job, due, rank, job.started, partial(running, job)) for due, rank in blows)
        return job.wait(), struck, answer(job.output), job.others


def by_hand(contender, program, blows):
    """The same for plain MPICH: after each kill that ends the job, it starts again from the beginning."""
    start = time.monotonic()
    struck, others = 0, 0.0
    for due, rank in [*blows, (None, None)]:
        with Job(contender, RANKS, *program) as job:

            def find(rank, job=job):
                job.remember_shared_memory()
                return job.ranks().get(rank)

            if due is not None and strike(job, due, rank, start, find):
                struck += 1
                job.wait(any_code=True)
                continue
            job.wait()
            return time.monotonic() - start, struck, answer(job.output), job.others
    raise AssertionError("the last round is not killed")


def measure(quick):
    section = Section("kills", "Time to solution against the number of kills", quick)
    program = QUICK if quick else PROGRAM
    rounds = Rounds(quick)
    modes = rounds.go((DEFAULT, TCP), 1, lambda contender: run(contender, RANKS, *program)[1:])
    plain = min((DEFAULT, TCP), key=lambda contender: median(modes[contender.name]))
    _, span, _ = run(SURVIVOR, RANKS, *program)
    span = 0.95 * min(span, *modes[plain.name])
    results = []  # kills, seed, contender, seconds, kills that struck
    answers = set()
    for seed in (1,) if quick else (1, 2, 3):
        for kills in (0, 2, 4) if quick else KILLS:
            blows = moments(seed, kills, span)

            def solution(contender, blows=blows):
                if contender in SURVIVORS:
                    seconds, struck, told, others = with_resurgo(contender, program, blows)
                else:
                    seconds, struck, told, others = by_hand(contender, program, blows)
                answers.add(told)
                return (seconds, struck), others

            for name, values in rounds.go((plain, *SURVIVORS), 1, solution).items():
                results += [(kills, seed, name, *value) for value in values]
    assert len(answers) == 1, f"different answers: {answers}"
    section.note = rounds.note()

    def seconds(name, kills):
        return [row[3] for row in results if row[2] == name and row[0] == kills]

    counts = sorted({row[0] for row in results})
    head = ["kills", f"{plain.name}, started again by hand, s"]
    for survivor in SURVIVORS:
        head += [f"{survivor.name}, s", "ratio"]
    rows = []
    for kills in counts:
        by_plain = seconds(plain.name, kills)
        row = [str(kills), spread(by_plain)]
        for survivor in SURVIVORS:
            by_resurgo = seconds(survivor.name, kills)
            row += [spread(by_resurgo), f"{median(by_resurgo) / median(by_plain):.2f}"]
            if kills:
                what = f"{kills} kills: {survivor.name} against {plain.name} from scratch"
                section.at_most(what, 1.0, by_resurgo, by_plain)
        rows.append(row)
    section.table(head, rows)
    note = (
        f"`{' '.join(map(str, program))}`, {RANKS} ranks; every answer was the same. The ranks and the moments of the "
        f"kills come from a seed, are the same for both, and lie in the first {number(span)} s. {plain.name} is the "
        "faster of MPICH's two modes here."
    )
    section.text(textwrap.fill(note, 120))
    OUT.mkdir(parents=True, exist_ok=True)
    with open(OUT / "kills.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["kills", "seed", "contender", "seconds", "kills_that_struck"])
        writer.writerows([*row[:3], f"{row[3]:.3f}", row[4]] for row in results)
    (OUT / "kills.md").write_text("\n\n".join(section.parts) + "\n")
    draw(results, plain.name, program)
    section.text("![time to solution](kills.svg)")
    return section


def draw(results, plain, program):
    """Medians, and the range around them."""
    labels = {plain: f"{plain}, started again by hand"} | {survivor.name: f"resurgo, {survivor.name}" for survivor in SURVIVORS}
    counts = sorted({row[0] for row in results})
    series = {
        label: [around(kills, (row[3] for row in results if row[2] == name and row[0] == kills)) for kills in counts]
        for name, label in labels.items()
    }
    panel = Panel(f"{' '.join(map(str, program))}, {RANKS} ranks", "processes killed during the run", "time to solution, s", series)
    write(OUT / "kills.svg", "Time to solution against the number of kills", [panel])
