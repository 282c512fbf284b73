"""A model's weights as one flat vector.

It is float32 of length P, the parameters in the module's own order (the paper's vec(·)). Updates,
control variates and checksums then need no names, and the SCAFFOLD arithmetic is the same for one
client, for stacked clients and over a network.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

AT_ONCE = 256
"""Inputs in a batch of :func:`output_inputs` on a CPU."""

AT_ONCE_ON_DEVICE = 1024
"""The same on a device, of small inputs: every batch is a dozen pieces of work for Python."""

SMALL = 4096
"""Numbers of a small input at most; of larger ones, a batch might take too much memory."""


def flat_weights(module: nn.Module) -> Tensor:
    """Return a copy of all parameters as one float32 vector of shape (P,)."""
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def num_weights(module: nn.Module) -> int:
    """Return P, the number of weights."""
    return sum(parameter.numel() for parameter in module.parameters())


def set_weights(module: nn.Module, weights: Tensor) -> None:
    """Copy a flat vector of shape (P,) into the module's parameters."""
    with torch.no_grad():
        torch.nn.utils.vector_to_parameters(weights, module.parameters())


def output_slices(module: nn.Module, num_classes: int) -> tuple[slice, slice | None] | None:
    """Find the output layer in the flat vector.

    Returns where the weight (C × features) and the bias (C) of the last ``Linear`` with C outputs
    sit; the bias is None if it has none. None if there is no such layer.
    """
    start, where = 0, {}
    for name, parameter in module.named_parameters():
        where[name] = slice(start, start + parameter.numel())
        start += parameter.numel()
    output = _output_layer(module, num_classes)
    if output is None:
        return None
    prefix = f"{output}." if output else ""
    return where[f"{prefix}weight"], where.get(f"{prefix}bias")


def output_inputs(
    module: nn.Module, num_classes: int, device: str | None = None
) -> Callable[[Tensor], Tensor]:
    """Return the map from prepared inputs to what enters the output layer, dropout off.

    It maps (n, …) to float32 of shape (n, features). The module must have an output layer
    (:func:`output_slices`); what follows it plays no part. The last bits of a product depend on the
    rows beside it, so one call should have the inputs of one client only. They are computed in
    batches of a size that follows from n; on a device n is rounded up to one of few sizes, for
    which kernels are chosen once.
    """
    name = _output_layer(module, num_classes)
    assert name is not None
    clone = copy.deepcopy(module).eval().to(device or "cpu")
    seen: list[Tensor] = []

    def note(layer: nn.Module, entering: tuple[Tensor, ...]) -> None:
        seen.append(entering[0].detach().float().flatten(1))

    clone.get_submodule(name).register_forward_pre_hook(note)

    def features(inputs: Tensor) -> Tensor:
        x, at_once = inputs, AT_ONCE
        if device is not None:
            most = AT_ONCE_ON_DEVICE if inputs[:1].numel() <= SMALL else AT_ONCE
            at_once = min(most, 1 << (len(x) - 1).bit_length())
            x = torch.cat([x.to(device), x.new_zeros(-len(x) % at_once, *x.shape[1:])])
        seen.clear()
        with torch.no_grad():
            for batch in torch.split(x, at_once):
                clone(batch)
        return torch.cat(seen)[: len(inputs)]

    return features


def _output_layer(module: nn.Module, num_classes: int) -> str | None:
    """Return the name of the last ``Linear`` with C outputs."""
    found = [
        name
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear) and layer.out_features == num_classes
    ]
    return found[-1] if found else None
