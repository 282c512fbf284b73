"""The exception for mistakes in the input; values as one short line, for messages and displays."""

from __future__ import annotations

import errno
from collections.abc import Collection, Mapping
from dataclasses import is_dataclass
from typing import Any


class CarvyError(Exception):
    """A mistake in the input: what was wrong, where, and what to do about it.

    A message names parameters in backquotes, such as `groups` or `types='given'`. The command line
    puts flags in their place, prints one line and exits with code 2. Bugs raise anything else.
    """


def printable(text: str, most: int = 200) -> str:
    """Return text that somebody else chose, fit for a terminal: one line, cut where it is long."""
    line = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[: most + 1])
    return line if len(line) <= most else line[:most] + "…"


def refusal(error: OSError) -> str:
    """Say why the system refused to use a file or folder, and what to do about it."""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            remedy = "free some space or choose another folder"
        case errno.ENOTDIR | errno.EISDIR | errno.EEXIST | errno.ENOTEMPTY:
            remedy = "move away what is in its place or choose another folder"
        case _:
            remedy = "choose another folder"
    return f"{error.strerror or error}; {remedy}"


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


def call_text(
    name: str, given: Mapping[str, Any], default: Mapping[str, Any], first: Collection[str] = ()
) -> str:
    """Return an object as the call that makes it, without defaults, ``first`` without names."""
    parts = [
        value_text(value) if key in first else f"{key}={value_text(value)}"
        for key, value in given.items()
        if not _same(value, default.get(key))
    ]
    return f"{name}({', '.join(parts)})"


def value_text(value: Any) -> str:
    """Return a value as one line: small ones as Python writes them, others by their kind."""
    kind, name, text = type(value).__name__, getattr(value, "__name__", None), shown(value)
    if shape := getattr(value, "shape", None):
        return f"<{kind} of shape {tuple(shape)}>"
    if callable(value) and isinstance(name, str):
        return f"<{name}>"
    # A torch module prints a line per layer.
    return f"<{kind}>" if "\n" in repr(value) or text.startswith("<") else text


def _same(value: Any, other: Any) -> bool:
    """Whether two values are alike; arrays, which compare entry by entry, never are."""
    plain = isinstance(value, str | int | float) or is_dataclass(value)
    return value is other or (type(value) is type(other) and plain and bool(value == other))
