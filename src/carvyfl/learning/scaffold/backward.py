"""From the gradient of the logits to those of the parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor


def parameter_gradients(
    logits: Tensor, gradient: Tensor, parameters: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Return the gradients of parameters, where ``gradient`` is that of the logits.

    A parameter that the logits do not depend on has a gradient of zero.
    """
    apply = cast("Callable[..., Tensor]", _Loss.apply)
    return torch.autograd.grad(apply(logits, gradient), parameters, materialize_grads=True)


class _Loss(torch.autograd.Function):
    """A loss without a value, whose gradient in the logits is known.

    Given that gradient itself, ``torch.autograd.grad`` imports SymPy first, in every process: a
    third of a second to compare two shapes.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return logits.new_zeros(())

    @staticmethod
    def backward(ctx: Any, one: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient, None
