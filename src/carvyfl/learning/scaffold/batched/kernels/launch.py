"""Launch kernels, or have them compiled only."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_threads = threading.local()


def launch(kernel: Any, grid: tuple[int, ...]) -> Callable[..., object]:
    """Return what launches a kernel with its arguments.

    In :func:`compiling` the kernel is only compiled, and its outputs stay zero.
    """
    asked: list[Any] | None = getattr(_threads, "asked", None)
    if asked is None:
        launched: Callable[..., object] = kernel[grid]
        return launched

    def compile_only(*arguments: Any, **constants: Any) -> None:
        asked.append(kernel.warmup(*arguments, grid=grid, **constants))

    return compile_only


class _Zeros(TorchFunctionMode):
    """Returns zeros where new memory is asked for.

    What lies in it otherwise could be an index in a layer of a user's, and an index beyond its
    table ends all work on a GPU.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        filled = {torch.empty: torch.zeros, torch.empty_like: torch.zeros_like}.get(func, func)
        return filled(*args, **(kwargs or {}))


@contextlib.contextmanager
def compiling() -> Iterator[list[Any]]:
    """Compile what this thread would launch, and give the list of what was compiled."""
    _threads.asked = []
    try:
        with _Zeros():
            yield _threads.asked
    finally:
        del _threads.asked
