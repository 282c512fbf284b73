"""Sums over the members of every group, each in the order of its own members."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from carvyfl.learning.scaffold.batched.kernels.launch import launch


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
