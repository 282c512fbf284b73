"""From the gradient of the logits to those of the parameters."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from carvyfl.learning.scaffold.backward import parameter_gradients


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_those_of_autograd_bit_for_bit(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)).to(dtype)
    x, gradient = torch.rand((7, 1, 8, 8), dtype=dtype), torch.randn((7, 5), dtype=dtype)
    parameters = list(net.parameters())
    expected = torch.autograd.grad(net(x), parameters, gradient)
    found = parameter_gradients(net(x), gradient, parameters)
    assert all(torch.equal(own, other) for own, other in zip(found, expected, strict=True))


def test_an_unused_parameter_has_a_gradient_of_zero() -> None:
    used, unused = torch.ones(3, requires_grad=True), torch.ones(2, requires_grad=True)
    found = parameter_gradients(2 * used, torch.tensor([1.0, 2.0, 3.0]), [used, unused])
    assert [own.tolist() for own in found] == [[2.0, 4.0, 6.0], [0.0, 0.0]]
