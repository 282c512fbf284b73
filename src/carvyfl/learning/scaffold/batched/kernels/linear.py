"""A linear layer: weights are read as they lie.

A library's batched product wants the weights converted and copied first, which for an
output layer takes longer than the product; and how it adds up depends on how many
clients there are. The convolution with a 1×1 kernel would compute the same, but wants its
weights reordered first.

A dropout layer before it is computed on the way: inputs are dropped as they are read, and their
gradient as it is written.

Layouts: inputs (N, B, K) contiguous, weights (N, CO, K) with every client's own contiguous.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from carvyfl.learning.scaffold.batched.kernels.blocks import EXACT, tile
from carvyfl.learning.scaffold.batched.kernels.dropout import Dropping, dropped
from carvyfl.learning.scaffold.batched.kernels.launch import launch


@triton.jit
def _forward(
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
def _input_gradient(
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
def _weight_gradient(
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


def _dropping(dropping: Dropping | None, like: Tensor) -> Dropping:
    """Return the kernels' parameters of dropout; without it they are not read."""
    return dropping or (like, 0, 0.0)


def linear(
    x: Tensor, weight: Tensor, bias: Tensor, dropping: Dropping | None, products: str = EXACT
) -> Tensor:
    """Return x Wᵀ + b, shape (N, B, CO), in x's type; ``bias`` has shape (N, CO).

    ``products`` says how float32 is multiplied.
    """
    n, batch, inputs = x.shape
    outputs = weight.shape[1]
    # Few clients do not fill a GPU: long rows are shared out over a number of programs that depends
    # on the layer alone, whose sums are added in order.
    splits = min(8, triton.cdiv(inputs, 1024))
    parts = torch.empty((n, splits, batch, outputs), dtype=torch.float32, device=x.device)
    samples, _, blocks, constants = _blocks(x, weight, products)
    launch(_forward, (samples * splits, n, blocks))(
        x, weight, parts, weight.stride(0), *_dropping(dropping, x), **constants, SPLITS=splits,
        DROP=dropping is not None,
    )  # fmt: skip
    y = torch.empty((n, batch, outputs), dtype=x.dtype, device=x.device)
    block = min(1024, triton.next_power_of_2(batch * outputs))
    launch(_add_parts, (triton.cdiv(batch * outputs, block), n))(
        parts, bias, y, bias.stride(0), batch, outputs, splits, BLOCK=block
    )
    return y


def input_gradient(
    grad: Tensor, x: Tensor, weight: Tensor, dropping: Dropping | None, products: str = EXACT
) -> Tensor:
    """Return the gradient of the inputs, shape (N, B, K)."""
    dx = torch.empty_like(x)
    samples, inputs, _, constants = _blocks(x, weight, products)
    launch(_input_gradient, (inputs, len(x), samples))(
        grad, weight, dx, weight.stride(0), *_dropping(dropping, x), **constants,
        DROP=dropping is not None,
    )  # fmt: skip
    return dx


def weight_gradient(
    grad: Tensor, x: Tensor, weight: Tensor, dropping: Dropping | None, products: str = EXACT
) -> tuple[Tensor, Tensor]:
    """Return the gradients of weights and bias, float32 of shapes (N, CO, K) and (N, CO)."""
    dw = torch.empty(weight.shape, dtype=torch.float32, device=x.device)
    db = torch.empty(weight.shape[:2], dtype=torch.float32, device=x.device)
    _, inputs, outputs, constants = _blocks(x, weight, products)
    launch(_weight_gradient, (inputs, len(x), outputs))(
        grad, x, dw, db, *_dropping(dropping, x), **constants, DROP=dropping is not None
    )
    return dw, db
