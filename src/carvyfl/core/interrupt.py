"""Ctrl-C between two rounds: the work is saved before it stops."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


class Interrupts:
    """Whether a stop was requested."""

    requested = False


@contextlib.contextmanager
def deferred_interrupt(seen: Interrupts | None = None) -> Iterator[Interrupts]:
    """Note the first SIGINT or SIGTERM instead of raising it; the second raises.

    The caller looks at ``requested`` where stopping loses nothing, and raises
    ``KeyboardInterrupt`` itself. Outside of the main thread signals cannot be
    deferred, and are not: such a thread gives what the main thread notes them in, as ``seen``.
    """
    seen = Interrupts() if seen is None else seen
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
