"""Convolution, multiplying straight from the images (implicit GEMM).

Unfolding the images first would write and read a nine-fold copy. Rows are pixels,
columns output channels, and the inner dimension runs over taps and input channels.

Layouts, contiguous: images (N, B, H, W, C), outputs (N, B, OH, OW, CO), taps
(N, T, C, CO) with T = KH·KW.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from carvyfl.core.errors import CarvyError
from carvyfl.learning.scaffold.batched.kernels.blocks import padded, precision, tile


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

    @property
    def OH(self) -> int:  # noqa: N802
        """Rows of an output image."""
        return (self.H + 2 * self.padding - self.KH) // self.stride + 1

    @property
    def OW(self) -> int:  # noqa: N802
        """Columns of an output image."""
        return (self.W + 2 * self.padding - self.KW) // self.stride + 1


@triton.jit
def _patches(
    base, rows, k, M: tl.constexpr, K: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    C: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, KW: tl.constexpr,
    STRIDE: tl.constexpr, PAD: tl.constexpr,
):  # fmt: skip
    """Load x[row, k]: what tap-and-channel k of an output row sees."""
    b = rows // (OH * OW)
    pixel = rows % (OH * OW)
    tap = k // C
    ih = (pixel // OW)[:, None] * STRIDE - PAD + (tap // KW)[None, :]
    iw = (pixel % OW)[:, None] * STRIDE - PAD + (tap % KW)[None, :]
    inside = (rows < M)[:, None] & (k < K)[None, :]
    if PAD > 0:
        inside = inside & (ih >= 0) & (ih < H) & (iw >= 0) & (iw < W)
    at = ((b[:, None] * H + ih) * W + iw) * C + (k % C)[None, :]
    return tl.load(base + at, mask=inside, other=0.0)


@triton.jit
def _forward(
    x, w, bias, y, B: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
    CO: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    STRIDE: tl.constexpr, PAD: tl.constexpr, RELU: tl.constexpr, BM: tl.constexpr,
    BK: tl.constexpr, BO: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    M: tl.constexpr = B * OH * OW
    K: tl.constexpr = KH * KW * C
    client = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    o = tl.program_id(2) * BO + tl.arange(0, BO)
    images = x + client * (B * H * W * C)
    weights = w + client * (K * CO)
    acc = tl.zeros((BM, BO), dtype=tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        xt = _patches(images, rows, k, M, K, H, W, C, OH, OW, KW, STRIDE, PAD)
        inside = (k < K)[:, None] & (o < CO)[None, :]
        wt = tl.load(weights + k[:, None] * CO + o[None, :], mask=inside, other=0.0)
        acc = tl.dot(xt, wt, acc, input_precision=PRECISION)
    acc += tl.load(bias + client * CO + o, mask=o < CO, other=0.0)[None, :]
    if RELU:
        acc = tl.where(acc <= 0, 0.0, acc)
    at = y + client * (M * CO) + rows[:, None] * CO + o[None, :]
    tl.store(at, acc.to(y.dtype.element_ty), mask=(rows < M)[:, None] & (o < CO)[None, :])


@triton.jit
def _input_gradient(
    g, w, x, dx, B: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
    CO: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    STRIDE: tl.constexpr, PAD: tl.constexpr, RELU: tl.constexpr, BM: tl.constexpr,
    BK: tl.constexpr, BC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    M: tl.constexpr = B * H * W
    K: tl.constexpr = KH * KW * CO
    client = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    b = rows // (H * W)
    pixel = rows % (H * W)
    ih = pixel // W
    iw = pixel % W
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    gradients = g + client * (B * OH * OW * CO)
    weights = w + client * (KH * KW * C * CO)
    acc = tl.zeros((BM, BC), dtype=tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        tap = k // CO
        o = k % CO
        top = ih[:, None] + PAD - (tap // KW)[None, :]
        left = iw[:, None] + PAD - (tap % KW)[None, :]
        oh = top // STRIDE
        ow = left // STRIDE
        inside = (rows < M)[:, None] & (k < K)[None, :] & (top >= 0) & (left >= 0)
        inside = inside & (oh < OH) & (ow < OW)
        if STRIDE > 1:
            inside = inside & (top % STRIDE == 0) & (left % STRIDE == 0)
        at = ((b[:, None] * OH + oh) * OW + ow) * CO + o[None, :]
        gt = tl.load(gradients + at, mask=inside, other=0.0)
        at = (tap[:, None] * C + c[None, :]) * CO + o[:, None]
        wt = tl.load(weights + at, mask=(k < K)[:, None] & (c < C)[None, :], other=0.0)
        acc = tl.dot(gt, wt, acc, input_precision=PRECISION)
    at = client * (M * C) + rows[:, None] * C + c[None, :]
    inside = (rows < M)[:, None] & (c < C)[None, :]
    if RELU:
        acc = tl.where(tl.load(x + at, mask=inside, other=0.0) > 0, acc, 0.0)
    tl.store(dx + at, acc.to(dx.dtype.element_ty), mask=inside)


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
        xt = _patches(images, rows, k, M, K, H, W, C, OH, OW, KW, STRIDE, PAD)
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


@triton.jit
def _from_taps(
    parts, dw, C: tl.constexpr, T: tl.constexpr, CO: tl.constexpr, SPLITS: tl.constexpr,
    BJ: tl.constexpr, BO: tl.constexpr,
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


def _inner(size: int, widest: int) -> int:
    """Choose the inner block: the whole inner dimension if it is short, else ``widest``."""
    return min(widest, padded(size))


def _constants(geometry: Geometry, batch: int) -> dict[str, int | bool | str]:
    g = geometry
    return {
        "B": batch, "H": g.H, "W": g.W, "C": g.C, "CO": g.CO, "OH": g.OH, "OW": g.OW, "KH": g.KH,
        "KW": g.KW, "STRIDE": g.stride, "PAD": g.padding, "PRECISION": precision(),
    }  # fmt: skip


# The block sizes below were the fastest on an H200 for 32 and 64 channels on 26×26 images.


def to_taps(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Reorder PyTorch's weights (N, CO, C, KH, KW) to taps (N, T, C, CO) of another type.

    Every client's own weights must be contiguous; the clients may lie apart.
    """
    n, co, c, kh, kw = weight.shape
    out = torch.empty((n, kh * kw, c, co), dtype=dtype, device=weight.device)
    block = tile(co)
    _to_taps[(triton.cdiv(c * kh * kw, 64), n, triton.cdiv(co, block))](
        weight, out, weight.stride(0), c, kh * kw, co, BJ=64, BO=block
    )
    return out


def convolve(x: Tensor, w: Tensor, bias: Tensor, geometry: Geometry) -> Tensor:
    """Return the outputs, (N, B, OH, OW, CO), in x's type; ``w`` is of that type too.

    Raises CarvyError if one client's images or outputs are more numbers than 32 bits can count.
    """
    g, (n, batch) = geometry, x.shape[:2]
    if batch * max(g.H * g.W * g.C, g.OH * g.OW * g.CO) >= 1 << 31:
        raise CarvyError(
            f"{batch} images at once are too many for a convolution on the GPU; use a smaller batch"
        )
    single = x.dtype == torch.float32
    y = torch.empty((n, batch, g.OH, g.OW, g.CO), dtype=x.dtype, device=x.device)
    block = tile(g.CO)
    _forward[(triton.cdiv(batch * g.OH * g.OW, 256), n, triton.cdiv(g.CO, block))](
        x, w, bias, y, **_constants(g, batch), RELU=g.relu_after, BM=256,
        BK=_inner(g.KH * g.KW * g.C, 32), BO=block, num_warps=8 if single else 4,
        num_stages=2 if single else 3,
    )  # fmt: skip
    return y


def input_gradient(grad: Tensor, w: Tensor, x: Tensor, geometry: Geometry) -> Tensor:
    """Return the gradient of the images, (N, B, H, W, C); ``x`` are the images themselves."""
    g, (n, batch) = geometry, grad.shape[:2]
    dx = torch.empty((n, batch, g.H, g.W, g.C), dtype=grad.dtype, device=grad.device)
    widest = 32 if grad.dtype == torch.float32 else 64
    block = tile(g.C)
    _input_gradient[(triton.cdiv(batch * g.H * g.W, 128), n, triton.cdiv(g.C, block))](
        grad, w, x, dx, **_constants(g, batch), BM=128, BK=_inner(g.KH * g.KW * g.CO, widest),
        BC=block, RELU=g.relu_before, num_warps=4, num_stages=2,
    )  # fmt: skip
    return dx


def weight_gradient(x: Tensor, grad: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor]:
    """Return the gradients of weights and bias, float32: (N, CO, C, KH, KW) and (N, CO)."""
    g, (n, batch) = geometry, x.shape[:2]
    single = x.dtype == torch.float32
    inner = _inner(g.KH * g.KW * g.C, 32 if single else 64)
    # Rows are shared out over a fixed number of programs whose sums are added in order: atomic
    # additions would be simpler and different in every run.
    splits = 4
    dw = torch.empty((n, splits, g.KH * g.KW, g.C, g.CO), dtype=torch.float32, device=x.device)
    db = torch.empty((n, splits, g.CO), dtype=torch.float32, device=x.device)
    block = tile(g.CO)
    blocks = triton.cdiv(g.KH * g.KW * g.C, inner) * triton.cdiv(g.CO, block)
    _weight_gradient[(blocks, n, splits)](
        x, grad, dw, db, **_constants(g, batch), BM=64, BK=inner, BO=block, SPLITS=splits,
        num_warps=4, num_stages=2 if single else 3,
    )  # fmt: skip
    out = torch.empty((n, g.CO, g.C, g.KH, g.KW), dtype=torch.float32, device=x.device)
    _from_taps[(triton.cdiv(g.KH * g.KW * g.C, 64), n, triton.cdiv(g.CO, block))](
        dw, out, g.C, g.KH * g.KW, g.CO, splits, BJ=64, BO=block
    )
    return out, db.sum(1)
