"""The exception for mistakes in the input."""

from __future__ import annotations

from typing import Any


class CarvyError(Exception):
    """A mistake in the input: what was wrong, where, and what to do about it.

    A message names parameters in backquotes, such as `num_groups` or `types='given'`. The
    command line puts its flags in their place, prints the message as one line and exits with
    code 2; a traceback would only hide it. Bugs raise anything else.
    """


def printable(text: str, most: int = 200) -> str:
    """Return text that somebody else chose, fit for a terminal: one line, cut where it is long."""
    line = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[: most + 1])
    return line if len(line) <= most else line[:most] + "…"


def reason(error: Exception) -> str:
    """Return the first line of what an exception says, or else its kind, fit for a message."""
    lines = str(error).strip().splitlines()
    return printable(lines[0] if lines else type(error).__name__)


def shown(value: Any) -> str:
    """Return a value as Python writes it, fit for a message: one line, cut where it is long."""
    try:
        return printable(repr(value), 60)
    except (ValueError, RecursionError):  # a whole number of more than 4,300 digits, for one
        return f"something too large to print ({type(value).__name__})"
