# SPDX-License-Identifier: Apache-2.0
"""Power cuts: what a process does to files is noted, and a disk is made that has only what must be on it by then.

A disk keeps what was brought to it: the bytes of a file by fsync of the file, the names in a directory by fsync of the
directory. Of all else it may have anything: names without bytes, late names without earlier ones, or nothing.
"""

import os
import subprocess
from pathlib import Path

WAYS = ["nothing", "names", "some"]


class File:
    def __init__(self):
        self.kept, self.size = None, 0


class Directory:
    def __init__(self):
        self.names, self.durable, self.later = {}, {}, []

    def does(self, *changes):
        """Changes of names, which are on the disk together or not at all."""
        self.later.append(changes)
        self.change(self.names, changes)

    @staticmethod
    def change(names, changes):
        for name, what in changes:
            if what is None:
                names.pop(name, None)
            else:
                names[name] = what

    def left(self, way, rng):
        """The names after a power cut."""
        names = dict(self.durable)
        for changes in self.later:
            if way == "names" or way == "some" and rng.random() < 0.5:
                self.change(names, changes)
        return names


class Disk:
    """What was done below `root`, which is on the disk from the beginning."""

    def __init__(self, root):
        self.root, self.top = Path(root), Directory()

    def at(self, path):
        """A directory or file, by its path."""
        found = self.top
        for name in Path(path).relative_to(self.root).parts:
            found = found.names[name]
        return found

    def within(self, path):
        path = Path(path)
        return self.at(path.parent), path.name

    def do(self, what, path, more=None):
        if what == "file":
            self.at(path).kept = more
        elif what == "directory":
            directory = self.at(path)
            directory.durable, directory.later = dict(directory.names), []
        elif what == "write":
            file = self.at(path)
            assert file.kept is None, f"{path} is written to after it was brought to the disk"
            file.size += int(more)
        else:
            directory, name = self.within(path)
            match what:
                case "create":
                    directory.does((name, File()))
                case "mkdir":
                    directory.does((name, Directory()))
                case "remove":
                    directory.does((name, None))
                case "rename":
                    into, new = self.within(more)
                    assert into is directory, f"{path} gets another directory"
                    directory.does((name, None), (new, directory.names[name]))
                case _:
                    raise AssertionError(what)

    def is_as(self, directory):
        """All was noted: the names are those of the real directory."""
        def names(at, path):
            for name, what in at.names.items():
                yield f"{path}{name}"
                if isinstance(what, Directory):
                    yield from names(what, f"{path}{name}/")
        real = {str(path.relative_to(directory)) for path in Path(directory).rglob("*")}
        return set(names(self.top, "")) == real

    def cut(self, into, way, rng):
        """Makes the directory `into` as the root is when the power comes back."""
        def fill(at, path):
            path.mkdir(mode=0o700)
            for name, what in at.left(way, rng).items():
                if isinstance(what, Directory):
                    fill(what, path / name)
                elif what.kept:
                    os.link(what.kept, path / name)
                else:
                    with open(os.open(path / name, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
                        file.write(bytes(rng.choice([0, what.size // 2, what.size]) if way == "some" else 0))
        fill(self.top, into)


class Power:
    """Notes what processes with `environment` do below `root`, and what `says` says."""

    def __init__(self, directory):
        directory.mkdir()
        self.root, self.log, self.kept, library = (directory / name for name in ("root", "log", "kept", "power.so"))
        self.root.mkdir(mode=0o700)
        self.kept.mkdir()
        source = Path(__file__).with_name("power.c")
        subprocess.run(["cc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, source, "-ldl", "-pthread"], check=True)
        self.environment = {"LD_PRELOAD": str(library), "POWER_ROOT": str(self.root), "POWER_LOG": str(self.log), "POWER_KEPT": str(self.kept)}

    def says(self, *words):
        """A line of the test's own, behind all that was done before."""
        with self.log.open("a") as log:
            log.write("\t".join(["says", *map(str, words)]) + "\n")

    def moments(self):
        """After each line that changes what is on the disk or is known: the disk, and the test's own lines so far."""
        disk, said = Disk(self.root), []
        for line in self.log.read_text().splitlines():
            what, *words = line.split("\t")
            if what == "says":
                said.append(words)
            else:
                disk.do(what, *words)
            if what != "write":
                yield disk, said
        assert disk.is_as(self.root)
