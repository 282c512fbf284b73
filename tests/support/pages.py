"""Reading the documentation: the fenced blocks of a page, and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

FENCE = re.compile(
    r"(?P<skip><!-- not run: [^\n]+ -->\n)?^```(?P<language>\w+)(?P<options>[^\n]*)\n"
    r"(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; ``skip`` if it is marked as not to be run."""

    language: str
    title: str | None
    text: str
    skip: bool


def blocks(page: Path) -> Iterator[Block]:
    for match in FENCE.finditer(page.read_text(encoding="utf-8")):
        title = re.search(r'title="([^"]+)"', match["options"])
        yield Block(
            match["language"], title[1] if title else None, match["text"], bool(match["skip"])
        )


def commands(text: str, program: str = "carvy") -> Iterator[tuple[list[str], list[str]]]:
    """Yield each command of a program in a console block and the output shown below it."""
    start = program.split()
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, *output = part.splitlines()
        words = shlex.split(command.partition(" | ")[0], comments=True)
        if words[: len(start)] == start:
            yield words[len(start) :], [line.strip() for line in output if line.strip()]
