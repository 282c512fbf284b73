"""Block sizes and precision, as all kernels choose them."""

from __future__ import annotations

import torch


def padded(size: int) -> int:
    """Return the power of two that covers a size; matrix units want at least 16."""
    return max(16, 1 << (size - 1).bit_length())


def tile(size: int) -> int:
    """Return the block of channels or outputs that a program works on; more go to other programs.

    Wider ones would not fit the shared memory of smaller GPUs.
    """
    return min(64, padded(size))


def precision() -> str:
    """Return how float32 is multiplied: as TF32 where PyTorch was told so, else exactly."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
