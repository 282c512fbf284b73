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

from carvyfl.core.randomness import keep_mask, keep_threshold
from carvyfl.learning.scaffold.arithmetic import local_step_


def by_kernels(x: Tensor) -> bool:
    """Whether the kernels compute for this tensor; tests let Triton's interpreter do it on CPUs."""
    return x.is_cuda


def scaled(inputs: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Prepare the inputs (n, B, …) of n clients for a model, in a type.

    Whole numbers are divided by 255. ``scale``, (n, 2), holds mean and std of each client's inputs.
    """
    x = inputs.float() / 255 if inputs.dtype == torch.uint8 else inputs
    spread = (-1, *[1] * (x.ndim - 1))
    return ((x - scale[:, 0].view(spread)) / scale[:, 1].view(spread)).to(dtype)


def loss_gradient(logits: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Return the gradient of every client's mean cross-entropy in its logits, (n, B, C).

    ``labels`` and ``mask`` have shape (n, B); samples with mask 0 do not count. It is computed in
    float32, and returned in the type of the logits.
    """
    if by_kernels(logits):
        from carvyfl.learning.scaffold.batched.kernels import loss

        return loss.gradient(logits.contiguous(), labels, mask)
    shares = logits.float().softmax(-1) - functional.one_hot(labels, logits.shape[-1])
    counted = torch.where(mask[..., None] > 0, shares / mask.sum(1)[:, None, None], 0.0)
    return counted.to(logits.dtype)


Earlier = tuple[Tensor, Tensor | None, int, int]
"""A convolution and the ReLU after it: weight and bias of every client, stride, padding."""


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

    Parameters
    ----------
    weight, bias
        float32 of shapes (N, O, C, KH, KW) and (N, O).
    relu_before
        Whether x comes from a convolution with ``relu_after``.
    relu_after
        Whether to apply a ReLU; the next operation is then a convolution with
        ``relu_before``, which takes care of the ReLU's gradient.
    pool_first
        Whether to apply a ReLU and 2×2 max-pooling, in one pass with the convolution (not None),
        and whether the result lies in memory with channels first.
    earlier
        A convolution with ``relu_after`` that comes first, in one pass with this one.
    """
    if earlier is not None and not (by_kernels(x) and _in_one_pass(x, earlier[0])):
        x, earlier = stacked_conv2d(x, *earlier, relu_after=True), None
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
        if pool_first is not None:
            return functional.max_pool2d(y.relu(), 2)
        return y.relu() if relu_after else y
    images = x.permute(0, 2, 3, 1).contiguous()
    convolve = cast("Callable[..., Tensor]", _Convolution.apply)
    form = (kh, kw, stride, padding, relu_before, relu_after)
    first: tuple[Any, ...] = (None, None, None)
    if earlier is not None:
        own, offset, *rest = earlier
        first = (own, _bias(offset, own), (*own.shape[3:], *rest, False, True))
    own_images = images.view(n, -1, *images.shape[1:])
    y = convolve(own_images, weight, _bias(bias, weight), form, pool_first, *first).flatten(0, 1)
    return y if pool_first else y.permute(0, 3, 1, 2)


def _bias(bias: Tensor | None, weight: Tensor) -> Tensor:
    """Return the bias of a layer, zero where it has none."""
    return weight.new_zeros(weight.shape[:2]) if bias is None else bias


def _in_one_pass(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernels compute a convolution's gradient together with the next one's."""
    from carvyfl.learning.scaffold.batched.kernels import convolution_gradients

    return not x.requires_grad and weight[0, 0].numel() <= convolution_gradients.MOST_EARLIER


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        form: tuple[Any, ...],
        pool_first: bool | None,
        earlier_weight: Tensor | None,
        earlier_bias: Tensor,
        earlier_form: tuple[Any, ...],
    ) -> Tensor:
        from carvyfl.learning.scaffold.batched.kernels import blocks, convolution

        images, ctx.earlier = x, None
        if earlier_weight is not None:
            outputs, channels = earlier_weight.shape[1:3]
            height, width = x.shape[2:4]
            ctx.earlier = convolution.Geometry(height, width, channels, outputs, *earlier_form)
            taps = convolution.to_taps(earlier_weight, x.dtype)
            if (
                pool_first is not None
                and ctx.earlier.precision == blocks.BY_THREE
                and not any(ctx.needs_input_grad)
            ):
                # To split each number once takes less time than to do so in every product.
                split = convolution.convolve_and_split(images, taps, earlier_bias, ctx.earlier)
                height, width, channels = split[0].shape[2:]
                geometry = convolution.Geometry(height, width, channels, weight.shape[1], *form)
                own = convolution.split_taps(convolution.to_taps(weight, x.dtype))
                return convolution.convolve_and_pool(split, own, bias, geometry, pool_first)[0]
            x = convolution.convolve(images, taps, earlier_bias, ctx.earlier)
        height, width, channels = x.shape[2:]
        ctx.geometry = convolution.Geometry(height, width, channels, weight.shape[1], *form)
        ctx.pool_first = pool_first
        taps = convolution.to_taps(weight, x.dtype)
        if pool_first is None:
            ctx.save_for_backward(images, x, taps)
            return convolution.convolve(x, taps, bias, ctx.geometry)
        y, winner = convolution.convolve_and_pool(x, taps, bias, ctx.geometry, pool_first)
        ctx.save_for_backward(images, x, taps, winner)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from carvyfl.learning.scaffold.batched.kernels import convolution_gradients as gradients
        from carvyfl.learning.scaffold.batched.kernels.pooling import relu_pool_gradient

        images, x, taps, *winner = ctx.saved_tensors
        grad, g = grad.contiguous(), ctx.geometry
        if winner:
            pooled = (winner[0].flatten(0, 1), g.OH, g.OW, ctx.pool_first)
            grad = relu_pool_gradient(grad, *pooled).view(*x.shape[:2], g.OH, g.OW, g.CO)
        own = gradients.weight_gradient(x, grad, g)
        if ctx.earlier is not None:
            parts = (grad, taps, x, g, images, ctx.earlier)
            return None, *own, None, None, *gradients.earlier_weight_gradient(*parts), None
        dx = gradients.input_gradient(grad, taps, x, g) if ctx.needs_input_grad[0] else None
        return dx, *own, *[None] * 5


Dropout = tuple[Tensor, float]
"""A dropout layer's keys, int64 of shape (N,), and the share that is dropped."""


def stacked_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, dropout: Dropout | None = None
) -> Tensor:
    """Apply every client's own linear layer to its rows, (N, B, I) → (N, B, O).

    ``weight`` and ``bias`` are float32 of shapes (N, O, I) and (N, O). ``dropout`` is that of the
    layer before, if it has not been applied yet.
    """
    if not by_kernels(x):
        if dropout is not None:
            x = stacked_dropout(x, *dropout)
        out = torch.bmm(x, weight.to(x.dtype).transpose(1, 2))
        return out if bias is None else out + bias.to(x.dtype)[:, None]
    dropping = None if dropout is None else _dropping(*dropout)
    apply = cast("Callable[..., Tensor]", _Linear.apply)
    return apply(x.contiguous(), weight, _bias(bias, weight), dropping)


def _dropping(keys: Tensor, drop: float) -> tuple[Tensor, int, float]:
    """Return what the kernels need to know of dropout."""
    return keys, keep_threshold(drop), 1 / (1 - drop)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, dropping: Any) -> Tensor:
        from carvyfl.learning.scaffold.batched.kernels import blocks, linear

        ctx.save_for_backward(x, weight)
        ctx.how = dropping, blocks.precision()
        return linear.linear(x, weight, bias, *ctx.how)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from carvyfl.learning.scaffold.batched.kernels import linear

        x, weight = ctx.saved_tensors
        own = (grad.contiguous(), x, weight, *ctx.how)
        dx = linear.input_gradient(*own) if ctx.needs_input_grad[0] else None
        return dx, *linear.weight_gradient(*own), None


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
    return dropout.drop(rows, _dropping(keys, drop)).view(x.shape)


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


def member_sums(values: Tensor, members: Tensor, shares: Tensor) -> Tensor:
    """Add up the rows of every group's members, (n, P) → (G, P).

    The order of a group's additions is that of its own members, whoever trains beside it and
    however a device orders concurrent additions.

    Parameters
    ----------
    members
        The rows of each group's members, int64 of shape (G, most); -1 where there is none.
    shares
        What each row is multiplied by, float32 of shape (n,).
    """
    if by_kernels(values):
        from carvyfl.learning.scaffold.batched.kernels import sums

        return sums.member_sums(values.contiguous(), members, shares)
    total = values.new_zeros((len(members), values.shape[1]))
    for turn in members.T:
        groups = torch.nonzero(turn >= 0)[:, 0]
        rows = turn[groups]
        # A group has one member per turn, so no two rows are added to the same place.
        total.index_add_(0, groups, values[rows] * shares[rows, None])
    return total
