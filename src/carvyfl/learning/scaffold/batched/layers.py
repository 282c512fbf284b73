"""Many clients' copies of a model as one: the same layers, with a leading axis of clients.

Only layers with parameters, and dropout, need to know of the clients. Each is
replaced by a version that holds N sets of parameters; the batches of all clients
are laid end to end, and everything else in a user's module (activations,
pooling, residual additions, its own ``forward``) treats them as one long batch
of N·B samples, which is all that a layer without parameters can tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from carvyfl.core.errors import CarvyError
from carvyfl.learning.models.trainable import KeyedDropout, plain_sequences, trainable_copy
from carvyfl.learning.scaffold.batched.ops import (
    Dropout,
    relu_max_pool,
    stacked_affine,
    stacked_conv2d,
    stacked_dropout,
    stacked_linear,
)


class StackedLinear(nn.Module):
    """``nn.Linear`` for stacked clients: weight (N, out, in), bias (N, out)."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.dropout: StackedDropout | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Map (N·B, …, in) to (N·B, …, out), after the fused dropout layer."""
        rows = x.reshape(len(self.weight), -1, x.shape[-1])
        dropout = None if self.dropout is None else self.dropout.dropping
        y = stacked_linear(rows, self.weight, self.bias, dropout)
        return y.reshape(*x.shape[:-1], -1)


class StackedConv2d(nn.Module):
    """``nn.Conv2d`` for stacked clients: weight (N, O, C, KH, KW), bias (N, O)."""

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__()
        if (
            layer.groups != 1
            or set(layer.dilation) != {1}
            or isinstance(layer.padding, str)
            or layer.padding_mode != "zeros"
            or len(set(layer.stride)) != 1
            or len(set(layer.padding)) != 1
        ):
            raise CarvyError(
                f"the batched engine cannot stack {layer}: only square strides and zero padding, "
                "without groups or dilation; use `engine='loop'`"
            )
        self.weight, self.bias = layer.weight, layer.bias
        self.stride, self.padding = layer.stride[0], int(layer.padding[0])
        self.relu_before = self.relu_after = False
        self.pool_first: bool | None = None
        self.earlier: tuple[StackedConv2d, ...] = ()  # a tuple is no submodule: its names stay
        self.passes_on = False

    def forward(self, x: Tensor) -> Tensor:
        """Map (N·B, C, H, W) to (N·B, O, OH, OW), or to what the fused pooling layer gives.

        A layer that the next convolution computes as well passes its images on.
        """
        if self.passes_on:
            return x
        earlier = [(own.weight, own.bias, own.stride, own.padding) for own in self.earlier]
        return stacked_conv2d(
            x,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            relu_before=self.relu_before,
            relu_after=self.relu_after,
            pool_first=self.pool_first,
            earlier=earlier[0] if earlier else None,
        )


class StackedNorm(nn.Module):
    """``nn.GroupNorm`` or ``nn.LayerNorm`` for stacked clients: per-client scale and shift."""

    def __init__(self, layer: nn.GroupNorm | nn.LayerNorm) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.eps = layer.eps
        self.groups = layer.num_groups if isinstance(layer, nn.GroupNorm) else None
        self.shape = layer.normalized_shape if isinstance(layer, nn.LayerNorm) else ()

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (N·B, …) and apply each client's own scale and shift."""
        if self.groups is not None:
            y = functional.group_norm(x, self.groups, eps=self.eps)
        else:
            y = functional.layer_norm(x, self.shape, eps=self.eps)
        if self.weight is None:
            return y
        parameters = self.weight.flatten(1)
        pixels = y[0, 0].numel() if self.groups is not None else 1
        values = y.reshape(len(parameters), -1, parameters.shape[1], pixels)
        bias = None if self.bias is None else self.bias.flatten(1)
        return stacked_affine(values, parameters, bias).view(x.shape)


class StackedDropout(nn.Module):
    """``KeyedDropout`` for stacked clients, one key each: that of this layer."""

    key: Tensor

    def __init__(self, layer: KeyedDropout) -> None:
        super().__init__()
        self.drop, self.layer = layer.drop, layer.layer
        self.register_buffer("key", torch.zeros(1, dtype=torch.int64))

    @property
    def dropping(self) -> Dropout | None:
        """The keys of this layer, (N,), and its share; None where nothing is dropped."""
        return (self.key, self.drop) if self.training and self.drop else None

    def forward(self, x: Tensor) -> Tensor:
        """Drop what each client would drop alone: counters run over a client's own batch."""
        dropping = self.dropping
        return x if dropping is None else stacked_dropout(x, *dropping)


class ReluMaxPool(nn.Module):
    """A ReLU and the 2×2 max-pooling after it, in one pass."""

    def __init__(self, channels_first: bool) -> None:
        super().__init__()
        self.channels_first = channels_first

    def forward(self, x: Tensor) -> Tensor:
        """Map (N·B, C, H, W) to (N·B, C, H/2, W/2)."""
        return relu_max_pool(x, self.channels_first)


STACKERS: dict[type[nn.Module], Callable[[Any], nn.Module]] = {
    nn.Linear: StackedLinear,
    nn.Conv2d: StackedConv2d,
    nn.GroupNorm: StackedNorm,
    nn.LayerNorm: StackedNorm,
    KeyedDropout: StackedDropout,
}
"""Layers that must know of the clients, and what replaces them: a new layer is one line."""


def stacked(module: nn.Module) -> nn.Module:
    """Return a copy of a checked module whose parameters take a leading axis of clients."""
    clone = trainable_copy(module)
    if type(clone) in STACKERS:
        return STACKERS[type(clone)](clone)
    places = Counter(id(layer) for _, layer in clone.named_modules(remove_duplicate=False))
    for name, layer in list(clone.named_modules()):
        if places[id(layer)] > 1 and list(layer.parameters(recurse=False)):
            raise CarvyError(
                f"the batched engine cannot stack layer '{name}', which the model has in "
                f"{places[id(layer)]} places; use `engine='loop'`"
            )
        if type(layer) in STACKERS:
            parent, _, child = name.rpartition(".")
            setattr(clone.get_submodule(parent), child, STACKERS[type(layer)](layer))
        elif list(layer.parameters(recurse=False)):
            raise CarvyError(
                f"the batched engine cannot stack layer '{name or type(layer).__name__}' "
                f"({type(layer).__name__}); use `engine='loop'`"
            )
    for layers in plain_sequences(clone):
        _fuse(layers)
    return clone


def _fuse(layers: nn.Sequential) -> None:
    """Let a layer compute what stands before or after it: a ReLU, max-pooling, dropout.

    A ReLU is computed by the convolutions around it, or by the pooling layer after it; that by the
    convolution before it; dropout by the linear layer after it. The first convolution is computed
    by the second one, so that the gradient of what is between them, the largest array of a step,
    need not be written.
    """
    for i in range(len(layers) - 1):
        before, own, after = layers[i - 1] if i else None, layers[i], layers[i + 1]
        follower = layers[i + 2] if i + 2 < len(layers) else None
        if type(own) is nn.ReLU and type(after) is nn.MaxPool2d and _halves(after):
            first = not isinstance(follower, StackedConv2d)
            layers[i] = layers[i + 1] = nn.Identity()
            if isinstance(before, StackedConv2d):
                before.pool_first = first
            else:
                layers[i + 1] = ReluMaxPool(first)
        elif type(own) is nn.ReLU and isinstance(after, StackedConv2d):
            if isinstance(before, StackedConv2d):
                before.relu_after = after.relu_before = True
                layers[i] = nn.Identity()
                if i == 1:
                    before.passes_on, after.earlier = True, (before,)
        elif isinstance(own, StackedDropout):
            flat = type(after) is nn.Flatten and (after.start_dim, after.end_dim) == (1, -1)
            linear = follower if flat else after
            if isinstance(linear, StackedLinear):
                linear.dropout, layers[i] = own, nn.Identity()


def _halves(pool: nn.MaxPool2d) -> bool:
    """Whether a pooling layer is the plain 2×2 one."""

    def both(sides: int | Sequence[int]) -> tuple[int, ...]:
        return (sides, sides) if isinstance(sides, int) else tuple(sides)

    plain = not pool.ceil_mode and not pool.return_indices
    sizes = (pool.kernel_size, pool.stride, pool.padding, pool.dilation)
    return plain and [both(size) for size in sizes] == [(2, 2), (2, 2), (0, 0), (1, 1)]
