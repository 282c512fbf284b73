"""Dropout by key: the hash and the mask in one pass over the activations."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from carvyfl.core.randomness import MULTIPLIERS


@triton.jit
def _drop(
    x, low, high, y, count, threshold, scale, M1: tl.constexpr, M2: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < count
    bits = (i + tl.load(low + client)).to(tl.uint32, bitcast=True)
    for half in tl.static_range(2):
        bits = bits ^ (bits >> 16)
        bits = bits * M1
        bits = bits ^ (bits >> 15)
        bits = bits * M2
        bits = bits ^ (bits >> 16)
        if half == 0:
            bits = bits ^ tl.load(high + client).to(tl.uint32, bitcast=True)
    keep = bits.to(tl.int32, bitcast=True) >= threshold
    value = tl.load(x + client * count + i, mask=inside, other=0.0)
    kept = tl.where(keep, value.to(tl.float32) * scale, 0.0)
    tl.store(y + client * count + i, kept.to(y.dtype.element_ty), mask=inside)


def drop(x: Tensor, low: Tensor, high: Tensor, threshold: int, scale: float) -> Tensor:
    """Zero what ``keep_mask`` drops in (N, count), and scale up the rest.

    ``low`` and ``high`` are the halves of the clients' keys, int32 of shape (N,).
    """
    n, count = x.shape
    y = torch.empty_like(x)
    _drop[(triton.cdiv(count, 1024), n)](
        x, low, high, y, count, threshold, scale, *MULTIPLIERS, BLOCK=1024
    )
    return y
