"""The batches of a step: drawn, scaled and converted in one pass.

PyTorch would gather the pictures, and then convert, shift, divide and convert them again, each a
pass of its own that together take as long as the first convolution.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from carvyfl.learning.scaffold.batched.kernels.launch import launch


# One kernel serves any number of samples.
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
    """Return the samples of a step of n clients: inputs (n, wide, …), labels, mask (n, wide).

    ``pool`` holds inputs, labels, start and size, as :class:`~.cohort.Pool` does. The other
    parameters are those of :meth:`~.cohort.Pool.step_batch`.
    """
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
