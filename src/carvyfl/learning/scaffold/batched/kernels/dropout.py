"""Dropout by key: the hash and the mask in one pass over the activations."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from carvyfl.core.randomness import MULTIPLIERS
from carvyfl.learning.scaffold.batched.kernels.launch import launch

Dropping = tuple[Tensor, int, float]
"""The clients' keys, int64 of shape (N,), the least hash that is kept, and what is kept is
multiplied by."""


@triton.jit
def dropped(
    value, i, keys, client, threshold, scale, M1: tl.constexpr = MULTIPLIERS[0],
    M2: tl.constexpr = MULTIPLIERS[1],
):  # fmt: skip
    """Zero what a client's key drops of its values, whose counters are i; scale up the rest."""
    key = tl.load(keys + client)
    bits = (i + key.to(tl.int32)).to(tl.uint32, bitcast=True)
    for half in tl.static_range(2):
        bits = bits ^ (bits >> 16)
        bits = bits * M1
        bits = bits ^ (bits >> 15)
        bits = bits * M2
        bits = bits ^ (bits >> 16)
        if half == 0:
            bits = bits ^ (key >> 32).to(tl.uint32)
    keep = bits.to(tl.int32, bitcast=True) >= threshold
    return tl.where(keep, value.to(tl.float32) * scale, 0.0)


@triton.jit
def _drop(x, keys, y, count, threshold, scale, BLOCK: tl.constexpr):
    client = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < count
    value = tl.load(x + client * count + i, mask=inside, other=0.0)
    kept = dropped(value, i, keys, client, threshold, scale)
    tl.store(y + client * count + i, kept.to(y.dtype.element_ty), mask=inside)


def drop(x: Tensor, dropping: Dropping) -> Tensor:
    """Zero what ``keep_mask`` drops in (N, count), and scale up the rest."""
    n, count = x.shape
    keys, threshold, scale = dropping
    y = torch.empty_like(x)
    launch(_drop, (triton.cdiv(count, 1024), n))(x, keys, y, count, threshold, scale, BLOCK=1024)
    return y
