"""A ReLU and 2×2 max-pooling in one pass, reordering the result on the way.

Convolutions work with channels last, (n, H, W, C). What follows a pooling layer is
mostly not a convolution but dropout and a linear layer, which count channels first;
the reordering costs nothing here and as much as the pooling if done on its own.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from carvyfl.learning.scaffold.batched.kernels.launch import launch

NOBODY = tl.constexpr(4)
"""Which pixel of a window won, where the ReLU is off: none gets a gradient."""


@triton.jit
def _windows(
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    FIRST: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Say where a block of windows lies: corner in the images, in the result, channels last."""
    image = tl.program_id(0).to(tl.int64)
    pixel = (tl.program_id(1) * BP + tl.arange(0, BP))[:, None]
    c = (tl.program_id(2) * BC + tl.arange(0, BC))[None, :]
    inside = (pixel < OH * OW) & (c < C)
    corner = image * (H * W * C) + ((pixel // OW) * 2 * W + (pixel % OW) * 2) * C + c
    last = image * (OH * OW * C) + pixel * C + c
    out = last
    if FIRST:
        out = image * (OH * OW * C) + c * (OH * OW) + pixel
    return corner, out, last, inside


@triton.jit
def _relu_pool(
    x, y, winner, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OH: tl.constexpr,
    OW: tl.constexpr, FIRST: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    corner, out, last, inside = _windows(H, W, C, OH, OW, FIRST, BP, BC)
    best = tl.load(x + corner, mask=inside, other=0.0).to(tl.float32)
    won = tl.zeros((BP, BC), dtype=tl.int32)
    for place in tl.static_range(1, 4):
        at = corner + ((place // 2) * W + place % 2) * C
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        larger = (value > best) | (value != value)  # NaN wins, as in torch
        best = tl.where(larger, value, best)
        won = tl.where(larger, place, won)
    won = tl.where(best <= 0, NOBODY, won)
    best = tl.where(best <= 0, 0.0, best)
    tl.store(y + out, best.to(y.dtype.element_ty), mask=inside)
    tl.store(winner + last, won.to(tl.uint8), mask=inside)


@triton.jit
def _relu_pool_gradient(
    g, winner, dx, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OH: tl.constexpr,
    OW: tl.constexpr, FIRST: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    corner, out, last, inside = _windows(H, W, C, OH, OW, FIRST, BP, BC)
    value = tl.load(g + out, mask=inside, other=0.0)
    won = tl.load(winner + last, mask=inside, other=NOBODY).to(tl.int32)
    for place in tl.static_range(4):
        at = corner + ((place // 2) * W + place % 2) * C
        tl.store(dx + at, tl.where(won == place, value, 0.0).to(value.dtype), mask=inside)


def _grid(n: int, pixels: int, channels: int) -> tuple[tuple[int, int, int], dict[str, int]]:
    block = {"BP": min(64, triton.next_power_of_2(pixels)), "BC": 64}
    return (n, triton.cdiv(pixels, block["BP"]), triton.cdiv(channels, block["BC"])), block


def relu_pool(x: Tensor, channels_first: bool) -> tuple[Tensor, Tensor]:
    """Return ReLU and 2×2 maximum of images (n, H, W, C), and which pixel won, uint8.

    The maximum has shape (n, C, H/2, W/2) with ``channels_first``, else (n, H/2, W/2, C),
    as the winners have.
    """
    n, height, width, channels = x.shape
    oh, ow = height // 2, width // 2
    shape = (n, channels, oh, ow) if channels_first else (n, oh, ow, channels)
    y = torch.empty(shape, dtype=x.dtype, device=x.device)
    winner = torch.empty((n, oh, ow, channels), dtype=torch.uint8, device=x.device)
    grid, block = _grid(n, oh * ow, channels)
    launch(_relu_pool, grid)(x, y, winner, height, width, channels, oh, ow, channels_first, **block)
    return y, winner


def relu_pool_gradient(
    grad: Tensor, winner: Tensor, height: int, width: int, channels_first: bool
) -> Tensor:
    """Return the gradient of the images that were pooled, (n, H, W, C)."""
    n, oh, ow, channels = winner.shape
    shape = (n, height, width, channels)
    # A last odd row or column is in no window.
    empty = torch.zeros if height % 2 or width % 2 else torch.empty
    dx = empty(shape, dtype=grad.dtype, device=grad.device)
    grid, block = _grid(n, oh * ow, channels)
    launch(_relu_pool_gradient, grid)(
        grad, winner, dx, height, width, channels, oh, ow, channels_first, **block
    )
    return dx
