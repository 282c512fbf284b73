"""Layers with different weights for every client, on a GPU; how their kernels are launched.

PyTorch has no fast version of them: cuDNN is several times slower with per-client weights. A
program of these Triton kernels works for one client, and sums are taken in a fixed order, so no
client's numbers depend on its neighbours. Sizes of a layer, the number of clients excepted, are
compile-time constants. Where the ReLU between two layers goes is said in
:mod:`carvyfl.learning.scaffold.batched.net`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
import triton
from torch.overrides import TorchFunctionMode

# Triton's default changes with version 3.10, and numbers with it. Read when a kernel is compiled.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

EXACT = "ieee"  # Products of float32 without matrix units
# Products of float32 by three products of bf16: to 4e-6 of the result, in half of the time
BY_THREE = "bf16x3"
# The fastest of those two that this version of Triton has
NEARLY_EXACT = BY_THREE if tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 6) else EXACT
_threads = threading.local()


def multiply_by(products: str) -> None:
    """Set how kernels multiply float32 from now on, in a forward pass on this thread."""
    _threads.products = products


def precision() -> str:
    """Return how float32 is multiplied; asked in a forward pass, for the backward pass as well."""
    return getattr(_threads, "products", EXACT)


def padded(size: int) -> int:
    """Return the power of two that covers a size; matrix units want at least 16."""
    return max(16, 1 << (size - 1).bit_length())


def tile(size: int) -> int:
    """Return the block of channels or outputs of a program: wider would not fit smaller GPUs."""
    return min(64, padded(size))


def launch(kernel: Any, grid: tuple[int, ...]) -> Callable[..., object]:
    """Return what launches a kernel with its arguments; in :func:`compiling`, what compiles it."""
    asked: list[Any] | None = getattr(_threads, "asked", None)
    if asked is None:
        launched: Callable[..., object] = kernel[grid]
        return launched

    def compile_only(*arguments: Any, **constants: Any) -> None:
        asked.append(kernel.warmup(*arguments, grid=grid, **constants))

    return compile_only


class _Zeros(TorchFunctionMode):
    """Returns zeros for new memory: else an index in a user's layer could end all work on a GPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
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


def import_all() -> None:
    """Import every kernel on the calling thread, so that threads which launch them import none."""
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        importlib.import_module(module.name)
