"""Output of the command line: results on stdout, everything else on stderr."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import signal
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import click
import typer
from msgspec import to_builtins
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand

from carvyfl.cli import INTERRUPTED, interrupt
from carvyfl.cli.options import in_flags
from carvyfl.cli.variants import with_names
from carvyfl.core.errors import printable
from carvyfl.core.progress import Report, terminal_bar
from carvyfl.voting.spread import mean_sd

LONGEST_LINE = 5_000
ROWS = 200
"""No table on the screen has more rows; --json gives all."""

_NUMBER = re.compile(r"[-+]?[\d.,]+ ?%?( ± [\d.]+)?|[-–]|none|")


class PlainConsole(Console):
    """A console on which other people's names are no commands: no markup, no escape sequences."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **options: Any) -> Text:  # noqa: D102
        lines = (printable(line, LONGEST_LINE) for line in text.split("\n"))
        return super().render_str("\n".join(lines), **options)


screen = PlainConsole()
errors = PlainConsole(stderr=True)


def print_json(answer: Any) -> None:
    """Print an answer as one JSON object; NaN does not exist in JSON and would be a bug."""
    sys.stdout.write(json.dumps(to_builtins(answer), allow_nan=False) + "\n")


def note(text: str) -> None:
    """Print a remark on stderr if it is a terminal."""
    if errors.is_terminal:
        errors.print(text, soft_wrap=True)


def saved(what: str) -> None:
    """Say on stderr where results were saved, also when piped."""
    errors.print(f"Saved in {what}", soft_wrap=True)


def warn(text: str) -> None:
    """Warn, on one line of stderr, also when piped."""
    errors.print(f"carvy: warning: {in_flags(text)}", soft_wrap=True)


def show_warnings_as_lines() -> None:
    """Print Python warnings as one line each, and none of some libraries' log messages."""
    warnings.showwarning = lambda message, *args, **kwargs: warn(str(message))
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    # joblib's, when work is broken off: the error that broke it off says all.
    warnings.filterwarnings("ignore", message=r"\d+ tasks (have been|which were) ")


def phase(title: str) -> AbstractContextManager[Report]:
    """Show a progress bar with the time left for a part of the work; silent when piped."""
    return terminal_bar(title, errors)


@contextlib.contextmanager
def stopping_cleanly(remedy: str = "") -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into one line and exit code 130; say what is kept, how to go on."""
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not interrupt the exit
        errors.print("carvy: stopped" + (f"; {remedy}" if remedy else ""), soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


class Command(TyperCommand):
    """A command that stops cleanly, and whose options say which variants there are."""

    def invoke(self, ctx: click.Context) -> Any:  # noqa: D102
        with stopping_cleanly():
            return super().invoke(ctx)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Fill the names in; not before, since loading the registries takes a while."""
        for parameter in self.params:
            if text := getattr(parameter, "help", None):
                parameter.help = with_names(text)  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)


def print_table(head: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Print a table: floats with one decimal place, columns of numbers to the right."""
    texts = [[f"{c:.1f}" if isinstance(c, float) else str(c) for c in row] for row in rows]
    table = Table()
    for number, name in enumerate(head):
        numeric = all(_NUMBER.fullmatch(row[number]) for row in texts)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in texts[:ROWS]:
        table.add_row(*row)
    if title:
        screen.print(title)  # not the table's own title, which is squeezed to its width
    screen.print(table)
    if len(texts) > ROWS:
        screen.print(f"… and {len(texts) - ROWS:,} more; --json gives all.")


def print_curves(title: str, curves: Mapping[str, Sequence[Sequence[float]]]) -> None:
    """Print curves over m, each of one or several seeds; long ones every 10th row, 100th, …."""
    length, step = max(len(curve) for seeds in curves.values() for curve in seeds), 1
    while length > ROWS * step:
        step *= 10
    rows = [
        [m, *(mean_sd([c[m] if m < len(c) else 0.0 for c in seeds]) for seeds in curves.values())]
        for m in range(0, length, step)
    ]
    print_table(["m", *curves], rows, title)
    if step > 1:
        screen.print(f"Every {step:,}th of {length:,} rows; --json gives all.")


def print_items(items: Iterable[str]) -> None:
    """Print sentences as a list whose wrapped lines stay indented."""
    for item in items:
        row = Table.grid(padding=(0, 1))
        row.add_row("-", item)
        screen.print(row)
