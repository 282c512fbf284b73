"""Launch kernels, or have them compiled only."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

_threads = threading.local()


def launch(kernel: Any, grid: tuple[int, ...]) -> Callable[..., object]:
    """Return what launches a kernel with its arguments.

    In :func:`compiling` the kernel is only compiled, and its outputs stay as they are.
    """
    asked: list[Any] | None = getattr(_threads, "asked", None)
    if asked is None:
        launched: Callable[..., object] = kernel[grid]
        return launched

    def compile_only(*arguments: Any, **constants: Any) -> None:
        asked.append(kernel.warmup(*arguments, grid=grid, **constants))

    return compile_only


@contextlib.contextmanager
def compiling() -> Iterator[list[Any]]:
    """Compile what this thread would launch, and give the list of what was compiled."""
    _threads.asked = []
    try:
        yield _threads.asked
    finally:
        del _threads.asked
