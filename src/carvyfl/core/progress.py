"""Long work: how far it is, on a terminal or in a notebook, and how Ctrl-C stops it."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

Report = Callable[[int, int], None]
"""Called with (work done, all work), now and then."""


Phase = Callable[[str], AbstractContextManager[Report]]
"""Opens a phase of work under a title and gives the function that shows its progress."""


def quiet(done: int, total: int) -> None:
    """Show no progress."""


@contextlib.contextmanager
def silent(title: str) -> Iterator[Report]:
    """Show no progress of a phase."""
    yield quiet


@contextlib.contextmanager
def terminal_bar(title: str, console: Console) -> Iterator[Report]:
    """Show a bar with the time left for a part of the work; nothing where there is no terminal."""
    from rich import progress as rich

    what, left = rich.TextColumn("{task.description:<32}"), rich.TextColumn("left")
    times = rich.TimeElapsedColumn(), left, rich.TimeRemainingColumn()
    columns = what, rich.BarColumn(), rich.TaskProgressColumn(), *times
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
    return contextlib.nullcontext(quiet)


class Interrupts:
    """Whether a stop was requested."""

    requested = False


@contextlib.contextmanager
def deferred_interrupt(seen: Interrupts | None = None) -> Iterator[Interrupts]:
    """Note the first SIGINT or SIGTERM instead of raising it; the second raises.

    The caller looks at ``requested`` where stopping loses nothing, and raises ``KeyboardInterrupt``
    itself. Only the main thread can note signals; others are given where it does, as ``seen``.
    """
    seen = seen or Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return

    def note(number: int, frame: Any) -> None:
        if seen.requested:
            raise KeyboardInterrupt
        seen.requested = True

    kinds = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(kind, note) for kind in kinds]
    try:
        yield seen
    finally:
        for kind, handler in zip(kinds, before, strict=True):
            signal.signal(kind, handler)
