"""A linear layer with few outputs: weights are read as they lie, once each way.

A library's batched product wants the weights converted and copied first, which for an
output layer takes longer than the product.

Layouts: inputs (N, B, K) contiguous, weights (N, CO, K) with every client's own contiguous.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from carvyfl.training.kernels.blocks import padded, precision


@triton.jit
def _linear(
    x, w, bias, y, stride, bias_stride, B: tl.constexpr, K: tl.constexpr, CO: tl.constexpr,
    BB: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    b = tl.program_id(0) * BB + tl.arange(0, BB)
    o = tl.arange(0, BN)
    acc = tl.zeros((BB, BN), dtype=tl.float32)
    for i0 in range(0, K, BK):
        i = i0 + tl.arange(0, BK)
        inside = (b < B)[:, None] & (i < K)[None, :]
        xt = tl.load(x + client * (B * K) + b[:, None] * K + i[None, :], mask=inside, other=0.0)
        inside = (i < K)[:, None] & (o < CO)[None, :]
        at = w + client * stride + o[None, :] * K + i[:, None]
        wt = tl.load(at, mask=inside, other=0.0).to(xt.dtype)
        acc = tl.dot(xt, wt, acc, input_precision=PRECISION)
    acc += tl.load(bias + client * bias_stride + o, mask=o < CO, other=0.0)[None, :]
    at = y + client * (B * CO) + b[:, None] * CO + o[None, :]
    tl.store(at, acc.to(y.dtype.element_ty), mask=(b < B)[:, None] & (o < CO)[None, :])


@triton.jit
def _gradients(
    g, x, w, dx, dw, stride, B: tl.constexpr, K: tl.constexpr, CO: tl.constexpr,
    BB: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BK + tl.arange(0, BK)
    o = tl.arange(0, BN)
    weights = (o < CO)[:, None] & (i < K)[None, :]
    at = o[:, None] * K + i[None, :]
    wt = tl.load(w + client * stride + at, mask=weights, other=0.0).to(x.dtype.element_ty)
    acc = tl.zeros((BN, BK), dtype=tl.float32)
    for b0 in range(0, B, BB):
        b = b0 + tl.arange(0, BB)
        inside = (b < B)[:, None] & (o < CO)[None, :]
        gt = tl.load(g + client * (B * CO) + b[:, None] * CO + o[None, :], mask=inside, other=0.0)
        inside = (b < B)[:, None] & (i < K)[None, :]
        rows = client * (B * K) + b[:, None] * K + i[None, :]
        xt = tl.load(x + rows, mask=inside, other=0.0)
        found = tl.dot(gt, wt, input_precision=PRECISION)
        tl.store(dx + rows, found.to(dx.dtype.element_ty), mask=inside)
        acc = tl.dot(tl.trans(gt), xt, acc, input_precision=PRECISION)
    tl.store(dw + client * (CO * K) + at, acc, mask=weights)


def _constants(x: Tensor, weight: Tensor) -> dict[str, int | str]:
    batch, outputs = x.shape[1], weight.shape[1]
    return {
        "B": batch, "K": x.shape[2], "CO": outputs, "BB": min(64, padded(batch)),
        "BN": padded(outputs), "PRECISION": precision(),
    }  # fmt: skip


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return x Wᵀ + b, shape (N, B, CO), in x's type; ``bias`` has shape (N, CO)."""
    n, batch, _ = x.shape
    y = torch.empty((n, batch, weight.shape[1]), dtype=x.dtype, device=x.device)
    sizes = _constants(x, weight)
    _linear[(triton.cdiv(batch, int(sizes["BB"])), n)](
        x, weight, bias, y, weight.stride(0), bias.stride(0), **sizes, BK=128,
        num_warps=4, num_stages=3,
    )  # fmt: skip
    return y


def linear_gradients(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of inputs and weights, the latter float32 of shape (N, CO, K)."""
    n, _, inputs = x.shape
    dx, dw = torch.empty_like(x), torch.empty(weight.shape, dtype=torch.float32, device=x.device)
    _gradients[(triton.cdiv(inputs, 128), n)](
        grad, x, weight, dx, dw, weight.stride(0), **_constants(x, weight), BK=128, num_warps=4
    )
    return dx, dw
