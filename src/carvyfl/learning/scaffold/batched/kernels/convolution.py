"""Convolution and its gradients, multiplying straight from the images (implicit GEMM).

Rows are pixels, columns output channels, and the inner dimension runs over taps and input channels.
Layouts, contiguous: images (N, B, H, W, C), outputs (N, B, OH, OW, CO), taps (N, T, C, CO) with
T = KH·KW.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import triton
import triton.language as tl
from torch import Tensor

from carvyfl.core.errors import CarvyError
from carvyfl.learning.scaffold.batched.kernels import BY_THREE, launch, padded, precision, tile
from carvyfl.learning.scaffold.batched.kernels.layers import NOBODY, relu_pool_gradient


@dataclass(frozen=True)
class Geometry:
    """The fixed sizes of a convolution, in the letters of the layouts above.

    ``relu_before``: the images are what a ReLU let through, and their gradient is that of its
    input. ``relu_after``: a ReLU is applied to the outputs, and their gradient is expected to be
    that of its input. ``precision`` is how float32 is multiplied.
    """

    H: int
    W: int
    C: int
    CO: int
    KH: int
    KW: int
    stride: int
    padding: int
    relu_before: bool = False
    relu_after: bool = False
    precision: str = field(default_factory=precision)

    @property
    def OH(self) -> int:  # noqa: N802
        return (self.H + 2 * self.padding - self.KH) // self.stride + 1

    @property
    def OW(self) -> int:  # noqa: N802
        return (self.W + 2 * self.padding - self.KW) // self.stride + 1

    def constants(self, batch: int) -> dict[str, int | bool | str]:
        """Return the constants of kernels by name; their 32 bits must count a client's numbers."""
        if batch * max(self.H * self.W * self.C, self.OH * self.OW * self.CO) >= 1 << 31:
            raise CarvyError(
                f"{batch} images at once are too many for a convolution on the GPU; use a smaller "
                "batch"
            )
        return {
            "B": batch, "H": self.H, "W": self.W, "C": self.C, "CO": self.CO, "OH": self.OH,
            "OW": self.OW, "KH": self.KH, "KW": self.KW, "STRIDE": self.stride,
            "PAD": self.padding, "PRECISION": self.precision,
        }  # fmt: skip


@triton.jit
def patches(
    base, b, oh, ow, inside, k, K: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    C: tl.constexpr, KW: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    BK: tl.constexpr,
):  # fmt: skip
    """Load x[row, k]: what tap-and-channel k of the output pixel (b, oh, ow) of a row sees.

    A place is that of the row plus that of the tap: computing each place from both takes longer
    than loading it.
    """
    tap = k // C
    top = oh * STRIDE - PAD
    left = ow * STRIDE - PAD
    inside = inside[:, None]
    if K % BK > 0:
        inside = inside & (k < K)[None, :]
    if PAD > 0:
        ih = top[:, None] + (tap // KW)[None, :]
        iw = left[:, None] + (tap % KW)[None, :]
        inside = inside & (ih >= 0) & (ih < H) & (iw >= 0) & (iw < W)
    row_at = ((b * H + top) * W + left) * C
    tap_at = ((tap // KW) * W + tap % KW) * C + k % C
    # Neighbouring taps read the same pixels: they stay in the first-level cache.
    at = row_at[:, None] + tap_at[None, :]
    return tl.load(base + at, mask=inside, other=0.0, cache_modifier=".ca")


@triton.jit
def _forward(
    x, w, bias, y, y_rest, bias_stride, B: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    C: tl.constexpr, CO: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, KH: tl.constexpr,
    KW: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, RELU: tl.constexpr,
    SPLIT: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, BO: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    M: tl.constexpr = B * OH * OW
    K: tl.constexpr = KH * KW * C
    client = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    o = tl.program_id(2) * BO + tl.arange(0, BO)
    b = rows // (OH * OW)
    oh = rows % (OH * OW) // OW
    ow = rows % OW
    images = x + client * (B * H * W * C)
    weights = w + client * (K * CO)
    acc = tl.zeros((BM, BO), dtype=tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        xt = patches(images, b, oh, ow, rows < M, k, K, H, W, C, KW, STRIDE, PAD, BK)
        inside = (k < K)[:, None] & (o < CO)[None, :]
        wt = tl.load(weights + k[:, None] * CO + o[None, :], mask=inside, other=0.0)
        acc = tl.dot(xt, wt, acc, input_precision=PRECISION)
    acc += tl.load(bias + client * bias_stride + o, mask=o < CO, other=0.0)[None, :]
    if RELU:
        acc = tl.where(acc <= 0, 0.0, acc)
    at = client * (M * CO) + rows[:, None] * CO + o[None, :]
    inside = (rows < M)[:, None] & (o < CO)[None, :]
    rounded = acc.to(y.dtype.element_ty)
    tl.store(y + at, rounded, mask=inside)
    if SPLIT:
        whole = rounded.to(tl.float32)
        finite = tl.abs(whole) < float("inf")  # of infinity, NaN would be left
        rest = tl.where(finite, acc, 0.0) - tl.where(finite, whole, 0.0)
        tl.store(y_rest + at, rest.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _add_product(
    acc, images, images_rest, wt, wt_rest, b, oh, ow, inside, k, K: tl.constexpr, H: tl.constexpr,
    W: tl.constexpr, C: tl.constexpr, KW: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    BK: tl.constexpr, SPLIT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the product of a block of patches and weights to the sum of those before.

    Split ones are sums of a bf16 number and what is left of it: three products make up theirs.
    """
    xt = patches(images, b, oh, ow, inside, k, K, H, W, C, KW, STRIDE, PAD, BK)
    acc = tl.dot(xt, wt, acc, input_precision=PRECISION)
    if SPLIT:
        rest = patches(images_rest, b, oh, ow, inside, k, K, H, W, C, KW, STRIDE, PAD, BK)
        acc = tl.dot(rest, wt, acc)
        acc = tl.dot(xt, wt_rest, acc)
    return acc


@triton.jit
def _larger(value, place: tl.constexpr, best, won):
    """Keep the maximum so far and where it stands; NaN wins, as in torch."""
    larger = (value > best) | (value != value)
    return tl.where(larger, value, best), tl.where(larger, place, won)


@triton.jit
def _forward_pooled(
    x, x_rest, w, w_rest, bias, y, winner, bias_stride, B: tl.constexpr, H: tl.constexpr,
    W: tl.constexpr, C: tl.constexpr, CO: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    FIRST: tl.constexpr, SPLIT: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, BO: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Convolve, and pool before anything is written: a row is a window of 2×2 outputs."""
    P: tl.constexpr = (OH // 2) * (OW // 2)
    K: tl.constexpr = KH * KW * C
    client = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    o = tl.program_id(2) * BO + tl.arange(0, BO)
    live = rows < B * P
    b = rows // P
    pixel = rows % P
    oh = pixel // (OW // 2) * 2
    ow = pixel % (OW // 2) * 2
    images = x + client * (B * H * W * C)
    images_rest = x_rest + client * (B * H * W * C)
    a0 = tl.zeros((BM, BO), dtype=tl.float32)
    a1 = tl.zeros((BM, BO), dtype=tl.float32)
    a2 = tl.zeros((BM, BO), dtype=tl.float32)
    a3 = tl.zeros((BM, BO), dtype=tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        inside = (k < K)[:, None] & (o < CO)[None, :]
        at = client * (K * CO) + k[:, None] * CO + o[None, :]
        wt = tl.load(w + at, mask=inside, other=0.0)
        wt_rest = wt
        if SPLIT:
            wt_rest = tl.load(w_rest + at, mask=inside, other=0.0)
        a0 = _add_product(
            a0, images, images_rest, wt, wt_rest, b, oh, ow, live, k, K, H, W, C, KW, STRIDE,
            PAD, BK, SPLIT, PRECISION,
        )  # fmt: skip
        a1 = _add_product(
            a1, images, images_rest, wt, wt_rest, b, oh, ow + 1, live, k, K, H, W, C, KW, STRIDE,
            PAD, BK, SPLIT, PRECISION,
        )  # fmt: skip
        a2 = _add_product(
            a2, images, images_rest, wt, wt_rest, b, oh + 1, ow, live, k, K, H, W, C, KW, STRIDE,
            PAD, BK, SPLIT, PRECISION,
        )  # fmt: skip
        a3 = _add_product(
            a3, images, images_rest, wt, wt_rest, b, oh + 1, ow + 1, live, k, K, H, W, C, KW,
            STRIDE, PAD, BK, SPLIT, PRECISION,
        )  # fmt: skip
    offset = tl.load(bias + client * bias_stride + o, mask=o < CO, other=0.0)[None, :]
    # Rounded before they are compared, as outputs that are written in between would be.
    kind = y.dtype.element_ty
    best = (a0 + offset).to(kind).to(tl.float32)
    won = tl.zeros((BM, BO), dtype=tl.int32)
    best, won = _larger((a1 + offset).to(kind).to(tl.float32), 1, best, won)
    best, won = _larger((a2 + offset).to(kind).to(tl.float32), 2, best, won)
    best, won = _larger((a3 + offset).to(kind).to(tl.float32), 3, best, won)
    won = tl.where(best <= 0, NOBODY, won)
    best = tl.where(best <= 0, 0.0, best)
    last = rows[:, None] * CO + o[None, :]
    first = (b[:, None] * CO + o[None, :]) * P + pixel[:, None]
    inside = live[:, None] & (o < CO)[None, :]
    start = client * (B * P * CO)
    if FIRST:
        tl.store(y + start + first, best.to(kind), mask=inside)
    else:
        tl.store(y + start + last, best.to(kind), mask=inside)
    tl.store(winner + start + last, won.to(tl.uint8), mask=inside)


@triton.jit
def _to_taps(
    w, out, stride, C: tl.constexpr, T: tl.constexpr, CO: tl.constexpr, BJ: tl.constexpr,
    BO: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    j = tl.program_id(0) * BJ + tl.arange(0, BJ)
    o = tl.program_id(2) * BO + tl.arange(0, BO)
    inside = (o < CO)[:, None] & (j < C * T)[None, :]
    value = tl.load(w + client * stride + o[:, None] * (C * T) + j[None, :], mask=inside, other=0.0)
    at = ((j % T) * C + j // T)[None, :] * CO + o[:, None]
    tl.store(out + client * (C * T * CO) + at, value.to(out.dtype.element_ty), mask=inside)


def inner_block(size: int, widest: int) -> int:
    """Choose the inner block: the whole inner dimension if it is short, else ``widest``."""
    return min(widest, padded(size))


# The block sizes below were the fastest on an H200 for 32 and 64 channels on 26×26 images.


def to_taps(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Reorder weights (N, CO, C, KH, KW), each client's contiguous, to taps (N, T, C, CO)."""
    n, co, c, kh, kw = weight.shape
    out = torch.empty((n, kh * kw, c, co), dtype=dtype, device=weight.device)
    block = tile(co)
    launch(_to_taps, (triton.cdiv(c * kh * kw, 64), n, triton.cdiv(co, block)))(
        weight, out, weight.stride(0), c, kh * kw, co, BJ=64, BO=block
    )
    return out


# float32 as the sum of two bf16 numbers: what it is rounded to, and what is left
Split = tuple[Tensor, Tensor]


def split_taps(taps: Tensor) -> Split:
    """Split taps of float32; nothing is left of one that is rounded to infinity."""
    rounded = taps.bfloat16()
    rest = torch.where(rounded.isfinite(), taps - rounded.float(), 0.0)
    return rounded, rest.bfloat16()


def convolve(
    x: Tensor, w: Tensor, bias: Tensor, geometry: Geometry, *, split: bool = False
) -> Split:
    """Return the outputs, (N, B, OH, OW, CO), in x's type, twice; or of float32, split."""
    g, (n, batch) = geometry, x.shape[:2]
    kind = torch.bfloat16 if split else x.dtype
    y = torch.empty((n, batch, g.OH, g.OW, g.CO), dtype=kind, device=x.device)
    rest = torch.empty_like(y) if split else y
    single, block = x.dtype == torch.float32, tile(g.CO)
    launch(_forward, (triton.cdiv(batch * g.OH * g.OW, 256), n, triton.cdiv(g.CO, block)))(
        x, w, bias, y, rest, bias.stride(0), **g.constants(batch), RELU=g.relu_after, SPLIT=split,
        BM=256, BK=inner_block(g.KH * g.KW * g.C, 32), BO=block, num_warps=8 if single else 4,
        num_stages=2 if single else 3,
    )  # fmt: skip
    return y, rest


def convolve_and_pool(
    x: Tensor | Split, w: Tensor | Split, bias: Tensor, geometry: Geometry, channels_first: bool
) -> tuple[Tensor, Tensor]:
    """Return ReLU and 2×2 maximum of the outputs, and which pixel won; x and w may be split."""
    split = isinstance(x, tuple)
    high, rest = x if isinstance(x, tuple) else (x, x)
    taps, taps_rest = w if isinstance(w, tuple) else (w, w)
    g, (n, batch) = geometry, high.shape[:2]
    oh, ow = g.OH // 2, g.OW // 2
    shape = (n, batch, g.CO, oh, ow) if channels_first else (n, batch, oh, ow, g.CO)
    kind = torch.float32 if split else high.dtype
    y = torch.empty(shape, dtype=kind, device=high.device)
    winner = torch.empty((n, batch, oh, ow, g.CO), dtype=torch.uint8, device=high.device)
    single, block = high.dtype == torch.float32, tile(g.CO)
    sizes = {"BM": 64, "num_warps": 4, "num_stages": 3 if single else 4}
    if split:
        sizes = {"BM": 128, "num_warps": 8, "num_stages": 3}
    rows = triton.cdiv(batch * oh * ow, sizes["BM"])
    launch(_forward_pooled, (rows, n, triton.cdiv(g.CO, block)))(
        high, rest, taps, taps_rest, bias, y, winner, bias.stride(0), **g.constants(batch),
        FIRST=channels_first, SPLIT=split, BK=inner_block(g.KH * g.KW * g.C, 32), BO=block, **sizes,
    )  # fmt: skip
    return y, winner


# Weights of an output channel, C·KH·KW, up to which :func:`earlier_weight_gradient` serves
MOST_EARLIER = 63


@triton.jit
def _image_gradient(
    g, w, x, client, rows, b, ih, iw, c, B: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    C: tl.constexpr, CO: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, KH: tl.constexpr,
    KW: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, RELU: tl.constexpr,
    BM: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the gradient of the pixels (b, ih, iw) of a block of rows in the channels c."""
    M: tl.constexpr = B * H * W
    K: tl.constexpr = KH * KW * CO
    gradients = g + client * (B * OH * OW * CO)
    weights = w + client * (KH * KW * C * CO)
    acc = tl.zeros((BM, BC), dtype=tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        tap = k // CO
        o = k % CO
        if STRIDE == 1 and CO % BK == 0:  # one tap at a time, so a row has one place for all k
            top = ih + PAD - k0 // CO // KW
            left = iw + PAD - k0 // CO % KW
            live = (rows < M) & (top >= 0) & (top < OH) & (left >= 0) & (left < OW)
            inside = live[:, None]
            at = (((b * OH + top) * OW + left) * CO)[:, None] + o[None, :]
        else:
            top = ih[:, None] + PAD - (tap // KW)[None, :]
            left = iw[:, None] + PAD - (tap % KW)[None, :]
            oh = top // STRIDE
            ow = left // STRIDE
            inside = (rows < M)[:, None] & (k < K)[None, :] & (top >= 0) & (left >= 0)
            inside = inside & (oh < OH) & (ow < OW)
            if STRIDE > 1:
                inside = inside & (top % STRIDE == 0) & (left % STRIDE == 0)
            at = ((b[:, None] * OH + oh) * OW + ow) * CO + o[None, :]
        gt = tl.load(gradients + at, mask=inside, other=0.0, cache_modifier=".ca")
        at = (tap[:, None] * C + c[None, :]) * CO + o[:, None]
        wt = tl.load(weights + at, mask=(k < K)[:, None] & (c < C)[None, :], other=0.0)
        acc = tl.dot(gt, wt, acc, input_precision=PRECISION)
    if RELU:
        at = client * (M * C) + rows[:, None] * C + c[None, :]
        inside = (rows < M)[:, None] & (c < C)[None, :]
        acc = tl.where(tl.load(x + at, mask=inside, other=0.0) > 0, acc, 0.0)
    return acc


@triton.jit
def _input_gradient(
    g, w, x, dx, B: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
    CO: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    STRIDE: tl.constexpr, PAD: tl.constexpr, RELU: tl.constexpr, BM: tl.constexpr,
    BK: tl.constexpr, BC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    b = rows // (H * W)
    acc = _image_gradient(
        g, w, x, client, rows, b, rows % (H * W) // W, rows % (H * W) % W, c, B, H, W, C, CO, OH,
        OW, KH, KW, STRIDE, PAD, RELU, BM, BK, BC, PRECISION,
    )  # fmt: skip
    at = client * (B * H * W * C) + rows[:, None] * C + c[None, :]
    inside = (rows < B * H * W)[:, None] & (c < C)[None, :]
    tl.store(dx + at, acc.to(dx.dtype.element_ty), mask=inside)


@triton.jit
def _earlier_gradient(
    g, w, x, images, parts, B: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
    CO: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    STRIDE: tl.constexpr, PAD: tl.constexpr, RELU: tl.constexpr, H0: tl.constexpr,
    W0: tl.constexpr, C0: tl.constexpr, KH0: tl.constexpr, KW0: tl.constexpr,
    STRIDE0: tl.constexpr, PAD0: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
    BC: tl.constexpr, BT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Multiply the gradient of x with the images that x was convolved from, block by block.

    The gradient of x itself, which nothing else needs, is not written. Behind the taps, the images
    have a channel of ones, whose weight is the bias.
    """
    K0: tl.constexpr = KH0 * KW0 * C0
    client = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    b = rows // (H * W)
    ih = rows % (H * W) // W
    iw = rows % (H * W) % W
    acc = _image_gradient(
        g, w, x, client, rows, b, ih, iw, c, B, H, W, C, CO, OH, OW, KH, KW, STRIDE, PAD, RELU, BM,
        BK, BC, PRECISION,
    )  # fmt: skip
    k = tl.arange(0, BT)
    base = images + client * (B * H0 * W0 * C0)
    live = rows < B * H * W
    xt = patches(base, b, ih, iw, live, k, K0, H0, W0, C0, KW0, STRIDE0, PAD0, BT)
    xt = tl.where((k == K0)[None, :] & live[:, None], 1.0, xt.to(tl.float32)).to(xt.dtype)
    part = tl.dot(tl.trans(xt), acc.to(xt.dtype), input_precision=PRECISION)
    share = client * tl.num_programs(0) + tl.program_id(0)
    at = parts + share * (BT * C) + k[:, None] * C + c[None, :]
    tl.store(at, part, mask=(k <= K0)[:, None] & (c < C)[None, :])


@triton.jit
def _add_earlier(
    parts, dw, db, blocks, C0: tl.constexpr, T: tl.constexpr, CO: tl.constexpr, BT: tl.constexpr,
    BP: tl.constexpr, BI: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BI + tl.arange(0, BI)
    inside = i < (C0 * T + 1) * CO
    total = tl.zeros((BI,), dtype=tl.float32)
    for first in range(0, blocks, BP):
        part = first + tl.arange(0, BP)
        at = parts + (client * blocks + part)[:, None] * (BT * CO) + i[None, :]
        block = tl.load(at, mask=(part < blocks)[:, None] & inside[None, :], other=0.0)
        total += tl.sum(block, axis=0)
    # Row j is tap j // C0 of channel j % C0, and the bias behind them; PyTorch counts channels
    # first.
    j = i // CO
    o = i % CO
    at = dw + client * (C0 * T * CO) + (o * C0 + j % C0) * T + j // C0
    tl.store(at, total, mask=j < C0 * T)
    tl.store(db + client * CO + o, total, mask=j == C0 * T)


@triton.jit
def _weight_gradient(
    x, g, dw, db, B: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
    CO: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    STRIDE: tl.constexpr, PAD: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
    BO: tl.constexpr, SPLITS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    M: tl.constexpr = B * OH * OW
    K: tl.constexpr = KH * KW * C
    client = tl.program_id(1).to(tl.int64)
    part = tl.program_id(2)
    taps = tl.program_id(0) % tl.cdiv(K, BK)
    k = taps * BK + tl.arange(0, BK)
    o = tl.program_id(0) // tl.cdiv(K, BK) * BO + tl.arange(0, BO)
    images = x + client * (B * H * W * C)
    gradients = g + client * (M * CO)
    acc = tl.zeros((BK, BO), dtype=tl.float32)
    bias = tl.zeros((BO,), dtype=tl.float32)
    for turn in range(tl.cdiv(M, BM * SPLITS)):
        rows = (turn * SPLITS + part) * BM + tl.arange(0, BM)
        b = rows // (OH * OW)
        oh = rows % (OH * OW) // OW
        ow = rows % OW
        xt = patches(images, b, oh, ow, rows < M, k, K, H, W, C, KW, STRIDE, PAD, BK)
        inside = (rows < M)[:, None] & (o < CO)[None, :]
        gt = tl.load(gradients + rows[:, None] * CO + o[None, :], mask=inside, other=0.0)
        acc = tl.dot(tl.trans(xt), gt, acc, input_precision=PRECISION)
        if taps == 0:  # the bias sees every row once, whatever the tap
            bias += tl.sum(gt.to(tl.float32), axis=0)
    share = client * SPLITS + part
    at = dw + share * (K * CO) + k[:, None] * CO + o[None, :]
    tl.store(at, acc, mask=(k < K)[:, None] & (o < CO)[None, :])
    if taps == 0:
        tl.store(db + share * CO + o, bias, mask=o < CO)


@triton.jit
def _from_taps(
    parts, bias_parts, dw, db, C: tl.constexpr, T: tl.constexpr, CO: tl.constexpr,
    SPLITS: tl.constexpr, BJ: tl.constexpr, BO: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    j = tl.program_id(0) * BJ + tl.arange(0, BJ)
    o = tl.program_id(2) * BO + tl.arange(0, BO)
    inside = (o < CO)[:, None] & (j < C * T)[None, :]
    at = ((j % T) * C + j // T)[None, :] * CO + o[:, None]
    total = tl.zeros((BO, BJ), dtype=tl.float32)
    for part in tl.static_range(SPLITS):
        share = client * SPLITS + part
        total += tl.load(parts + share * (C * T * CO) + at, mask=inside, other=0.0)
    tl.store(dw + client * (C * T * CO) + o[:, None] * (C * T) + j[None, :], total, mask=inside)
    if tl.program_id(0) == 0:
        bias = tl.zeros((BO,), dtype=tl.float32)
        for part in tl.static_range(SPLITS):
            share = client * SPLITS + part
            bias += tl.load(bias_parts + share * CO + o, mask=o < CO, other=0.0)
        tl.store(db + client * CO + o, bias, mask=o < CO)


def _image_gradient_blocks(g: Geometry, single: bool) -> dict[str, int | bool]:
    """Return the block sizes of the gradient of images."""
    wide = 64 if g.CO % 64 == 0 and not single else 32  # one tap at a time, where possible
    warps, stages = (4, 2) if single else (8, 3)
    inner = inner_block(g.KH * g.KW * g.CO, wide)
    sizes = {"BM": 128, "BK": inner, "num_warps": warps, "num_stages": stages}
    return {**sizes, "BC": tile(g.C), "RELU": g.relu_before}


def input_gradient(grad: Tensor, w: Tensor, x: Tensor, geometry: Geometry) -> Tensor:
    """Return the gradient of the images, (N, B, H, W, C); ``x`` are the images themselves."""
    g, (n, batch) = geometry, grad.shape[:2]
    dx = torch.empty((n, batch, g.H, g.W, g.C), dtype=grad.dtype, device=grad.device)
    blocks = _image_gradient_blocks(g, grad.dtype == torch.float32)
    rows, channels = triton.cdiv(batch * g.H * g.W, blocks["BM"]), triton.cdiv(g.C, blocks["BC"])
    launch(_input_gradient, (rows, n, channels))(grad, w, x, dx, **g.constants(batch), **blocks)
    return dx


def earlier_weight_gradient(
    grad: Tensor, w: Tensor, x: Tensor, geometry: Geometry, images: Tensor, earlier: Geometry
) -> tuple[Tensor, Tensor]:
    """Return the gradients of weights and bias of the ``earlier`` convolution, which made x.

    The gradient of x, several times as large as anything else in a step, never leaves the
    registers.
    """
    g, e, (n, batch) = geometry, earlier, grad.shape[:2]
    blocks = _image_gradient_blocks(g, grad.dtype == torch.float32)
    rows, channels = triton.cdiv(batch * g.H * g.W, blocks["BM"]), triton.cdiv(g.C, blocks["BC"])
    taps = padded(e.KH * e.KW * e.C + 1)
    parts = torch.empty((n, rows, taps, g.C), dtype=torch.float32, device=x.device)
    launch(_earlier_gradient, (rows, n, channels))(
        grad, w, x, images, parts, **g.constants(batch), **blocks, H0=e.H, W0=e.W, C0=e.C,
        KH0=e.KH, KW0=e.KW, STRIDE0=e.stride, PAD0=e.padding, BT=taps,
    )  # fmt: skip
    dw = torch.empty((n, g.C, e.C, e.KH, e.KW), dtype=torch.float32, device=x.device)
    db = torch.empty((n, g.C), dtype=torch.float32, device=x.device)
    launch(_add_earlier, (triton.cdiv(taps * g.C, 256), n))(
        parts, dw, db, rows, C0=e.C, T=e.KH * e.KW, CO=g.C, BT=taps, BP=16, BI=256
    )
    return dw, db


def weight_gradient(x: Tensor, grad: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor]:
    """Return the gradients of weights and bias, float32: (N, CO, C, KH, KW) and (N, CO)."""
    g, (n, batch) = geometry, x.shape[:2]
    single = x.dtype == torch.float32
    inner = inner_block(g.KH * g.KW * g.C, 32 if single else 64)
    # Rows are shared out over a fixed number of programs whose sums are added in order: atomic
    # additions would be simpler and different in every run.
    splits = 3
    dw = torch.empty((n, splits, g.KH * g.KW, g.C, g.CO), dtype=torch.float32, device=x.device)
    db = torch.empty((n, splits, g.CO), dtype=torch.float32, device=x.device)
    block = tile(g.CO)
    blocks = triton.cdiv(g.KH * g.KW * g.C, inner) * triton.cdiv(g.CO, block)
    # With two stages Triton 3.6 overwrites images that a matrix unit still reads: about one launch
    # in ten on an H200 gave some client a wrong gradient.
    launch(_weight_gradient, (blocks, n, splits))(
        x, grad, dw, db, **g.constants(batch), BM=64 if single else 128, BK=inner, BO=block,
        SPLITS=splits, num_warps=4, num_stages=3,
    )  # fmt: skip
    out = torch.empty((n, g.CO, g.C, g.KH, g.KW), dtype=torch.float32, device=x.device)
    bias = torch.empty((n, g.CO), dtype=torch.float32, device=x.device)
    launch(_from_taps, (triton.cdiv(g.KH * g.KW * g.C, 64), n, triton.cdiv(g.CO, block)))(
        dw, db, out, bias, g.C, g.KH * g.KW, g.CO, splits, BJ=64, BO=block
    )
    return out, bias


class Convolution(torch.autograd.Function):
    """A convolution, with what stands before and after it (:func:`~.ops.stacked_conv2d`)."""

    @staticmethod
    def forward(ctx, x, weight, bias, form, pool_first, earlier_weight, earlier_bias, earlier_form):
        images, ctx.earlier = x, None
        if earlier_weight is not None:
            outputs, channels = earlier_weight.shape[1:3]
            height, width = x.shape[2:4]
            ctx.earlier = Geometry(height, width, channels, outputs, *earlier_form)
            taps = to_taps(earlier_weight, x.dtype)
            if (
                pool_first is not None
                and ctx.earlier.precision == BY_THREE
                and not any(ctx.needs_input_grad)
            ):
                # To split each number once takes less time than to do so in every product.
                split = convolve(images, taps, earlier_bias, ctx.earlier, split=True)
                height, width, channels = split[0].shape[2:]
                geometry = Geometry(height, width, channels, weight.shape[1], *form)
                parts = split_taps(to_taps(weight, x.dtype))
                return convolve_and_pool(split, parts, bias, geometry, pool_first)[0]
            x, _ = convolve(images, taps, earlier_bias, ctx.earlier)
        height, width, channels = x.shape[2:]
        ctx.geometry = Geometry(height, width, channels, weight.shape[1], *form)
        ctx.pool_first = pool_first
        taps = to_taps(weight, x.dtype)
        if pool_first is None:
            ctx.save_for_backward(images, x, taps)
            return convolve(x, taps, bias, ctx.geometry)[0]
        y, winner = convolve_and_pool(x, taps, bias, ctx.geometry, pool_first)
        ctx.save_for_backward(images, x, taps, winner)
        return y

    @staticmethod
    def backward(ctx, grad):
        images, x, taps, *winner = ctx.saved_tensors
        grad, g = grad.contiguous(), ctx.geometry
        if winner:
            pooled = (winner[0].flatten(0, 1), g.OH, g.OW, ctx.pool_first)
            grad = relu_pool_gradient(grad, *pooled).view(*x.shape[:2], g.OH, g.OW, g.CO)
        gradients = weight_gradient(x, grad, g)
        if ctx.earlier is not None:
            parts = (grad, taps, x, g, images, ctx.earlier)
            return None, *gradients, None, None, *earlier_weight_gradient(*parts), None
        dx = input_gradient(grad, taps, x, g) if ctx.needs_input_grad[0] else None
        return dx, *gradients, *[None] * 5
