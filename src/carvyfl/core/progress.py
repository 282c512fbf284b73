"""Progress of long work: a bar on a terminal, a line of text in a notebook."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

Report = Callable[[int, int], None]
"""Called with (work done, all work), now and then."""


def quiet(done: int, total: int) -> None:
    """Show no progress."""


@contextlib.contextmanager
def terminal_bar(title: str, console: Console) -> Iterator[Report]:
    """Show a bar with the time left for a part of the work; nothing where there is no terminal."""
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description:<32}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        task = bars.add_task(title, total=None)

        def report(done: int, total: int) -> None:
            bars.update(task, completed=done, total=total)

        yield report


@contextlib.contextmanager
def text_line(title: str, stream: TextIO) -> Iterator[Report]:
    """Write a line that overwrites itself, a whole percent at a time: all a notebook needs."""
    written = -1

    def report(done: int, total: int) -> None:
        nonlocal written
        percent = 100 * done // total if total else 100
        if percent != written:
            written = percent
            stream.write(f"\r{title:<32} {percent:3d} %")
            stream.flush()

    try:
        yield report
    finally:
        if written >= 0:
            stream.write("\n")


@contextlib.contextmanager
def visible(title: str, *, always: bool) -> Iterator[Report]:
    """Show progress on stderr to whoever can see it: a terminal, a notebook, or ``always``."""
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_terminal and not console.is_jupyter:
        with terminal_bar(title, console) as report:
            yield report
    elif console.is_jupyter or always:
        with text_line(title, sys.stderr) as report:
            yield report
    else:
        yield lambda done, total: None
