"""Convolutions with different weights for every client, on a GPU.

cuDNN runs such a layer as a grouped convolution, several times slower than one
convolution of the same size, and unfolding the images first writes and reads a
nine-fold copy. These three Triton kernels multiply straight from the images
(implicit GEMM): rows are pixels, columns output channels, and the inner
dimension runs over taps and input channels. A program works for one client, so
no client's numbers depend on its neighbours'.

Layouts, contiguous: images (N, B, H, W, C), outputs (N, B, OH, OW, O), weights
(N, T, C, O) with T = KH·KW taps. Everything but N is a compile-time constant.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True)
class Geometry:
    """The fixed sizes of a convolution: images, channels, kernel, stride, padding."""

    H: int
    W: int
    C: int
    O: int  # noqa: E741 - the number of output channels, as in the kernels
    KH: int
    KW: int
    stride: int
    padding: int

    @property
    def OH(self) -> int:  # noqa: N802 - a letter of the layouts above
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
):
    """Load x[row, k]: the pixel and channel that tap-and-channel k of output row sees."""
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
    O: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    STRIDE: tl.constexpr, PAD: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, BO: tl.constexpr,
    PRECISION: tl.constexpr,
):
    M: tl.constexpr = B * OH * OW
    K: tl.constexpr = KH * KW * C
    client = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    o = tl.arange(0, BO)
    images = x + client * (B * H * W * C)
    weights = w + client * (K * O)
    acc = tl.zeros((BM, BO), dtype=tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        xt = _patches(images, rows, k, M, K, H, W, C, OH, OW, KW, STRIDE, PAD)
        wt = tl.load(
            weights + k[:, None] * O + o[None, :], mask=(k < K)[:, None] & (o < O)[None, :], other=0.0
        )
        acc = tl.dot(xt, wt, acc, input_precision=PRECISION)
    acc += tl.load(bias + client * O + o, mask=o < O, other=0.0).to(tl.float32)[None, :]
    out = y + client * (M * O) + rows[:, None] * O + o[None, :]
    tl.store(out, acc.to(y.dtype.element_ty), mask=(rows < M)[:, None] & (o < O)[None, :])


@triton.jit
def _input_gradient(
    g, w, dx, B: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
    O: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    STRIDE: tl.constexpr, PAD: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr,
    PRECISION: tl.constexpr,
):
    M: tl.constexpr = B * H * W
    K: tl.constexpr = KH * KW * O
    client = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    b = rows // (H * W)
    pixel = rows % (H * W)
    ih = pixel // W
    iw = pixel % W
    c = tl.arange(0, BC)
    gradients = g + client * (B * OH * OW * O)
    weights = w + client * (KH * KW * C * O)
    acc = tl.zeros((BM, BC), dtype=tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        tap = k // O
        o = k % O
        top = ih[:, None] + PAD - (tap // KW)[None, :]
        left = iw[:, None] + PAD - (tap % KW)[None, :]
        oh = top // STRIDE
        ow = left // STRIDE
        inside = (rows < M)[:, None] & (k < K)[None, :] & (top >= 0) & (left >= 0)
        inside = inside & (oh < OH) & (ow < OW)
        if STRIDE > 1:
            inside = inside & (top % STRIDE == 0) & (left % STRIDE == 0)
        gt = tl.load(
            gradients + ((b[:, None] * OH + oh) * OW + ow) * O + o[None, :], mask=inside, other=0.0
        )
        wt = tl.load(
            weights + (tap[:, None] * C + c[None, :]) * O + o[:, None],
            mask=(k < K)[:, None] & (c < C)[None, :],
            other=0.0,
        )
        acc = tl.dot(gt, wt, acc, input_precision=PRECISION)
    out = dx + client * (M * C) + rows[:, None] * C + c[None, :]
    tl.store(out, acc.to(dx.dtype.element_ty), mask=(rows < M)[:, None] & (c < C)[None, :])


@triton.jit
def _weight_gradient(
    x, g, dw, B: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
    O: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    STRIDE: tl.constexpr, PAD: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, BO: tl.constexpr,
    SPLITS: tl.constexpr, PRECISION: tl.constexpr,
):
    M: tl.constexpr = B * OH * OW
    K: tl.constexpr = KH * KW * C
    client = tl.program_id(1).to(tl.int64)
    part = tl.program_id(2)
    k = tl.program_id(0) * BK + tl.arange(0, BK)
    o = tl.arange(0, BO)
    images = x + client * (B * H * W * C)
    gradients = g + client * (M * O)
    acc = tl.zeros((BK, BO), dtype=tl.float32)
    for m0 in range(part * BM, M, BM * SPLITS):
        rows = m0 + tl.arange(0, BM)
        xt = _patches(images, rows, k, M, K, H, W, C, OH, OW, KW, STRIDE, PAD)
        gt = tl.load(
            gradients + rows[:, None] * O + o[None, :],
            mask=(rows < M)[:, None] & (o < O)[None, :],
            other=0.0,
        )
        acc = tl.dot(tl.trans(xt), gt, acc, input_precision=PRECISION)
    out = dw + (client * SPLITS + part) * (K * O) + k[:, None] * O + o[None, :]
    tl.store(out, acc, mask=(k < K)[:, None] & (o < O)[None, :])


def _padded(size: int) -> int:
    return max(16, triton.next_power_of_2(size))


def _inner(size: int, channels: int) -> int:
    """Choose the inner block: whole taps where channels allow, 16 at least, 64 at most."""
    return min(64, _padded(size if channels < 16 else 2 * channels))


def _sizes(geometry: Geometry, batch: int) -> dict[str, int]:
    g = geometry
    return {
        "B": batch, "H": g.H, "W": g.W, "C": g.C, "O": g.O, "OH": g.OH, "OW": g.OW,
        "KH": g.KH, "KW": g.KW, "STRIDE": g.stride, "PAD": g.padding,
    }


def forward(x: Tensor, w: Tensor, bias: Tensor, geometry: Geometry) -> Tensor:
    """Convolve: (N, B, H, W, C) and weights (N, T, C, O) to (N, B, OH, OW, O)."""
    n, batch = x.shape[:2]
    g = geometry
    y = torch.empty((n, batch, g.OH, g.OW, g.O), dtype=x.dtype, device=x.device)
    block = 128
    _forward[(triton.cdiv(batch * g.OH * g.OW, block), n)](
        x, w, bias, y, **_sizes(g, batch), BM=block, BK=_inner(g.KH * g.KW * g.C, g.C),
        BO=_padded(g.O), PRECISION=_precision(x), num_warps=4, num_stages=3,
    )
    return y


def input_gradient(grad: Tensor, w: Tensor, geometry: Geometry) -> Tensor:
    """Return the gradient of the images, (N, B, H, W, C)."""
    n, batch = grad.shape[:2]
    g = geometry
    dx = torch.empty((n, batch, g.H, g.W, g.C), dtype=grad.dtype, device=grad.device)
    block = 128
    _input_gradient[(triton.cdiv(batch * g.H * g.W, block), n)](
        grad, w, dx, **_sizes(g, batch), BM=block, BK=_inner(g.KH * g.KW * g.O, g.O),
        BC=_padded(g.C), PRECISION=_precision(grad), num_warps=4, num_stages=3,
    )
    return dx


def weight_gradient(x: Tensor, grad: Tensor, geometry: Geometry) -> Tensor:
    """Return the gradient of the weights, float32 of shape (N, T, C, O)."""
    n, batch = x.shape[:2]
    g = geometry
    taps = g.KH * g.KW * g.C
    inner = _inner(taps, g.C)
    # Rows are shared out over a fixed number of programs whose sums are added in order: atomics
    # would be quicker to write and different in every run.
    splits = 4
    partial = torch.empty((n, splits, g.KH * g.KW, g.C, g.O), dtype=torch.float32, device=x.device)
    _weight_gradient[(triton.cdiv(taps, inner), n, splits)](
        x, grad, partial, **_sizes(g, batch), BM=64, BK=inner, BO=_padded(g.O), SPLITS=splits,
        PRECISION=_precision(x), num_warps=4, num_stages=3,
    )
    return partial.sum(1)


def _precision(x: Tensor) -> str:
    """Multiply float32 as TF32 where PyTorch was allowed to, else exactly; bf16 needs neither."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
