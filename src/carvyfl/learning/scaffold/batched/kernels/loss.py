"""The gradient of the cross-entropy: a training step needs no value of it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from carvyfl.learning.scaffold.batched.kernels.launch import launch


@triton.jit
def _gradient(
    logits, labels, mask, out, B: tl.constexpr, C: tl.constexpr, BB: tl.constexpr,
    BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    b = tl.program_id(0) * BR + tl.arange(0, BR)
    c = tl.arange(0, BC)
    every = tl.arange(0, BB)
    count = tl.sum(tl.load(mask + client * B + every, mask=every < B, other=0.0), axis=0)
    there = tl.load(mask + client * B + b, mask=b < B, other=0.0) > 0
    label = tl.load(labels + client * B + b, mask=b < B, other=0)
    inside = (b < B)[:, None] & (c < C)[None, :]
    at = client * (B * C) + b[:, None] * C + c[None, :]
    x = tl.load(logits + at, mask=inside, other=float("-inf")).to(tl.float32)
    x = tl.where((b < B)[:, None], x, 0.0)  # rows of -inf alone would give NaN
    e = tl.exp(x - tl.max(x, axis=1)[:, None])
    share = e / tl.sum(e, axis=1)[:, None]
    share = share - (c[None, :] == label[:, None]).to(tl.float32)
    found = tl.where(there[:, None], share / count, 0.0)
    tl.store(out + at, found.to(out.dtype.element_ty), mask=inside)


def gradient(logits: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Compute :func:`~carvyfl.learning.scaffold.batched.ops.loss_gradient`."""
    n, batch, classes = logits.shape
    out = torch.empty_like(logits)
    block = triton.next_power_of_2(classes)
    rows = max(1, min(triton.next_power_of_2(batch), 4096 // block))
    launch(_gradient, (triton.cdiv(batch, rows), n))(
        logits, labels, mask, out, batch, classes, BB=triton.next_power_of_2(batch), BR=rows,
        BC=block,
    )  # fmt: skip
    return out
