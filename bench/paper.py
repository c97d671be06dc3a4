# SPDX-License-Identifier: Apache-2.0
"""`resurgo bench paper`: repeats one or several of the papers' figures; each gives a table, a CSV and a picture."""

import argparse
import difflib
import signal
import sys
import tempfile
import time
from pathlib import Path

if sys.version_info < (3, 10):
    sys.exit(f"bench: Python 3.10 or later is needed, python3 is {sys.version.split()[0]}")

import machine
from contenders import Failed, prepare
from figures import FIGURES
from figures.common import PAPERS, VARIANTS, Setting


def say(text):
    print(f"bench: {text}", flush=True)


def listing():
    lines = ["resurgo bench paper FIGURE... [--quick] [--out DIR] [--protocols LIST] [--ranks LIST]", ""]
    for key, paper in PAPERS.items():
        lines += [paper]
        lines += [f"  {figure.name:<15} {figure.title}" for figure in FIGURES.values() if figure.paper == key]
    lines += ["", "all: every figure. Of each, a table (.md), its numbers (.csv) and a picture (.svg) are written to --out."]
    return "\n".join(lines)


def numbers(words):
    try:
        found = [int(word) for word in words.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise argparse.ArgumentTypeError(f"{words!r} is no list of numbers of ranks, as in 1,4,16")
    return found


def protocols(words):
    known = list(dict.fromkeys(variant.protocol for variant in VARIANTS))
    for word in words.split(","):
        if word not in known:
            raise argparse.ArgumentTypeError(f"there is no protocol {word!r}; known are {', '.join(known)}")
    return words.split(",")


def refuse(message):
    print(f"bench: {message}; resurgo bench lists figures and options", file=sys.stderr)
    sys.exit(2)


def options():
    parser = argparse.ArgumentParser(prog="resurgo bench paper", usage=listing(), add_help=False, allow_abbrev=False)
    parser.add_argument("figures", nargs="*")
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("resurgo-paper"))
    parser.add_argument("--protocols", type=protocols)
    parser.add_argument("--ranks", type=numbers)
    parser.error = refuse
    return parser.parse_args()


def chosen(names):
    for name in names:
        if name not in FIGURES and name != "all":
            near = difflib.get_close_matches(name, FIGURES, 1)
            refuse(f"there is no figure {name!r}" + (f", did you mean {near[0]}?" if near else ""))
    return list(FIGURES.values()) if "all" in names else [FIGURES[name] for name in dict.fromkeys(names)]


def cannot_write(out, error):
    return f"bench: cannot write to {out}: {error.strerror}; name another directory with --out"


def main():
    asked = options()
    if asked.help or not asked.figures:
        print(listing())
        return 0
    figures = chosen(asked.figures)
    # Ended from outside, this still ends the job that it measures.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        asked.out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=asked.out):
            pass
    except OSError as error:
        sys.exit(cannot_write(asked.out, error))
    prepare()
    say(machine.description())
    setting = Setting(asked.quick, asked.protocols, asked.ranks)
    failures = 0
    for figure in figures:
        machine.wait_until_quiet(0 if asked.quick else setting.patience, say)
        say(f"{figure.name}: {figure.title}")
        start = time.monotonic()
        try:
            result = figure.measure(setting)
        except Failed as failure:
            say(f"{figure.name} failed: {failure}")
            failures += 1
            continue
        try:
            figure.write(result, setting, asked.out)
        except OSError as error:
            sys.exit(cannot_write(asked.out, error))
        for claim, measured, seen in result.findings:
            say(f"  {claim}: {measured}; seen: {seen.strip('*')}")
        for what in result.left_out:
            say(f"  left out, not offered by this binary: {what}")
        say(f"{figure.name} took {time.monotonic() - start:.0f} s: {asked.out / figure.name}.md, .csv, .svg")
    return 1 if failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
