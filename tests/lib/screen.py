# SPDX-License-Identifier: Apache-2.0
"""A terminal: runs a program in a pty, and knows what is on its screen."""

import contextlib
import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import termios
import time

from harness import Expired, patience

CONTROL = re.compile(r"\x1b\[([?>]?)([\d;:]*)([ -/]*)([@-~])")


class Screen:
    """What a terminal of this size shows, of the sequences that programs with crossterm use."""

    def __init__(self, rows, columns):
        self.resize(rows, columns)
        self.is_alternate = False
        self.rest = ""

    def resize(self, rows, columns):
        self.rows, self.columns = rows, columns
        self.row = self.column = 0
        self.cells = [[" "] * columns for _ in range(rows)]

    def text(self):
        return "\n".join("".join(line).rstrip() for line in self.cells)

    def feed(self, text):
        text = self.rest + text
        at, self.rest = 0, ""
        while at < len(text):
            letter = text[at]
            if letter == "\x1b":
                if found := CONTROL.match(text, at):
                    self.control(*found.groups())
                    at = found.end()
                    continue
                if len(text) - at < 2 or text[at + 1] == "[":
                    self.rest = text[at:]  # the rest is to come
                    return
                at += 2
                continue
            at += 1
            if letter == "\r":
                self.column = 0
            elif letter == "\n":
                self.row = min(self.row + 1, self.rows - 1)
            elif letter == "\b":
                self.column = max(self.column - 1, 0)
            elif letter >= " ":
                if self.row < self.rows and self.column < self.columns:
                    self.cells[self.row][self.column] = letter
                self.column += 1

    def control(self, private, numbers, _, letter):
        values = [int(number or 0) for number in re.split("[;:]", numbers)]
        first = max(values[0], 1)
        if private:
            if values == [1049]:
                self.is_alternate = letter == "h"
                self.resize(self.rows, self.columns)
        elif letter in "Hf":
            self.row, self.column = first - 1, (values + [1])[1] - 1 if len(values) > 1 else 0
        elif letter == "G":
            self.column = first - 1
        elif letter == "d":
            self.row = first - 1
        elif letter in "ABCD":
            down, right = {"A": (-1, 0), "B": (1, 0), "C": (0, 1), "D": (0, -1)}[letter]
            self.row += down * first
            self.column += right * first
        elif letter == "J":
            if values[0] == 2:
                self.cells = [[" "] * self.columns for _ in range(self.rows)]
            else:
                self.control("", str(values[0]), "", "K")
                for row in self.cells[self.row + 1 :]:
                    row[:] = [" "] * self.columns
        elif letter == "K":
            self.cells[self.row][self.column :] = [" "] * (self.columns - self.column)
        else:
            assert letter in "mhl", f"the sequence {numbers}{letter} is not known"


class Terminal:
    """A program in a terminal."""

    def __init__(self, command, rows=24, columns=80, env=None):
        self.own, theirs = os.openpty()
        self.screen, self.raw = Screen(rows, columns), ""
        self.size(rows, columns)
        self.before = termios.tcgetattr(theirs)
        self.process = subprocess.Popen(
            [str(word) for word in command],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=env,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        self.theirs = theirs  # kept open: its settings are looked at in the end

    def size(self, rows, columns):
        fcntl.ioctl(self.own, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def resize(self, rows, columns):
        self.screen.resize(rows, columns)
        self.size(rows, columns)

    def press(self, keys):
        os.write(self.own, keys.encode())

    def read(self, seconds=0.05):
        while select.select([self.own], [], [], seconds)[0]:
            with contextlib.suppress(OSError):
                text = os.read(self.own, 65536).decode(errors="replace")
                self.raw += text
                self.screen.feed(text)
            seconds = 0

    def shows(self, condition, timeout=20.0):
        """Waits until the text on the screen fulfils the condition (a function, or a pattern)."""
        holds = condition if callable(condition) else lambda text: re.search(condition, text, re.M)
        end = time.monotonic() + patience(timeout)
        while not (found := holds(self.screen.text())):
            if time.monotonic() > end:
                raise Expired(f"{condition} is not shown\n{self.screen.text()}\n{self.raw[-300:]!r}")
            self.read()
        return found

    def wait(self, timeout=20.0):
        """Waits for the end of the program; it must leave the terminal as it was. Returns the exit status."""
        end = time.monotonic() + patience(timeout)
        while self.process.poll() is None:
            assert time.monotonic() < end, f"it does not end\n{self.screen.text()}"
            self.read()
        self.read()
        after = termios.tcgetattr(self.theirs)
        # Output flags and the like are the kernel's; what counts is that lines and echoes are as before.
        assert after[3] == self.before[3] and after[0] == self.before[0], "the terminal is not as before"
        assert not self.screen.is_alternate
        return self.process.returncode

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        os.close(self.own)
        os.close(self.theirs)
