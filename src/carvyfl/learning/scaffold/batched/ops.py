"""The operations of stacked clients that PyTorch has no fast version of.

On a CUDA device they run the Triton kernels of :mod:`carvyfl.learning.scaffold.batched.kernels`;
elsewhere plain PyTorch, which computes the same up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from carvyfl.core.randomness import halves, keep_mask, keep_threshold
from carvyfl.learning.scaffold.arithmetic import local_step_


def by_kernels(x: Tensor) -> bool:
    """Whether the kernels compute for this tensor; tests let Triton's interpreter do it on CPUs."""
    return x.is_cuda


def stacked_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: int,
    padding: int,
    *,
    relu_before: bool,
    relu_after: bool,
) -> Tensor:
    """Convolve every client's images with its own kernel, (N·B, C, H, W) → (N·B, O, OH, OW).

    Parameters
    ----------
    weight, bias
        float32 of shapes (N, O, C, KH, KW) and (N, O).
    relu_before
        Whether x comes from a convolution with ``relu_after``.
    relu_after
        Whether to apply a ReLU; the next operation is then a convolution with
        ``relu_before``, which takes care of the ReLU's gradient.
    """
    n, o, c, kh, kw = weight.shape
    if not by_kernels(x):
        batch = len(x) // n
        side = x.reshape(n, batch, *x.shape[1:]).transpose(0, 1).reshape(batch, n * c, *x.shape[2:])
        y = functional.conv2d(
            side,
            weight.reshape(n * o, c, kh, kw).to(x.dtype),
            None if bias is None else bias.reshape(-1).to(x.dtype),
            stride,
            padding,
            groups=n,
        )
        y = y.reshape(batch, n, o, *y.shape[2:]).transpose(0, 1).reshape(-1, o, *y.shape[2:])
        return y.relu() if relu_after else y
    images = x.permute(0, 2, 3, 1).contiguous().view(n, -1, *x.shape[2:], c)
    if bias is None:
        bias = torch.zeros((n, o), dtype=torch.float32, device=x.device)
    convolve = cast("Callable[..., Tensor]", _Convolution.apply)
    form = (kh, kw, stride, padding, relu_before, relu_after)
    y = convolve(images, weight, bias.contiguous(), form)
    return y.flatten(0, 1).permute(0, 3, 1, 2)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, form: tuple[Any, ...]) -> Tensor:
        from carvyfl.learning.scaffold.batched.kernels import convolution

        height, width, channels = x.shape[2:]
        ctx.geometry = convolution.Geometry(height, width, channels, weight.shape[1], *form)
        taps = convolution.to_taps(weight, x.dtype)
        ctx.save_for_backward(x, taps)
        return convolution.convolve(x, taps, bias, ctx.geometry)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from carvyfl.learning.scaffold.batched.kernels import convolution

        x, taps = ctx.saved_tensors
        grad = grad.contiguous()
        dx = None
        if ctx.needs_input_grad[0]:
            dx = convolution.input_gradient(grad, taps, x, ctx.geometry)
        return dx, *convolution.weight_gradient(x, grad, ctx.geometry), None


def stacked_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Apply every client's own linear layer to its rows, (N, B, I) → (N, B, O).

    ``weight`` and ``bias`` are float32 of shapes (N, O, I) and (N, O).
    """
    if not by_kernels(x):
        out = torch.bmm(x, weight.to(x.dtype).transpose(1, 2))
        return out if bias is None else out + bias.to(x.dtype)[:, None]
    if bias is None:
        bias = torch.zeros(weight.shape[:2], dtype=torch.float32, device=x.device)
    return cast("Callable[..., Tensor]", _Linear.apply)(x.contiguous(), weight, bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        from carvyfl.learning.scaffold.batched.kernels import linear

        ctx.save_for_backward(x, weight)
        return linear.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from carvyfl.learning.scaffold.batched.kernels import linear

        x, weight = ctx.saved_tensors
        grad = grad.contiguous()
        dx = linear.input_gradient(grad, x, weight) if ctx.needs_input_grad[0] else None
        return dx, *linear.weight_gradient(grad, x, weight)


def stacked_affine(y: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply and shift every client's normalised values by its own parameters.

    ``y`` has shape (N, R, C, S): R samples or rows, C parameters, S pixels; ``weight`` and
    ``bias`` are float32 of shape (N, C).
    """
    if by_kernels(y):
        return cast("Callable[..., Tensor]", _Affine.apply)(y.contiguous(), weight, bias)
    return _scaled_and_shifted(y, weight, bias)


def _scaled_and_shifted(y: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y = y * weight.to(y.dtype)[:, None, :, None]
    return y if bias is None else y + bias.to(y.dtype)[:, None, :, None]


class _Affine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(y, weight)
        return _scaled_and_shifted(y, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from carvyfl.learning.scaffold.batched.kernels import affine

        y, weight = ctx.saved_tensors
        scale, shift = affine.gradients(grad.contiguous(), y)
        dy = _scaled_and_shifted(grad, weight, None) if ctx.needs_input_grad[0] else None
        return dy, scale, shift if ctx.needs_input_grad[2] else None


def relu_max_pool(x: Tensor, channels_first: bool) -> Tensor:
    """Apply a ReLU and 2×2 max-pooling to images (n, C, H, W).

    ``channels_first`` says how the result lies in memory; the other way suits a convolution.
    """
    if not by_kernels(x) or x.ndim != 4:  # PyTorch takes (n, H, W) for one picture of n channels
        return functional.max_pool2d(x.relu(), 2)
    pool = cast("Callable[..., Tensor]", _ReluPool.apply)
    y = pool(x.permute(0, 2, 3, 1).contiguous(), channels_first)
    return y if channels_first else y.permute(0, 3, 1, 2)


class _ReluPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, channels_first: bool) -> Tensor:
        from carvyfl.learning.scaffold.batched.kernels import pooling

        y, winner = pooling.relu_pool(x, channels_first)
        ctx.save_for_backward(winner)
        ctx.form = (*x.shape[1:3], channels_first)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        from carvyfl.learning.scaffold.batched.kernels import pooling

        (winner,) = ctx.saved_tensors
        return pooling.relu_pool_gradient(grad.contiguous(), winner, *ctx.form), None


def stacked_dropout(x: Tensor, keys: Tensor, drop: float) -> Tensor:
    """Drop, of every client's batch, what the key of that client drops.

    ``x`` has shape (N·B, …), ``keys`` is int64 of shape (N,); counters run over a client's own B
    samples.
    """
    if by_kernels(x):
        return cast("Callable[..., Tensor]", _Dropout.apply)(x, keys, drop)
    mask = keep_mask(keys, x.numel() // len(keys), drop)
    return x * (mask.view(x.shape) / (1 - drop)).to(x.dtype)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, keys: Tensor, drop: float) -> Tensor:
        ctx.keys, ctx.drop = keys, drop
        return _dropped(x, keys, drop)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _dropped(grad, ctx.keys, ctx.drop), None, None


def _dropped(x: Tensor, keys: Tensor, drop: float) -> Tensor:
    from carvyfl.learning.scaffold.batched.kernels import dropout

    rows = x.reshape(len(keys), -1).contiguous()
    return dropout.drop(rows, *halves(keys), keep_threshold(drop), 1 / (1 - drop)).view(x.shape)


def stacked_step_(
    weights: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    corrections: Mapping[str, Tensor],
    lr: Tensor,
) -> None:
    """Take one local step of every client in place, parameter by parameter, each (N, …).

    ``lr`` lies on the device, float32 of shape (1,).
    """
    for name, own in weights.items():
        if by_kernels(own):
            from carvyfl.learning.scaffold.batched.kernels import step

            step.step_(own, gradients[name], corrections[name], lr)
        else:
            local_step_(own, gradients[name], corrections[name], float(lr))
