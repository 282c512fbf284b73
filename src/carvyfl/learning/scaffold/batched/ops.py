"""The operations of stacked clients that PyTorch has no fast version of.

On a CUDA device they run the Triton kernels of :mod:`carvyfl.learning.scaffold.batched.kernels`,
imported where they are used, since other machines lack Triton; elsewhere plain PyTorch, which
computes the same up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from carvyfl.core.randomness import keep_mask, keep_threshold
from carvyfl.learning.scaffold.arithmetic import local_step_

# A convolution and the ReLU after it: weight and bias of every client, stride, padding
Earlier = tuple[Tensor, Tensor | None, int, int]
# A dropout layer's keys, int64 of shape (N,), and the share that is dropped
Dropout = tuple[Tensor, float]


def by_kernels(x: Tensor) -> bool:
    """Whether the kernels compute for this tensor; tests let Triton's interpreter do it on CPUs."""
    return x.is_cuda


def scaled(inputs: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Prepare inputs (n, B, …); ``scale``, (n, 2), holds mean and std of each client's."""
    x = inputs.float() / 255 if inputs.dtype == torch.uint8 else inputs
    mean, std = scale.view(-1, 2, *[1] * (x.ndim - 1)).unbind(1)
    return ((x - mean) / std).to(dtype)


def loss_gradient(logits: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Return the gradient of every client's mean cross-entropy in its logits, (n, B, C)."""
    if by_kernels(logits):
        from carvyfl.learning.scaffold.batched.kernels import steps

        return steps.loss_gradient(logits.contiguous(), labels, mask)
    shares = logits.float().softmax(-1) - functional.one_hot(labels, logits.shape[-1])
    counted = torch.where(mask[..., None] > 0, shares / mask.sum(1)[:, None, None], 0.0)
    return counted.to(logits.dtype)


def stacked_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: int,
    padding: int,
    *,
    relu_before: bool = False,
    relu_after: bool = False,
    pool_first: bool | None = None,
    earlier: Earlier | None = None,
) -> Tensor:
    """Convolve every client's images with its own kernel, (N·B, C, H, W) → (N·B, O, OH, OW).

    ``weight`` and ``bias`` are float32 of shapes (N, O, C, KH, KW) and (N, O). With ``relu_after``
    a ReLU is applied, and the next operation is a convolution with ``relu_before``, which takes
    care of the ReLU's gradient. With ``pool_first``, not None, ReLU and 2×2 max-pooling are applied
    in the same pass, and it says whether channels lie first. ``earlier`` comes first, in one pass
    with this one.
    """
    if not by_kernels(x):
        x = x if earlier is None else stacked_conv2d(x, *earlier, relu_after=True)
        y = _grouped_conv2d(x, weight, bias, stride, padding)
        if pool_first is not None:
            return functional.max_pool2d(y.relu(), 2)
        return y.relu() if relu_after else y
    from carvyfl.learning.scaffold.batched.kernels.convolution import MOST_EARLIER, Convolution

    if earlier is not None and (x.requires_grad or earlier[0][0, 0].numel() > MOST_EARLIER):
        x, earlier = stacked_conv2d(x, *earlier, relu_after=True), None
    images = x.permute(0, 2, 3, 1).contiguous()
    form = (*weight.shape[3:], stride, padding, relu_before, relu_after)
    first: tuple[Any, ...] = (None, None, None)
    if earlier is not None:
        kernel, offset, *rest = earlier
        first = (kernel, _bias(offset, kernel), (*kernel.shape[3:], *rest, False, True))
    images = images.view(len(weight), -1, *images.shape[1:])
    parts = (images, weight, _bias(bias, weight), form, pool_first, *first)
    out: Tensor = Convolution.apply(*parts).flatten(0, 1)  # type: ignore[no-untyped-call]
    return out if pool_first else out.permute(0, 3, 1, 2)


def _grouped_conv2d(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int
) -> Tensor:
    """Convolve by PyTorch: clients are groups of channels."""
    n, batch = len(weight), len(x) // len(weight)
    side = x.reshape(n, batch, *x.shape[1:]).transpose(0, 1).flatten(1, 2)
    offset = None if bias is None else bias.reshape(-1).to(x.dtype)
    kernel = weight.flatten(0, 1).to(x.dtype)
    y = functional.conv2d(side, kernel, offset, stride, padding, groups=n)
    return y.reshape(batch, n, -1, *y.shape[2:]).transpose(0, 1).flatten(0, 1)


def _bias(bias: Tensor | None, weight: Tensor) -> Tensor:
    return weight.new_zeros(weight.shape[:2]) if bias is None else bias


def stacked_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, dropout: Dropout | None = None
) -> Tensor:
    """Apply every client's own linear layer, (N, B, I) → (N, B, O), after a fused dropout layer."""
    if not by_kernels(x):
        if dropout is not None:
            x = stacked_dropout(x, *dropout)
        out = torch.bmm(x, weight.to(x.dtype).transpose(1, 2))
        return out if bias is None else out + bias.to(x.dtype)[:, None]
    from carvyfl.learning.scaffold.batched.kernels.layers import Linear

    dropping = None if dropout is None else _dropping(*dropout)
    y: Tensor = Linear.apply(x.contiguous(), weight, _bias(bias, weight), dropping)  # type: ignore[no-untyped-call]
    return y


def _dropping(keys: Tensor, drop: float) -> tuple[Tensor, int, float]:
    """Return what the kernels need to know of dropout."""
    return keys, keep_threshold(drop), 1 / (1 - drop)


def stacked_affine(y: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply and shift values (N, R, C, S) by every client's own parameters, (N, C)."""
    if by_kernels(y):
        from carvyfl.learning.scaffold.batched.kernels.layers import Affine

        shifted: Tensor = Affine.apply(y.contiguous(), weight, bias)  # type: ignore[no-untyped-call]
        return shifted
    return scaled_and_shifted(y, weight, bias)


def scaled_and_shifted(y: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute :func:`stacked_affine` as PyTorch does."""
    y = y * weight.to(y.dtype)[:, None, :, None]
    return y if bias is None else y + bias.to(y.dtype)[:, None, :, None]


def relu_max_pool(x: Tensor, channels_first: bool) -> Tensor:
    """Apply a ReLU and 2×2 max-pooling to (n, C, H, W); the result may lie channels first."""
    if not by_kernels(x) or x.ndim != 4:  # PyTorch takes (n, H, W) for one picture of n channels
        return functional.max_pool2d(x.relu(), 2)
    from carvyfl.learning.scaffold.batched.kernels.layers import ReluPool

    y: Tensor = ReluPool.apply(x.permute(0, 2, 3, 1).contiguous(), channels_first)  # type: ignore[no-untyped-call]
    return y if channels_first else y.permute(0, 3, 1, 2)


def stacked_dropout(x: Tensor, keys: Tensor, drop: float) -> Tensor:
    """Drop, of every client's batch in x, (N·B, …), what its key drops; ``keys`` are (N,)."""
    if by_kernels(x):
        from carvyfl.learning.scaffold.batched.kernels.layers import DropByKey

        dropping = _dropping(keys, drop)
        rows: Tensor = DropByKey.apply(x.reshape(len(keys), -1).contiguous(), dropping)  # type: ignore[no-untyped-call]
        return rows.view(x.shape)
    mask = keep_mask(keys, x.numel() // len(keys), drop)
    return x * (mask.view(x.shape) / (1 - drop)).to(x.dtype)


def stacked_step_(
    weights: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    corrections: Mapping[str, Tensor],
    lr: Tensor,
) -> None:
    """Take one local step of every client in place, by parameter, (N, …); ``lr`` has shape (1,)."""
    for name, values in weights.items():
        if by_kernels(values):
            from carvyfl.learning.scaffold.batched.kernels import steps

            steps.local_step_(values, gradients[name], corrections[name], lr)
        else:
            local_step_(values, gradients[name], corrections[name], float(lr))


def member_sums(values: Tensor, members: Tensor, shares: Tensor) -> Tensor:
    """Add up the rows of every group's members, (n, P) → (G, P), in the order of its own members.

    So no sum depends on who trains beside it, or on how a device orders additions. ``members``,
    int64 of shape (G, most), has each group's rows, -1 where there is none; ``shares``, (n,),
    multiply rows.
    """
    if by_kernels(values):
        from carvyfl.learning.scaffold.batched.kernels import steps

        return steps.member_sums(values.contiguous(), members, shares)
    total = values.new_zeros((len(members), values.shape[1]))
    for turn in members.T:  # a group has one member per turn: no two rows for the same place
        groups = torch.nonzero(turn >= 0)[:, 0]
        rows = turn[groups]
        total.index_add_(0, groups, values[rows] * shares[rows, None])
    return total
