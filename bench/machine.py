# SPDX-License-Identifier: Apache-2.0
"""What else this machine is doing: figures measured while others compute are no figures."""

import os
import platform
import re
import resource
import time
from pathlib import Path

CORES = os.cpu_count() or 1
TICK = 1 / os.sysconf("SC_CLK_TCK")
QUIET = 0.06  # share of all cores that others may use when a measurement starts
DISTURBED = 0.10  # share above which what was measured is measured again


def busy_seconds():
    """CPU seconds since boot of all processes, and of the hypervisor for other machines."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields[:8]
    return (user + nice + system + irq + softirq + steal) * TICK


def own_seconds():
    """CPU seconds of this process and of children that it has waited for."""
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    return total


class Watch:
    """From its making to `others()`: the share of all cores that others used."""

    def __init__(self):
        self.wall, self.busy, self.own = time.monotonic(), busy_seconds(), own_seconds()

    def others(self):
        wall = time.monotonic() - self.wall
        foreign = (busy_seconds() - self.busy) - (own_seconds() - self.own)
        # The counters advance in ticks.
        return max(0.0, foreign - 2 * TICK) / (wall * CORES)


def wait_until_quiet(patience, say=lambda text: None):
    """Waits until others leave the machine alone, at most `patience` seconds; returns the share that they use at the
    end."""
    end = time.monotonic() + patience
    told = False
    while True:
        watch = Watch()
        time.sleep(0.5)
        share = watch.others()
        if share <= QUIET:
            return share
        if time.monotonic() >= end:
            say(f"warning: others use {share:.0%} of the machine; what follows is disturbed")
            return share
        if not told:
            say(f"waiting: others use {share:.0%} of the machine")
            told = True


def load():
    return " ".join(f"{value:.2f}" for value in os.getloadavg())


def description():
    """Processor, cores, memory and kernel in one line."""
    model = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text())
    gib = int(memory[1]) / (1 << 20) if memory else 0
    return f"{model[1] if model else platform.machine()}, {CORES} cores, {gib:.0f} GiB, Linux {platform.release()}"
