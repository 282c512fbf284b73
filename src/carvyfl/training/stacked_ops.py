"""The operations of stacked clients that PyTorch has no fast version of.

On a CUDA device they run the Triton kernels of :mod:`carvyfl.training.kernels`;
elsewhere plain PyTorch, which computes the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from carvyfl.randomness import halves, keep_mask, keep_threshold


def stacked_conv2d(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int, relu: bool
) -> Tensor:
    """Convolve every client's images with its own kernel.

    Parameters
    ----------
    x
        Shape (N·B, C, H, W), the clients' batches end to end.
    weight, bias
        float32 of shapes (N, O, C, KH, KW) and (N, O).
    stride, padding
        The same in both directions.
    relu
        Whether a ReLU is applied to x first.

    Returns
    -------
    Tensor
        Shape (N·B, O, OH, OW), of x's type.
    """
    n, o, c, kh, kw = weight.shape
    if not x.is_cuda:
        x = x.relu() if relu else x
        batch = len(x) // n
        side = x.reshape(n, batch, *x.shape[1:]).transpose(0, 1).reshape(batch, n * c, *x.shape[2:])
        y = functional.conv2d(
            side,
            weight.reshape(n * o, c, kh, kw),
            None if bias is None else bias.reshape(-1),
            stride,
            padding,
            groups=n,
        )
        return y.reshape(batch, n, o, *y.shape[2:]).transpose(0, 1).reshape(-1, o, *y.shape[2:])
    images = x.permute(0, 2, 3, 1).contiguous().view(n, -1, *x.shape[2:], c)
    taps = weight.permute(0, 3, 4, 2, 1).reshape(n, kh * kw, c, o).contiguous()
    if bias is None:
        bias = torch.zeros((n, o), device=x.device)
    convolve = cast("Callable[..., Tensor]", _Convolution.apply)
    y = convolve(images, taps, bias.contiguous(), (kh, kw, stride, padding, relu))
    return y.flatten(0, 1).permute(0, 3, 1, 2)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, shape: tuple[Any, ...]
    ) -> Tensor:
        from carvyfl.training import kernels

        x = x.relu() if shape[-1] else x
        height, width, channels = x.shape[2:]
        ctx.geometry = kernels.Geometry(height, width, channels, weight.shape[3], *shape)
        low = weight.to(x.dtype)
        ctx.save_for_backward(x, low)
        return kernels.convolve(x, low, bias, ctx.geometry)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from carvyfl.training import kernels

        x, weight = ctx.saved_tensors
        grad = grad.contiguous()
        dx = None
        if ctx.needs_input_grad[0]:
            dx = kernels.input_gradient(grad, weight, x, ctx.geometry)
        return dx, *kernels.weight_gradient(x, grad, ctx.geometry), None


def relu_max_pool(x: Tensor) -> Tensor:
    """Apply a ReLU and 2×2 max-pooling to images (n, C, H, W)."""
    if not x.is_cuda:
        return functional.max_pool2d(x.relu(), 2)
    pool = cast("Callable[[Tensor], Tensor]", _ReluPool.apply)
    return pool(x.permute(0, 2, 3, 1).contiguous()).permute(0, 3, 1, 2)


class _ReluPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        from carvyfl.training import kernels

        y, winner = kernels.relu_pool(x)
        ctx.save_for_backward(winner)
        ctx.size = x.shape[1:3]
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        from carvyfl.training import kernels

        (winner,) = ctx.saved_tensors
        return kernels.relu_pool_gradient(grad.contiguous(), winner, *ctx.size)


def stacked_dropout(x: Tensor, keys: Tensor, drop: float) -> Tensor:
    """Drop, of every client's batch, what the key of that client drops.

    Parameters
    ----------
    x
        Shape (N·B, …).
    keys
        int64 of shape (N,); counters run over a client's own B samples.
    drop
        The share dropped, below 1.
    """
    if x.is_cuda:
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
    from carvyfl.training import kernels

    rows = x.reshape(len(keys), -1).contiguous()
    return kernels.drop(rows, *halves(keys), keep_threshold(drop), 1 / (1 - drop)).view(x.shape)
