# SPDX-License-Identifier: Apache-2.0
"""mkdocs: what the site has besides `docs/`, and what links to other files of the repository become."""

import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = "examples.md"


def on_files(files, config):
    files.append(File.generated(config, EXAMPLES, content=(ROOT / "examples/README.md").read_text()))
    return files


def on_page_markdown(markdown, page, config, files):
    """The examples are a page; of files that are none, the name stays."""
    here = (ROOT / "docs" / page.file.src_uri) if page.file.src_uri != EXAMPLES else ROOT / "examples/README.md"

    def link(found):
        text, target = found.groups()
        path, _, part = target.partition("#")
        if not path or ":" in path:
            return found[0]
        place = (here.parent / path).resolve()
        if place == ROOT / "examples/README.md":
            up = "../" * page.file.src_uri.count("/")
            return f"[{text}]({up}{EXAMPLES}{'#' + part if part else ''})"
        if page.file.src_uri == EXAMPLES and place.is_relative_to(ROOT / "docs"):
            return f"[{text}]({place.relative_to(ROOT / 'docs')}{'#' + part if part else ''})"
        return found[0] if place.is_relative_to(ROOT / "docs") else f"{text} (`{place.relative_to(ROOT)}`)"

    return re.sub(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)", link, markdown)
