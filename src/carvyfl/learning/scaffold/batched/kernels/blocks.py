"""Block sizes and precision, as all kernels choose them."""

from __future__ import annotations

import threading

import triton

EXACT = "ieee"
"""Products of float32 without matrix units."""

BY_THREE = "bf16x3"
"""Products of float32 by three products of bf16: to 4e-6 of the result, in half of the time."""

NEARLY_EXACT = BY_THREE if tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 6) else EXACT
"""The fastest of those two that this version of Triton has."""

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
    """Return the block of channels or outputs that a program works on; more go to other programs.

    Wider ones would not fit the shared memory of smaller GPUs.
    """
    return min(64, padded(size))
