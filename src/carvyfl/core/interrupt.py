"""Ctrl-C between two rounds: work that is saved first, and only then broken off."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


class Interrupts:
    """Whether somebody asked to stop."""

    wanted = False


@contextlib.contextmanager
def held_back() -> Iterator[Interrupts]:
    """Note the first Ctrl-C, or polite kill, instead of raising it; the second raises.

    The caller looks at ``wanted`` where stopping loses nothing, and raises
    ``KeyboardInterrupt`` itself. Outside of the main thread signals cannot be
    held back, and nothing is.
    """
    seen = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return

    def note(number: int, frame: Any) -> None:
        if seen.wanted:
            raise KeyboardInterrupt
        seen.wanted = True

    kinds = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(kind, note) for kind in kinds]
    try:
        yield seen
    finally:
        for kind, handler in zip(kinds, before, strict=True):
            signal.signal(kind, handler)
