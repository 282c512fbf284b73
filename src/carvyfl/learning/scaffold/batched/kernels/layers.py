"""Linear layers, dropout, a ReLU with max-pooling, and the gradients of normalisation layers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from carvyfl.core.randomness import MULTIPLIERS
from carvyfl.learning.scaffold.batched.kernels import EXACT, launch, precision, tile
from carvyfl.learning.scaffold.batched.ops import scaled_and_shifted

# The clients' keys, int64 of shape (N,), the least hash that stays, and what its number is
# multiplied by
Dropping = tuple[Tensor, int, float]


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
    rest = dropped(value, i, keys, client, threshold, scale)
    tl.store(y + client * count + i, rest.to(y.dtype.element_ty), mask=inside)


def drop(x: Tensor, dropping: Dropping) -> Tensor:
    """Zero what ``keep_mask`` drops in (N, count), and scale up the rest."""
    n, count = x.shape
    keys, threshold, scale = dropping
    y = torch.empty_like(x)
    launch(_drop, (triton.cdiv(count, 1024), n))(x, keys, y, count, threshold, scale, BLOCK=1024)
    return y


# A linear layer reads weights as they lie: a library's batched product would copy them first, and
# how it adds up depends on how many clients there are. Inputs (N, B, K) are contiguous, and every
# client's own part of the weights (N, CO, K). A dropout layer before it is computed on the way.


@triton.jit
def _linear(
    x, w, parts, stride, keys, threshold, scale, B: tl.constexpr, K: tl.constexpr,
    CO: tl.constexpr, BB: tl.constexpr, BK: tl.constexpr, BO: tl.constexpr, SPLITS: tl.constexpr,
    PRECISION: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    part = tl.program_id(0) % SPLITS
    b = tl.program_id(0) // SPLITS * BB + tl.arange(0, BB)
    o = tl.program_id(2) * BO + tl.arange(0, BO)
    acc = tl.zeros((BB, BO), dtype=tl.float32)
    for turn in range(tl.cdiv(K, BK * SPLITS)):
        k = (part * tl.cdiv(K, BK * SPLITS) + turn) * BK + tl.arange(0, BK)
        inside = (b < B)[:, None] & (k < K)[None, :]
        i = b[:, None] * K + k[None, :]
        xt = tl.load(x + client * (B * K) + i, mask=inside, other=0.0)
        if DROP:
            xt = dropped(xt, i, keys, client, threshold, scale).to(xt.dtype)
        inside = (k < K)[:, None] & (o < CO)[None, :]
        at = w + client * stride + o[None, :] * K + k[:, None]
        wt = tl.load(at, mask=inside, other=0.0).to(xt.dtype)
        acc = tl.dot(xt, wt, acc, input_precision=PRECISION)
    at = parts + (client * SPLITS + part) * (B * CO) + b[:, None] * CO + o[None, :]
    tl.store(at, acc, mask=(b < B)[:, None] & (o < CO)[None, :])


@triton.jit
def _add_parts(
    parts, bias, y, bias_stride, B: tl.constexpr, CO: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < B * CO
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for part in tl.static_range(SPLITS):
        total += tl.load(parts + (client * SPLITS + part) * (B * CO) + i, mask=inside, other=0.0)
    total += tl.load(bias + client * bias_stride + i % CO, mask=inside, other=0.0)
    tl.store(y + client * (B * CO) + i, total.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _linear_input_gradient(
    g, w, dx, stride, keys, threshold, scale, B: tl.constexpr, K: tl.constexpr,
    CO: tl.constexpr, BB: tl.constexpr, BK: tl.constexpr, BO: tl.constexpr,
    PRECISION: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    k = tl.program_id(0) * BK + tl.arange(0, BK)
    b = tl.program_id(2) * BB + tl.arange(0, BB)
    acc = tl.zeros((BB, BK), dtype=tl.float32)
    for o0 in range(0, CO, BO):
        o = o0 + tl.arange(0, BO)
        inside = (b < B)[:, None] & (o < CO)[None, :]
        gt = tl.load(g + client * (B * CO) + b[:, None] * CO + o[None, :], mask=inside, other=0.0)
        inside = (o < CO)[:, None] & (k < K)[None, :]
        at = w + client * stride + o[:, None] * K + k[None, :]
        wt = tl.load(at, mask=inside, other=0.0).to(gt.dtype)
        acc = tl.dot(gt, wt, acc, input_precision=PRECISION)
    i = b[:, None] * K + k[None, :]
    if DROP:  # rounded before, as a gradient that is written in between would be
        rounded = acc.to(dx.dtype.element_ty)
        acc = dropped(rounded, i, keys, client, threshold, scale)
    inside = (b < B)[:, None] & (k < K)[None, :]
    tl.store(dx + client * (B * K) + i, acc.to(dx.dtype.element_ty), mask=inside)


@triton.jit
def _linear_weight_gradient(
    g, x, dw, db, keys, threshold, scale, B: tl.constexpr, K: tl.constexpr,
    CO: tl.constexpr, BB: tl.constexpr, BK: tl.constexpr, BO: tl.constexpr,
    PRECISION: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    k = tl.program_id(0) * BK + tl.arange(0, BK)
    o = tl.program_id(2) * BO + tl.arange(0, BO)
    acc = tl.zeros((BO, BK), dtype=tl.float32)
    bias = tl.zeros((BO,), dtype=tl.float32)
    for b0 in range(0, B, BB):
        b = b0 + tl.arange(0, BB)
        inside = (b < B)[:, None] & (o < CO)[None, :]
        gt = tl.load(g + client * (B * CO) + b[:, None] * CO + o[None, :], mask=inside, other=0.0)
        inside = (b < B)[:, None] & (k < K)[None, :]
        i = b[:, None] * K + k[None, :]
        xt = tl.load(x + client * (B * K) + i, mask=inside, other=0.0)
        if DROP:
            xt = dropped(xt, i, keys, client, threshold, scale).to(xt.dtype)
        acc = tl.dot(tl.trans(gt), xt, acc, input_precision=PRECISION)
        bias += tl.sum(gt.to(tl.float32), axis=0)
    at = dw + client * (CO * K) + o[:, None] * K + k[None, :]
    tl.store(at, acc, mask=(o < CO)[:, None] & (k < K)[None, :])
    if tl.program_id(0) == 0:
        tl.store(db + client * CO + o, bias, mask=o < CO)


def _blocks(x: Tensor, weight: Tensor, products: str) -> tuple[int, int, int, dict[str, int | str]]:
    """Return the numbers of blocks of samples, inputs and outputs, and the kernels' constants."""
    batch, inputs, outputs = x.shape[1], x.shape[2], weight.shape[1]
    bb, bo = tile(batch), tile(outputs)
    bk = 128 if max(bb, bo) == 16 else 64  # so that it fits the shared memory of smaller GPUs
    constants: dict[str, int | str] = {
        "B": batch, "K": inputs, "CO": outputs, "BB": bb, "BK": bk, "BO": bo,
        "PRECISION": products, "num_warps": 2 if bk == 128 else 4,
    }  # fmt: skip
    return triton.cdiv(batch, bb), triton.cdiv(inputs, bk), triton.cdiv(outputs, bo), constants


def linear(
    x: Tensor, weight: Tensor, bias: Tensor, dropping: Dropping | None, products: str = EXACT
) -> Tensor:
    """Return x Wᵀ + b, shape (N, B, CO), in x's type; ``products``: how float32 is multiplied."""
    n, batch, inputs = x.shape
    outputs = weight.shape[1]
    # Few clients do not fill a GPU: long rows are shared out over a number of programs that depends
    # on the layer alone, whose sums are added in order.
    splits = min(8, triton.cdiv(inputs, 1024))
    parts = torch.empty((n, splits, batch, outputs), dtype=torch.float32, device=x.device)
    samples, _, blocks, constants = _blocks(x, weight, products)
    launch(_linear, (samples * splits, n, blocks))(
        x, weight, parts, weight.stride(0), *(dropping or (x, 0, 0.0)), **constants, SPLITS=splits,
        DROP=dropping is not None,
    )  # fmt: skip
    y = torch.empty((n, batch, outputs), dtype=x.dtype, device=x.device)
    block = min(1024, triton.next_power_of_2(batch * outputs))
    launch(_add_parts, (triton.cdiv(batch * outputs, block), n))(
        parts, bias, y, bias.stride(0), batch, outputs, splits, BLOCK=block
    )
    return y


def linear_input_gradient(
    grad: Tensor, x: Tensor, weight: Tensor, dropping: Dropping | None, products: str = EXACT
) -> Tensor:
    """Return the gradient of the inputs, shape (N, B, K)."""
    dx = torch.empty_like(x)
    samples, inputs, _, constants = _blocks(x, weight, products)
    launch(_linear_input_gradient, (inputs, len(x), samples))(
        grad, weight, dx, weight.stride(0), *(dropping or (x, 0, 0.0)), **constants,
        DROP=dropping is not None,
    )  # fmt: skip
    return dx


def linear_weight_gradient(
    grad: Tensor, x: Tensor, weight: Tensor, dropping: Dropping | None, products: str = EXACT
) -> tuple[Tensor, Tensor]:
    """Return the gradients of weights and bias, float32 of shapes (N, CO, K) and (N, CO)."""
    dw = torch.empty(weight.shape, dtype=torch.float32, device=x.device)
    db = torch.empty(weight.shape[:2], dtype=torch.float32, device=x.device)
    _, inputs, outputs, constants = _blocks(x, weight, products)
    launch(_linear_weight_gradient, (inputs, len(x), outputs))(
        grad, x, dw, db, *(dropping or (x, 0, 0.0)), **constants, DROP=dropping is not None
    )
    return dw, db


# Convolutions work with channels last, (n, H, W, C); what follows a pooling layer mostly counts
# channels first. The reordering costs nothing here.

NOBODY = tl.constexpr(4)  # Which pixel of a window won, where the ReLU is off: none gets a gradient


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
    """Return ReLU and 2×2 maximum of images (n, H, W, C), and which pixel won, uint8."""
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


# The gradients of a normalisation layer's scale and shift: PyTorch would sum in the activations'
# type, in an order that may depend on how many clients there are.


@triton.jit
def _affine_gradients(
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


def affine_gradients(grad: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of scale and shift, float32 of shape (N, C) each."""
    n, rows, channels, pixels = y.shape
    scale, shift = (
        torch.empty((n, channels), dtype=torch.float32, device=y.device) for _ in range(2)
    )
    launch(_affine_gradients, (triton.cdiv(channels, 16), n))(
        grad, y, scale, shift, R=rows, C=channels, S=pixels, BC=16, BQ=64
    )
    return scale, shift


class DropByKey(torch.autograd.Function):
    """Dropout of stacked clients' numbers, (N, count)."""

    @staticmethod
    def forward(ctx, x, dropping):
        ctx.dropping = dropping
        return drop(x, dropping)

    @staticmethod
    def backward(ctx, grad):
        return drop(grad.contiguous(), ctx.dropping), None


class Linear(torch.autograd.Function):
    """A linear layer after a dropout layer (:func:`~.ops.stacked_linear`)."""

    @staticmethod
    def forward(ctx, x, weight, bias, dropping):
        ctx.save_for_backward(x, weight)
        ctx.how = dropping, precision()
        return linear(x, weight, bias, *ctx.how)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        parts = (grad.contiguous(), x, weight, *ctx.how)
        dx = linear_input_gradient(*parts) if ctx.needs_input_grad[0] else None
        return dx, *linear_weight_gradient(*parts), None


class ReluPool(torch.autograd.Function):
    """A ReLU and 2×2 max-pooling of images (n, H, W, C)."""

    @staticmethod
    def forward(ctx, x, channels_first):
        y, winner = relu_pool(x, channels_first)
        ctx.save_for_backward(winner)
        ctx.form = (*x.shape[1:3], channels_first)
        return y

    @staticmethod
    def backward(ctx, grad):
        (winner,) = ctx.saved_tensors
        return relu_pool_gradient(grad.contiguous(), winner, *ctx.form), None


class Affine(torch.autograd.Function):
    """The scale and shift of a normalisation layer (:func:`~.ops.stacked_affine`)."""

    @staticmethod
    def forward(ctx, y, weight, bias):
        ctx.save_for_backward(y, weight)
        return scaled_and_shifted(y, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        y, weight = ctx.saved_tensors
        scale, shift = affine_gradients(grad.contiguous(), y)
        dy = scaled_and_shifted(grad, weight, None) if ctx.needs_input_grad[0] else None
        return dy, scale, shift if ctx.needs_input_grad[2] else None
