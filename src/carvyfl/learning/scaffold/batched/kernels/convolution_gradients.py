"""The gradients of a convolution: of its images, of its weights, and of those of the one before.

Layouts are those of :mod:`carvyfl.learning.scaffold.batched.kernels.convolution`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from carvyfl.learning.scaffold.batched.kernels.blocks import padded, tile
from carvyfl.learning.scaffold.batched.kernels.convolution import (
    Geometry,
    constants,
    inner_block,
    patches,
)
from carvyfl.learning.scaffold.batched.kernels.launch import launch

MOST_EARLIER = 63
"""Weights of an output channel, C·KH·KW, up to which :func:`earlier_weight_gradient` serves."""


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
    own = images + client * (B * H0 * W0 * C0)
    live = rows < B * H * W
    xt = patches(own, b, ih, iw, live, k, K0, H0, W0, C0, KW0, STRIDE0, PAD0, BT)
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
        some = tl.load(at, mask=(part < blocks)[:, None] & inside[None, :], other=0.0)
        total += tl.sum(some, axis=0)
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


# The block sizes below were the fastest on an H200 for 32 and 64 channels on 26×26 images.


def _image_gradient_blocks(g: Geometry, single: bool) -> dict[str, int | bool]:
    """Return the block sizes of the gradient of images."""
    block = tile(g.C)
    if single:
        sizes = {
            "BM": 128,
            "BK": inner_block(g.KH * g.KW * g.CO, 32),
            "num_warps": 4,
            "num_stages": 2,
        }
    else:
        wide = 64 if g.CO % 64 == 0 else 32  # one tap at a time, where that is possible
        inner = inner_block(g.KH * g.KW * g.CO, wide)
        sizes = {"BM": 128, "BK": inner, "num_warps": 8, "num_stages": 3}
    return {**sizes, "BC": block, "RELU": g.relu_before}


def input_gradient(grad: Tensor, w: Tensor, x: Tensor, geometry: Geometry) -> Tensor:
    """Return the gradient of the images, (N, B, H, W, C); ``x`` are the images themselves."""
    g, (n, batch) = geometry, grad.shape[:2]
    dx = torch.empty((n, batch, g.H, g.W, g.C), dtype=grad.dtype, device=grad.device)
    blocks = _image_gradient_blocks(g, grad.dtype == torch.float32)
    rows, channels = triton.cdiv(batch * g.H * g.W, blocks["BM"]), triton.cdiv(g.C, blocks["BC"])
    launch(_input_gradient, (rows, n, channels))(grad, w, x, dx, **constants(g, batch), **blocks)
    return dx


def earlier_weight_gradient(
    grad: Tensor, w: Tensor, x: Tensor, geometry: Geometry, images: Tensor, earlier: Geometry
) -> tuple[Tensor, Tensor]:
    """Return the gradients of weights and bias of the convolution that gave x.

    The gradient of x, several times as large as anything else in a step, never leaves the
    registers.

    Parameters
    ----------
    grad, w, x, geometry
        As for :func:`input_gradient`.
    images, earlier
        What x was convolved from, and how.
    """
    g, e, (n, batch) = geometry, earlier, grad.shape[:2]
    blocks = _image_gradient_blocks(g, grad.dtype == torch.float32)
    rows, channels = triton.cdiv(batch * g.H * g.W, blocks["BM"]), triton.cdiv(g.C, blocks["BC"])
    taps = padded(e.KH * e.KW * e.C + 1)
    parts = torch.empty((n, rows, taps, g.C), dtype=torch.float32, device=x.device)
    launch(_earlier_gradient, (rows, n, channels))(
        grad, w, x, images, parts, **constants(g, batch), **blocks, H0=e.H, W0=e.W, C0=e.C,
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
        x, grad, dw, db, **constants(g, batch), BM=64 if single else 128, BK=inner, BO=block,
        SPLITS=splits, num_warps=4, num_stages=3,
    )  # fmt: skip
    out = torch.empty((n, g.CO, g.C, g.KH, g.KW), dtype=torch.float32, device=x.device)
    bias = torch.empty((n, g.CO), dtype=torch.float32, device=x.device)
    launch(_from_taps, (triton.cdiv(g.KH * g.KW * g.C, 64), n, triton.cdiv(g.CO, block)))(
        dw, db, out, bias, g.C, g.KH * g.KW, g.CO, splits, BJ=64, BO=block
    )
    return out, bias
