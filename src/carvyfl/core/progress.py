"""Progress of long work: a bar on a terminal, a line of text in a notebook."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
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
    from rich import progress as rich

    columns = (
        rich.TextColumn("{task.description:<32}"),
        rich.BarColumn(),
        rich.TaskProgressColumn(),
        rich.TimeElapsedColumn(),
        rich.TextColumn("left"),
        rich.TimeRemainingColumn(),
    )
    with rich.Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        task = bars.add_task(title, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


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


def visible(title: str, *, always: bool) -> AbstractContextManager[Report]:
    """Show progress on stderr to whoever can see it: a terminal, a notebook, or ``always``."""
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_terminal and not console.is_jupyter:
        return terminal_bar(title, console)
    if console.is_jupyter or always:
        return text_line(title, sys.stderr)
    return contextlib.nullcontext(lambda done, total: None)
