"""What a user did wrong, said in one line."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


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


def pick(table: Mapping[str, T], name: str, what: str) -> T:
    """Look ``name`` up in a registry, suggesting the nearest known name.

    Parameters
    ----------
    table
        The registry: known names and what they stand for.
    name
        The name the user gave.
    what
        What is being named, for the message ("data set", "model", ...).

    Raises
    ------
    CarvyError
        If the name is unknown.
    """
    if not isinstance(name, str):  # from Python, where nobody checks types
        raise CarvyError(f"{what} must be a name, not {name!r}; known: {', '.join(sorted(table))}")
    if name in table:
        return table[name]
    near = difflib.get_close_matches(name, table, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'? " if near else ""
    raise CarvyError(f"unknown {what} '{name}'; {hint}known: {', '.join(sorted(table))}")
