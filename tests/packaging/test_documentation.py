# SPDX-License-Identifier: Apache-2.0
"""The documentation: commands and options of its command lines exist, and its links lead somewhere."""

import contextlib
import functools
import re
import subprocess

import pytest

import documented
import harness
from harness import RESURGO

ROOT = harness.ROOT
PAGES = sorted(
    [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), ROOT / "examples/README.md", ROOT / "packaging/README.md"],
    key=lambda page: page.relative_to(ROOT).as_posix(),
)
# What stands for the program whose options are its own.
PROGRAM = re.compile(r"^(\./|/|\.\.?/|build/|~|\$)|^(python3?|sh|bash|sleep|env|heat|app|lmp|mpi\w*|hostname)$")

# A job's own, which nobody starts.
PROCESSES = {"agent", "event-logger", "channel-memory", "notifier", "rank-exec", "rank-restore", "rank-hold"}


def commands(page):
    """The words of each command line of resurgo on a page: in blocks, and in the text between them."""
    lines = [line for block in documented.blocks(page) for line in documented.typed(block)]
    inline = re.findall(r"`(resurgo [a-z][^`]*)`", re.sub(r"\n", " ", prose(page)))
    for line in [*lines, *inline]:
        with contextlib.suppress(ValueError):  # of a text with an apostrophe
            words = documented.command(line.replace("…", "..."))
            if words and words[1] not in PROCESSES:
                yield words


@functools.cache
def verbs():
    told = subprocess.run([RESURGO, "--help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"resurgo ([a-z-]+)", told))


@functools.cache
def options(verb):
    told = subprocess.run([RESURGO, verb, "--help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", told))


def test_there_are_command_lines():
    found = [words for page in PAGES for words in commands(page)]
    assert len(found) > 70 and len({words[1] for words in found}) > 10, len(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_command_and_option_exists(page):
    wrong = []
    for _, verb, *words in commands(page):
        if verb not in verbs():
            wrong.append(verb)
            continue
        for word in words:
            if PROGRAM.search(word):
                break
            if word.startswith("-") and word.split("=")[0] not in options(verb):
                wrong.append((verb, word))
    assert not wrong, wrong


def prose(page):
    """Its text without the blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)


def slug(title):
    """The anchor of a heading."""
    title = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title)
    return re.sub(r"[^\w\s-]", "", title.strip().lower()).replace(" ", "-")


@functools.cache
def anchors(page):
    text = prose(page)
    seen, found = {}, set()
    for title in re.findall(r"^#+ (.*)$", text, re.M):
        anchor = slug(title)
        seen[anchor] = seen.get(anchor, -1) + 1
        found.add(anchor if not seen[anchor] else f"{anchor}-{seen[anchor]}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page):
    text = prose(page)
    links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"^\[[^]]+\]: (\S+)$", text, re.M)
    wrong = []
    for link in links:
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists() or anchor and target.suffix == ".md" and anchor not in anchors(target):
            wrong.append(link)
    assert not wrong, wrong
