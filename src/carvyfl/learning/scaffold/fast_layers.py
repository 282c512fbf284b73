"""Rewriting a model for one CPU core: the same function, computed by quicker calls.

Each rewrite goes by the kind of layer and changes nothing but the order of roundings: a layer that
it does not know, also one derived from a known one, stays as it is.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn
from torch.nn import functional

from carvyfl.learning.models import KeyedDropout, plain_sequences, replace_layer

FEW = 16  # The most inputs to an output pixel, or outputs of a linear layer, that count as few


def with_fast_layers(module: nn.Module) -> nn.Module:
    """Rewrite a module in place with fast layers and return it; its parameters stay the same."""
    sequences = plain_sequences(module)
    for layers in sequences:
        _elementwise_last(layers)
    for name, layer in list(module.named_modules()):
        if type(layer) is nn.Conv2d and is_plain(layer) and layer.weight[0].numel() <= FEW:
            replace_layer(module, name, PatchConv2d(layer))
        elif type(layer) is nn.Flatten and name:
            replace_layer(module, name, LayoutFlatten(layer))
        elif type(layer) is nn.Linear and name and layer.out_features <= FEW:
            replace_layer(module, name, NarrowLinear(layer))
    for layers in sequences:
        for i in range(len(layers) - 1):
            before = layers[i]
            if isinstance(before, PatchConv2d) and type(layers[i + 1]) is nn.ReLU:
                before.relu, layers[i + 1] = True, nn.Identity()
    return module


def is_plain(layer: nn.Conv2d) -> bool:
    """Whether a convolution is one without groups or dilation, padded by a number of zeros."""
    zeros = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return zeros and layer.groups == 1 and set(layer.dilation) == {1}


def _elementwise_last(layers: nn.Sequential) -> None:
    """Move ReLU behind max-pooling, and ReLU and dropout behind flattening.

    max(relu(a), relu(b)) = relu(max(a, b)). Flattened numbers lie in the order in which dropout
    counts them, so that it need not walk two layouts at once.
    """
    moves = ((nn.ReLU, nn.MaxPool2d), (nn.ReLU, nn.Flatten), (KeyedDropout, nn.Flatten))
    for i in reversed(range(len(layers) - 1)):
        for j in range(i, len(layers) - 1):
            if (type(layers[j]), type(layers[j + 1])) not in moves:
                break
            layers[j], layers[j + 1] = layers[j + 1], layers[j]


class LayoutFlatten(nn.Module):
    """``nn.Flatten`` whose gradient comes back in the layout that the images had."""

    def __init__(self, layer: nn.Flatten) -> None:
        super().__init__()
        self.start, self.end = layer.start_dim, layer.end_dim

    def forward(self, x: Tensor) -> Tensor:
        """Merge the axes from ``start`` to ``end``."""
        if x.requires_grad and x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last):
            x.register_hook(  # type: ignore[no-untyped-call]
                lambda grad: grad.contiguous(memory_format=torch.channels_last)
            )
        return x.flatten(self.start, self.end)


class NarrowLinear(nn.Module):
    """``nn.Linear`` with few outputs, as W xᵀ: the product has its long side where MKL likes it."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, …, in) to (n, …, out)."""
        out = torch.mm(self.weight, x.flatten(0, -2).t()).t()
        out = out if self.bias is None else out + self.bias
        return out.view(*x.shape[:-1], -1)


class PatchConv2d(nn.Module):
    """``nn.Conv2d`` of few inputs a pixel, as one matrix product over the patches it sees.

    ``relu``: whether it also applies the ReLU that followed it.
    """

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.stride = layer.stride
        self.relu = False
        down, right = (int(side) for side in layer.padding)
        self.pad = (right, right, down, down)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, C, H, W) to (n, O, OH, OW), channels last."""
        o, c, kh, kw = self.weight.shape
        x = functional.pad(x, self.pad) if any(self.pad) else x
        n, _, h, w = x.shape
        oh, ow = (h - kh) // self.stride[0] + 1, (w - kw) // self.stride[1] + 1
        seen = _patches(h, w, c, (kh, kw), self.stride)
        patches = x.permute(0, 2, 3, 1).flatten(1).index_select(1, seen).view(-1, kh * kw * c)
        # Contiguous, or the gradient of the weights would be multiplied the slow way round.
        weight = self.weight.permute(2, 3, 1, 0).reshape(-1, o).contiguous()
        y = patches @ weight if self.bias is None else torch.addmm(self.bias, patches, weight)
        y = y.relu_() if self.relu else y  # here, where autograd does not yet see a view
        return y.view(n, oh, ow, o).permute(0, 3, 1, 2)


@functools.lru_cache(maxsize=16)
def _patches(h: int, w: int, c: int, kernel: tuple[int, int], stride: tuple[int, int]) -> Tensor:
    """List the pixels (H, W, C) that every output pixel sees: (OH, OW, KH, KW, C), flat."""
    grid = torch.arange(h * w * c).view(h, w, c)
    windows = grid.unfold(0, kernel[0], stride[0]).unfold(1, kernel[1], stride[1])
    return windows.permute(0, 1, 3, 4, 2).reshape(-1)
