"""Dropout by key: the hash and the mask in one pass over the activations."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from carvyfl.core.randomness import MULTIPLIERS

Dropping = tuple[Tensor, Tensor, int, float]
"""Low and high halves of the clients' keys, int32 of shape (N,), the least hash that is kept, and
what is kept is multiplied by."""


@triton.jit
def dropped(
    value, i, low, high, client, threshold, scale, M1: tl.constexpr = MULTIPLIERS[0],
    M2: tl.constexpr = MULTIPLIERS[1],
):  # fmt: skip
    """Zero what a client's key drops of its values, whose counters are i; scale up the rest."""
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
    return tl.where(keep, value.to(tl.float32) * scale, 0.0)


@triton.jit
def _drop(x, low, high, y, count, threshold, scale, BLOCK: tl.constexpr):
    client = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < count
    value = tl.load(x + client * count + i, mask=inside, other=0.0)
    kept = dropped(value, i, low, high, client, threshold, scale)
    tl.store(y + client * count + i, kept.to(y.dtype.element_ty), mask=inside)


def drop(x: Tensor, dropping: Dropping) -> Tensor:
    """Zero what ``keep_mask`` drops in (N, count), and scale up the rest."""
    n, count = x.shape
    low, high, threshold, scale = dropping
    y = torch.empty_like(x)
    _drop[(triton.cdiv(count, 1024), n)](x, low, high, y, count, threshold, scale, BLOCK=1024)
    return y
