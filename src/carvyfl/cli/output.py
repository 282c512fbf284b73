"""How the command line speaks: results on stdout, everything else on stderr."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

INTERRUPTED = 130

screen = Console()
errors = Console(stderr=True)


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON object for machines; NaN does not exist in JSON and would be a bug."""
    sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")


def note(text: str) -> None:
    """Tell a person something beside the result; silent when nobody watches."""
    if errors.is_terminal:
        errors.print(text, highlight=False)


def warn(text: str) -> None:
    """Warn, on one line of stderr, also when piped."""
    errors.print(f"carvy: warning: {text}", highlight=False, soft_wrap=True, markup=False)


def show_warnings_as_lines() -> None:
    """Print Python warnings as one line each, without the source line."""

    def show(message: Warning | str, *args: Any, **kwargs: Any) -> None:
        warn(str(message))

    warnings.showwarning = show


@contextlib.contextmanager
def phase(title: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar with the time left for a stretch of work; silent when piped."""
    columns = (
        TextColumn("{task.description:<32}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=errors, disable=not errors.is_terminal) as bars:
        task = bars.add_task(title, total=None)

        def report(done: int, total: int) -> None:
            bars.update(task, completed=done, total=total)

        yield report


@contextlib.contextmanager
def stopping_cleanly() -> Iterator[None]:
    """Turn Ctrl-C, and a polite kill, into one line and exit code 130."""

    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        errors.print("carvy: stopped; finished groups are kept: run the same command to go on")
        raise typer.Exit(INTERRUPTED) from None


def ca_table(curves: dict[str, list[float]], *, title: str) -> Table:
    """Lay CA(m) of several methods out as a table, a row for each m."""
    table = Table(title=title, title_justify="left")
    table.add_column("m", justify="right")
    for name in curves:
        table.add_column(name, justify="right")
    for m in range(max(len(curve) for curve in curves.values())):
        cells = [f"{curve[m]:.1f}" if m < len(curve) else "0.0" for curve in curves.values()]
        table.add_row(str(m), *cells)
    return table
