# SPDX-License-Identifier: Apache-2.0
"""Measures Resurgo against plain MPICH on this machine.

    .deps/mpich/bin/python bench/run.py all [--quick]

Every figure is a ratio to plain MPICH, or stands beside it, in the same run. The tables are written to bench/out.
"""

import argparse
import signal
import sys
import time

import cluster
import datatypes
import diskless
import images
import kills
import launch
import machine
import memory
import nodes
import oversubscribed
import parity
import pingpong
import programs
import protocols
import recovery
import store
import trace_cost
import windows
from contenders import Failed, prepare
from report import summary, write_results

MEASUREMENTS = {
    "pingpong": pingpong,
    "windows": windows,
    "datatypes": datatypes,
    "oversubscribed": oversubscribed,
    "programs": programs,
    "recovery": recovery,
    "launch": launch,
    "memory": memory,
    "nodes": nodes,
    "kills": kills,
    "images": images,
    "protocols": protocols,
    "store": store,
    "parity": parity,
    "diskless": diskless,
    "trace": trace_cost,
}


def say(text):
    print(f"bench: {text}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("what", nargs="+", choices=["all", *MEASUREMENTS], help="what to measure")
    parser.add_argument("--quick", action="store_true", help="few and short repetitions: shows that it works, no more")
    parser.add_argument("--patience", type=float, default=20, help="seconds to wait for a quiet machine at each part")
    options = parser.parse_args()
    # Ended from outside, this still ends the job that it measures.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    prepare()
    say(machine.description())
    failures = 0
    everything = [name for name in MEASUREMENTS if name != "nodes" or cluster.is_possible()]
    for name in everything if "all" in options.what else options.what:
        machine.wait_until_quiet(0 if options.quick else options.patience, say)
        say(f"{name} (load {machine.load()})")
        start = time.monotonic()
        try:
            section = MEASUREMENTS[name].measure(options.quick)
        except Failed as failure:
            say(f"{name} failed: {failure}")
            failures += 1
            continue
        section.save()
        write_results()
        say(f"{name} took {time.monotonic() - start:.0f} s; {section.note}")
    print(summary())
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
