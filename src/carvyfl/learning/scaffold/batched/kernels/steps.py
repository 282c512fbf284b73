"""What a round needs beside the layers: batches, the loss's gradient, steps, sums over members."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from carvyfl.learning.scaffold.batched.kernels import launch


# PyTorch would gather the pictures, and then convert, shift, divide and convert them again, each a
# pass of its own that together take as long as the first convolution. One kernel serves any number
# of samples.
@triton.jit(do_not_specialize=["total"])
def _gather(
    inputs, labels, start, size, clients, order, step, scale, x, y, mask, order_stride, total,
    B: tl.constexpr, BATCH: tl.constexpr, SIZE: tl.constexpr, WHOLE: tl.constexpr,
    INVERSE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    client = tl.load(clients + row // B)
    place = tl.load(step) * BATCH + row % B
    position = tl.load(order + row // B * order_stride + place)
    there = position < tl.load(size + client)
    source = tl.load(start + client) + tl.where(there, position, 0)
    source = tl.minimum(source, total - 1)
    tl.store(y + row, tl.load(labels + source))
    tl.store(mask + row, there.to(tl.float32))
    mean = tl.load(scale + row // B * 2)
    std = tl.load(scale + row // B * 2 + 1)
    for first in range(0, SIZE, BLOCK):
        i = first + tl.arange(0, BLOCK)
        value = tl.load(inputs + source * SIZE + i, mask=i < SIZE, other=0.0).to(tl.float32)
        if WHOLE:
            value = value * INVERSE
        value = tl.div_rn(value - mean, std)
        tl.store(x + row * SIZE + i, value.to(x.dtype.element_ty), mask=i < SIZE)


def gather(
    pool: tuple[Tensor, Tensor, Tensor, Tensor],
    clients: Tensor,
    order: Tensor,
    step: Tensor,
    batch_size: int,
    wide: int,
    scale: Tensor,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute :meth:`~.training.Pool.step_batch`; ``pool`` holds inputs, labels, start and size."""
    inputs, labels, start, size = pool
    n, shape = len(clients), (len(clients), wide)
    x = torch.empty((*shape, *inputs.shape[1:]), dtype=dtype, device=inputs.device)
    y = torch.empty(shape, dtype=labels.dtype, device=inputs.device)
    mask = torch.empty(shape, dtype=torch.float32, device=inputs.device)
    numbers = inputs[0].numel()
    # Without fused multiply-adds: one rounding after each operation, as PyTorch has it.
    launch(_gather, (n * wide,))(
        inputs, labels, start, size, clients, order, step, scale, x, y, mask, order.stride(0),
        len(labels), B=wide, BATCH=batch_size, SIZE=numbers, WHOLE=inputs.dtype == torch.uint8,
        INVERSE=1 / 255, BLOCK=min(1024, triton.next_power_of_2(numbers)), num_warps=2,
        enable_fp_fusion=False,
    )  # fmt: skip
    return x, y, mask


@triton.jit
def _loss_gradient(
    logits, labels, mask, out, B: tl.constexpr, C: tl.constexpr, BB: tl.constexpr,
    BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    b = tl.program_id(0) * BR + tl.arange(0, BR)
    c = tl.arange(0, BC)
    every = tl.arange(0, BB)
    count = tl.sum(tl.load(mask + client * B + every, mask=every < B, other=0.0), axis=0)
    there = tl.load(mask + client * B + b, mask=b < B, other=0.0) > 0
    label = tl.load(labels + client * B + b, mask=b < B, other=0)
    inside = (b < B)[:, None] & (c < C)[None, :]
    at = client * (B * C) + b[:, None] * C + c[None, :]
    x = tl.load(logits + at, mask=inside, other=float("-inf")).to(tl.float32)
    x = tl.where((b < B)[:, None], x, 0.0)  # rows of -inf alone would give NaN
    e = tl.exp(x - tl.max(x, axis=1)[:, None])
    share = e / tl.sum(e, axis=1)[:, None]
    share = share - (c[None, :] == label[:, None]).to(tl.float32)
    error = tl.where(there[:, None], share / count, 0.0)
    tl.store(out + at, error.to(out.dtype.element_ty), mask=inside)


def loss_gradient(logits: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Compute :func:`~carvyfl.learning.scaffold.batched.ops.loss_gradient`."""
    n, batch, classes = logits.shape
    out = torch.empty_like(logits)
    block = triton.next_power_of_2(classes)
    rows = max(1, min(triton.next_power_of_2(batch), 4096 // block))
    launch(_loss_gradient, (triton.cdiv(batch, rows), n))(
        logits, labels, mask, out, batch, classes, BB=triton.next_power_of_2(batch), BR=rows,
        BC=block,
    )  # fmt: skip
    return out


@triton.jit
def _step(
    weights, gradient, correction, stride, gradient_stride, correction_stride, count, lr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < count
    at = weights + client * stride + i
    w = tl.load(at, mask=inside, other=0.0)
    rate = tl.load(lr)
    g = tl.load(gradient + client * gradient_stride + i, mask=inside, other=0.0)
    c = tl.load(correction + client * correction_stride + i, mask=inside, other=0.0)
    tl.store(at, w - rate * g - rate * c, mask=inside)


def local_step_(weights: Tensor, gradient: Tensor, correction: Tensor, lr: Tensor) -> None:
    """Compute ``local_step_`` for stacked clients, (N, …), each one's numbers contiguous."""
    gradient = gradient.contiguous()  # autograd hands out transposed ones too
    count = weights[0].numel()
    launch(_step, (triton.cdiv(count, 1024), len(weights)))(
        weights, gradient, correction, weights.stride(0), gradient.stride(0), correction.stride(0),
        count, lr, BLOCK=1024,
    )  # fmt: skip


# One kernel serves groups of any size.
@triton.jit(do_not_specialize=["most"])
def _member_sums(values, members, shares, out, most, count, BLOCK: tl.constexpr):
    group = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for turn in range(most):
        row = tl.load(members + group * most + turn)
        place = tl.maximum(row, 0)  # where nobody is, somebody's row is read and not used
        value = tl.load(values + place * count + i, mask=i < count, other=0.0)
        total = tl.where(row >= 0, total + value * tl.load(shares + place), total)
    tl.store(out + group * count + i, total, mask=i < count)


def member_sums(values: Tensor, members: Tensor, shares: Tensor) -> Tensor:
    """Compute :func:`~carvyfl.learning.scaffold.batched.ops.member_sums`."""
    count, (groups, most) = values.shape[1], members.shape
    out = torch.empty((groups, count), dtype=torch.float32, device=values.device)
    # Without fused multiply-adds: one rounding after each operation, as PyTorch has it.
    launch(_member_sums, (triton.cdiv(count, 1024), groups))(
        values, members, shares, out, most, count, BLOCK=1024, enable_fp_fusion=False
    )
    return out
