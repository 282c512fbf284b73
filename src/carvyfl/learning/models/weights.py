"""A model's weights as one flat vector.

Everywhere downstream a model's weights are one flat float32 vector of length P,
the parameters in the module's own order (the paper's vec(·)). Updates, control
variates and checksums then need no names, and the SCAFFOLD arithmetic is the
same for one client, for stacked clients and over a network.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def flat_weights(module: nn.Module) -> Tensor:
    """Return a copy of all parameters as one float32 vector of shape (P,)."""
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()]).clone()


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
    for name, layer in reversed(list(module.named_modules())):
        if isinstance(layer, nn.Linear) and layer.out_features == num_classes:
            prefix = f"{name}." if name else ""
            return where[f"{prefix}weight"], where.get(f"{prefix}bias")
    return None
