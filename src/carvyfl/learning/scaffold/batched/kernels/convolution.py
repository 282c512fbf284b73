"""Convolution, multiplying straight from the images (implicit GEMM).

Unfolding the images first would write and read a nine-fold copy. Rows are pixels,
columns output channels, and the inner dimension runs over taps and input channels.

Layouts, contiguous: images (N, B, H, W, C), outputs (N, B, OH, OW, CO), taps
(N, T, C, CO) with T = KH·KW.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import triton
import triton.language as tl
from torch import Tensor

from carvyfl.core.errors import CarvyError
from carvyfl.learning.scaffold.batched.kernels.blocks import padded, precision, tile
from carvyfl.learning.scaffold.batched.kernels.launch import launch
from carvyfl.learning.scaffold.batched.kernels.pooling import NOBODY


@dataclass(frozen=True)
class Geometry:
    """The fixed sizes of a convolution, in the letters of the layouts above.

    Attributes
    ----------
    H, W, C, CO, KH, KW, stride, padding
        Image height and width, channels in and out, kernel height and width.
    relu_before
        Whether the images are what a ReLU let through; their gradient is then
        that of the ReLU's input.
    relu_after
        Whether a ReLU is applied to the outputs; their gradient is then expected
        to be that of the ReLU's input.
    precision
        How float32 is multiplied.
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
        """Rows of an output image."""
        return (self.H + 2 * self.padding - self.KH) // self.stride + 1

    @property
    def OW(self) -> int:  # noqa: N802
        """Columns of an output image."""
        return (self.W + 2 * self.padding - self.KW) // self.stride + 1


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


def constants(geometry: Geometry, batch: int) -> dict[str, int | bool | str]:
    """Return the constants of a convolution's kernels, by name."""
    g = geometry
    return {
        "B": batch, "H": g.H, "W": g.W, "C": g.C, "CO": g.CO, "OH": g.OH, "OW": g.OW, "KH": g.KH,
        "KW": g.KW, "STRIDE": g.stride, "PAD": g.padding, "PRECISION": g.precision,
    }  # fmt: skip


# The block sizes below were the fastest on an H200 for 32 and 64 channels on 26×26 images.


def to_taps(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Reorder PyTorch's weights (N, CO, C, KH, KW) to taps (N, T, C, CO) of another type.

    Every client's own weights must be contiguous; the clients may lie apart.
    """
    n, co, c, kh, kw = weight.shape
    out = torch.empty((n, kh * kw, c, co), dtype=dtype, device=weight.device)
    block = tile(co)
    launch(_to_taps, (triton.cdiv(c * kh * kw, 64), n, triton.cdiv(co, block)))(
        weight, out, weight.stride(0), c, kh * kw, co, BJ=64, BO=block
    )
    return out


def _check_size(g: Geometry, batch: int) -> None:
    """Refuse images that are more numbers for a client than 32 bits can count."""
    if batch * max(g.H * g.W * g.C, g.OH * g.OW * g.CO) >= 1 << 31:
        raise CarvyError(
            f"{batch} images at once are too many for a convolution on the GPU; use a smaller batch"
        )


Split = tuple[Tensor, Tensor]
"""float32 as the sum of two bf16 numbers: what it is rounded to, and what is left."""


def split_taps(taps: Tensor) -> Split:
    """Split taps of float32; nothing is left of one that is rounded to infinity."""
    rounded = taps.bfloat16()
    rest = torch.where(rounded.isfinite(), taps - rounded.float(), 0.0)
    return rounded, rest.bfloat16()


def convolve(x: Tensor, w: Tensor, bias: Tensor, geometry: Geometry) -> Tensor:
    """Return the outputs, (N, B, OH, OW, CO), in x's type; ``w`` is of that type too."""
    y = _outputs(x, geometry, x.dtype)
    _convolve(x, w, bias, geometry, y, None)
    return y


def convolve_and_split(x: Tensor, w: Tensor, bias: Tensor, geometry: Geometry) -> Split:
    """Return the outputs of :func:`convolve` for float32, split."""
    y, rest = (_outputs(x, geometry, torch.bfloat16) for _ in range(2))
    _convolve(x, w, bias, geometry, y, rest)
    return y, rest


def _outputs(x: Tensor, g: Geometry, dtype: torch.dtype) -> Tensor:
    return torch.empty((*x.shape[:2], g.OH, g.OW, g.CO), dtype=dtype, device=x.device)


def _convolve(
    x: Tensor, w: Tensor, bias: Tensor, geometry: Geometry, y: Tensor, rest: Tensor | None
) -> None:
    g, (n, batch) = geometry, x.shape[:2]
    _check_size(g, batch)
    single, block = x.dtype == torch.float32, tile(g.CO)
    launch(_forward, (triton.cdiv(batch * g.OH * g.OW, 256), n, triton.cdiv(g.CO, block)))(
        x, w, bias, y, y if rest is None else rest, bias.stride(0), **constants(g, batch),
        RELU=g.relu_after, SPLIT=rest is not None, BM=256, BK=inner_block(g.KH * g.KW * g.C, 32),
        BO=block, num_warps=8 if single else 4, num_stages=2 if single else 3,
    )  # fmt: skip


def convolve_and_pool(
    x: Tensor | Split, w: Tensor | Split, bias: Tensor, geometry: Geometry, channels_first: bool
) -> tuple[Tensor, Tensor]:
    """Return ReLU and 2×2 maximum of the outputs, and which pixel won (see pooling).

    The maximum has shape (N, B, CO, OH/2, OW/2) with ``channels_first``, else (N, B, OH/2, OW/2,
    CO), as the winners have. Images and weights may both be split.
    """
    split = isinstance(x, tuple)
    high, rest = x if isinstance(x, tuple) else (x, x)
    own, own_rest = w if isinstance(w, tuple) else (w, w)
    g, (n, batch) = geometry, high.shape[:2]
    _check_size(g, batch)
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
        high, rest, own, own_rest, bias, y, winner, bias.stride(0), **constants(g, batch),
        FIRST=channels_first, SPLIT=split, BK=inner_block(g.KH * g.KW * g.C, 32), BO=block, **sizes,
    )  # fmt: skip
    return y, winner
