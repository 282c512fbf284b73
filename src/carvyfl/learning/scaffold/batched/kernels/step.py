"""The local step in one pass: weights, gradient and correction are each read once."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from carvyfl.learning.scaffold.batched.kernels.launch import launch


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


def step_(weights: Tensor, gradient: Tensor, correction: Tensor, lr: Tensor) -> None:
    """Compute ``local_step_`` for stacked clients, (N, …).

    Every client's own weights and correction are contiguous; the clients may lie apart.
    The learning rate lies on the device, float32 of shape (1,): a recorded step reads a new one.
    """
    gradient = gradient.contiguous()  # autograd hands out transposed ones too
    count = weights[0].numel()
    launch(_step, (triton.cdiv(count, 1024), len(weights)))(
        weights, gradient, correction, weights.stride(0), gradient.stride(0), correction.stride(0),
        count, lr, BLOCK=1024,
    )  # fmt: skip
