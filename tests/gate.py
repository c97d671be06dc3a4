#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the short tests as the gate of a change: two files at once, then what only missed its moment, alone.

    .deps/mpich/bin/python tests/gate.py [tests and options for pytest]

A test that has missed its moment (harness.Missed) or lost its patience (harness.Expired) says nothing about the product. It is tried up to
two times more, one test at a time; what passes then is forgiven. Everything else fails the gate, also if the test passes later.
`tests/flaky.txt` lists tests whose failures do not count for a while.
"""

import datetime
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parent
OUT = TESTS.parent / "build" / "gate"
LISTED = TESTS / "flaky.txt"
MOST_LISTED = 10
PASSES = 3
# The same random numbers in each run: new ones are for long runs.
SEED = "1"
# Exit statuses of pytest: all passed; some failed. Others mean that tests were not run.
RAN = (0, 1)


@dataclass(frozen=True)
class Listed:
    """A line of flaky.txt."""

    test: str
    seen: str
    day: datetime.date
    last_day: datetime.date


def listed(text, today):
    """The tests of flaky.txt, and what is wrong with it."""
    lines, wrong = [], []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        try:
            test, seen, day, last_day = (field.strip() for field in line.split("|"))
            lines.append(Listed(test, seen, datetime.date.fromisoformat(day), datetime.date.fromisoformat(last_day)))
        except ValueError:
            wrong.append(f"flaky.txt: not TEST | WHAT WAS SEEN | DAY | LAST DAY: {line}")
    wrong += [f"flaky.txt: {line.test} was to be mended by {line.last_day}" for line in lines if line.last_day < today]
    if len(lines) > MOST_LISTED:
        wrong.append(f"flaky.txt: {len(lines)} tests, of at most {MOST_LISTED}")
    return {line.test: line for line in lines}, wrong


def judge(passes, known):
    """What the passes have shown: (what fails the gate, what is forgiven, listed tests that failed), each by test.

    `passes` are lists of outcomes, each a dictionary with `test`, `outcome` (passed, failed or skipped) and `kind` (missed, expired, wrong
    or fault; only of failures). A wrong answer is never forgiven, nor excused by the list."""
    fatal, forgiven, excused = {}, {}, {}
    for number, outcomes in enumerate(passes):
        is_last = number == len(passes) - 1
        for outcome in outcomes:
            test, kind = outcome["test"], outcome.get("kind")
            if outcome["outcome"] != "failed":
                continue
            if kind in ("missed", "expired"):
                forgiven[test] = outcome
                if is_last and test not in known:
                    fatal.setdefault(test, outcome)
            elif kind != "wrong" and test in known:
                excused[test] = outcome
            else:
                fatal.setdefault(test, outcome)
    return fatal, {test: outcome for test, outcome in forgiven.items() if test not in fatal}, excused


def to_repeat(outcomes):
    """Tests of a pass whose only failures may be forgiven."""
    failed = {}
    for outcome in outcomes:
        if outcome["outcome"] == "failed":
            failed.setdefault(outcome["test"], set()).add(outcome["kind"])
    return [test for test, kinds in failed.items() if kinds <= {"missed", "expired"}]


def run(number, arguments):
    """One pass: pytest's exit status, and the outcomes."""
    file = OUT / f"pass-{number}.jsonl"
    command = [sys.executable, "-m", "pytest", "--outcomes", str(file), "--pass-number", str(number), *arguments]
    status = subprocess.run(command, cwd=TESTS.parent, check=False).returncode
    lines = file.read_text().splitlines() if file.exists() else []
    return status, [json.loads(line) for line in lines]


def main(arguments):
    OUT.mkdir(parents=True, exist_ok=True)
    for old in OUT.glob("*.jsonl"):
        old.unlink()
    known, wrong = listed(LISTED.read_text(), datetime.date.today())
    seed = [] if "--seed" in arguments else ["--seed", SEED]
    status, first = run(1, ["-n", "2", "--dist", "loadfile", "--durations", "25", *seed, *(arguments or ["tests"])])
    passes = [first]
    while status in RAN and len(passes) < PASSES and (again := to_repeat(passes[-1])):
        print(f"\n{len(again)} tests say nothing yet, and are tried once more, alone", flush=True)
        status, outcomes = run(len(passes) + 1, [*seed, *again])
        passes.append(outcomes)
    if status not in RAN:
        print(f"gate: pytest ended with {status}", file=sys.stderr)
        return status
    fatal, forgiven, excused = judge(passes, known)
    with open(OUT / "forgiven.jsonl", "w") as file:
        file.writelines(json.dumps(outcome) + "\n" for outcome in forgiven.values())
    print()
    for what, outcomes in (("forgiven", forgiven), ("listed in flaky.txt", excused), ("failed", fatal)):
        for test, outcome in outcomes.items():
            print(f"gate: {what}: {test}: {outcome['kind']}: {outcome['why']}")
    for reason in wrong:
        print(f"gate: {reason}")
    tests = {outcome["test"] for outcome in first if outcome["outcome"] != "skipped"}
    skipped = sum(outcome["outcome"] == "skipped" for outcome in first)
    print(f"{len(tests) - len(fatal)} passed, {len(fatal)} failed, {skipped} skipped")
    return int(bool(fatal or wrong or not tests))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
