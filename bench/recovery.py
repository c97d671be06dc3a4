# SPDX-License-Identifier: Apache-2.0
"""From SIGKILL to the first replayed delivery, and the speed of the replay."""

import time
from statistics import median

from contenders import DEFAULT, PESSIMISTIC, TCP, Job, Rounds, run
from node_memory import NodeMemory
from report import Section, spread

# Ranks, program. All run on for a while after the kill.
PROGRAMS = {
    "heat, 2 ranks": (2, "heat", 512, 512, 6000),
    "heat, 4 ranks": (4, "heat", 512, 512, 6000),
    "cg, 2 ranks": (2, "cg", 512, 1500),
    "cg, 4 ranks": (4, "cg", 512, 1500),
    "ping-pong 8 B, 2 ranks": (2, "pingpong", 1, "8:700000"),
}
LIVES = 0.6  # seconds from the first delivery to the kill
ALLOWED = 100.0  # milliseconds beyond the program's own start-up


def kill_once(ranks, program, victim):
    """Kills one rank of a job and watches it come back. Returns the milliseconds to the first replayed delivery; the
    milliseconds of its first life from start to first delivery; and deliveries a second in the replay over those
    before."""
    with Job(PESSIMISTIC, ranks, *program) as job:
        job.until(lambda: len(job.of("started")) == ranks, "all ranks to start")
        pid = job.of("started", rank=victim)[0]["pid"]
        with NodeMemory(pid) as memory:
            first = job.until(lambda: memory.get(victim, "first_delivery_ns"), "a first delivery")
            time.sleep(max(0.0, LIVES - (time.monotonic_ns() - first) * 1e-9))
            killed = time.monotonic_ns()
            job.kill(pid)
            job.until(lambda: memory.get(victim, "incarnation") == 2, "a second life")
            again = job.until(
                lambda: (ns := memory.get(victim, "first_delivery_ns")) and ns > killed and ns, "a replayed delivery"
            )
            caught_up = job.until(lambda: memory.get(victim, "caught_up_ns"), "the end of the replay")
            replayed = memory.get(victim, "replay_deliveries")
        job.wait()
        opened = job.of("job_started")[0]["unix_time"] - (time.time() - time.monotonic())
        started = opened + job.of("started", rank=victim, life=1)[0]["time"]
        failed = opened + job.of("failed", rank=victim)[0]["time"]
        restarted = opened + job.of("started", rank=victim, life=2)[0]["time"]
        before = job.of("failed", rank=victim)[0]["deliveries"] / (killed - first)
        return {
            "back": (again - killed) * 1e-6,
            "first life": first * 1e-6 - started * 1e3,
            "noticed": failed * 1e3 - killed * 1e-6,
            "restarted": restarted * 1e3 - killed * 1e-6,
            "speed": replayed / (caught_up - again) / before,
            "replayed": replayed,
        }, job.others


def measure(quick):
    section = Section("recovery", "Recovery of a killed rank", quick)
    rounds = Rounds(quick)

    def start_ups(contender):
        output, _, others = run(contender, 2, "startup")
        return median(map(float, output.split())), others

    plain = rounds.go((DEFAULT, TCP), 3 if quick else 9, start_ups)
    start_up = median(plain[DEFAULT.name])
    rows = []
    for name, (ranks, *program) in PROGRAMS.items():
        if quick and "4 ranks" in name:
            continue
        kills = rounds.go((PESSIMISTIC,), 2 if quick else 7, lambda _: kill_once(ranks, program, ranks - 1))
        values = {key: [kill[key] for kill in kills[PESSIMISTIC.name]] for key in kills[PESSIMISTIC.name][0]}
        back, speed = median(values["back"]), median(values["speed"])
        section.figure(
            f"{name}: SIGKILL to the first replayed delivery",
            f"< {ALLOWED + start_up:.0f} ms ({ALLOWED:.0f} + start-up)",
            f"{back:.0f} ms",
            back < ALLOWED + start_up,
        )
        section.at_least(f"{name}: speed of the replay, against the original run", 1.0, speed)
        rows.append([name, *(spread(values[key]) for key in ("noticed", "restarted", "back", "first life", "speed"))])
        rows[-1].append(f"{median(values['replayed']):,.0f}")
    section.table(
        [
            "one kill",
            "to its notice, ms",
            "to the new process, ms",
            "to the first replayed delivery, ms",
            "first life: start to first delivery, ms",
            "replay, × the deliveries a second before",
            "deliveries replayed",
        ],
        rows,
    )
    section.text(
        "The program's own start-up, from execution to the end of MPI_Init under mpiexec with 2 ranks: "
        f"{spread(plain[DEFAULT.name])} ms by default, {spread(plain[TCP.name])} ms with ofi/tcp."
    )
    section.note = rounds.note()
    return section
