"""Things that are worked on together, as many as fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

T = TypeVar("T", bound=Sized)


def in_parts(items: Iterable[T], most: int) -> Iterator[list[T]]:
    """Cut items into successive parts of total length ``most`` at most; a longer one is alone."""
    part: list[T] = []
    held = 0
    for item in items:
        if part and held + len(item) > most:
            yield part
            part, held = [], 0
        part.append(item)
        held += len(item)
    if part:
        yield part
