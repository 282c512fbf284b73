"""The gradients of a normalisation layer's scale and shift.

PyTorch would sum in the activations' type, in an order that may depend on how many
clients there are; a program adds up one client's in float32, in a fixed order.

Layouts: values (N, R, C, S), contiguous: R samples or rows, C parameters, S pixels.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from carvyfl.learning.scaffold.batched.kernels.launch import launch


@triton.jit
def _gradients(
    g, y, scale, shift, R: tl.constexpr, C: tl.constexpr, S: tl.constexpr, BC: tl.constexpr,
    BQ: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    scaled = tl.zeros((BC, BQ), dtype=tl.float32)
    shifted = tl.zeros((BC, BQ), dtype=tl.float32)
    for q0 in range(0, R * S, BQ):
        q = q0 + tl.arange(0, BQ)
        inside = (c < C)[:, None] & (q < R * S)[None, :]
        at = client * (R * C * S) + (q // S * (C * S) + q % S)[None, :] + (c * S)[:, None]
        gt = tl.load(g + at, mask=inside, other=0.0).to(tl.float32)
        scaled += gt * tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
        shifted += gt
    tl.store(scale + client * C + c, tl.sum(scaled, axis=1), mask=c < C)
    tl.store(shift + client * C + c, tl.sum(shifted, axis=1), mask=c < C)


def gradients(grad: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of scale and shift, float32 of shape (N, C) each."""
    n, rows, channels, pixels = y.shape
    scale, shift = (
        torch.empty((n, channels), dtype=torch.float32, device=y.device) for _ in range(2)
    )
    launch(_gradients, (triton.cdiv(channels, 16), n))(
        grad, y, scale, shift, R=rows, C=channels, S=pixels, BC=16, BQ=64
    )
    return scale, shift
