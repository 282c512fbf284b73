"""What a user did wrong, said in one line."""

from __future__ import annotations


class CarvyError(Exception):
    """A mistake in the input: what was wrong, where, and what to do about it.

    The command line prints the message as one line and exits with code 2; a
    traceback would only hide it. Bugs raise anything else.
    """


def printable(text: str, most: int = 200) -> str:
    """Return text that somebody else chose, fit for a terminal: one line, cut where it is long."""
    line = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[: most + 1])
    return line if len(line) <= most else line[:most] + "…"
