"""The GPU kernels against PyTorch's own operations.

On a GPU they run compiled; elsewhere in Triton's interpreter, where Triton is installed.
"""

from __future__ import annotations

import os

import pytest
import torch
from torch.nn import functional

from carvyfl.randomness import derive, halves, keep_mask, keep_threshold

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
pytest.importorskip("triton", reason="Triton comes with CUDA builds of torch")

from carvyfl.training import kernels  # noqa: E402 - the interpreter is chosen at import


def close(found, expected):
    error = (found.double() - expected.double()).norm() / expected.double().norm()
    assert float(error) < 1e-5


@pytest.mark.parametrize(
    "sizes",
    [
        (7, 7, 32, 40, 3, 3, 1, 0, True),
        (8, 8, 1, 32, 3, 3, 1, 0, False),
        (8, 6, 3, 16, 3, 3, 1, 1, True),
        (8, 8, 16, 32, 3, 3, 2, 1, True),
        (8, 8, 16, 32, 1, 1, 2, 0, False),
        (9, 7, 5, 24, 5, 5, 2, 2, True),
    ],
)
def test_convolution_and_its_gradients(sizes):
    torch.manual_seed(0)
    g, n, batch = kernels.Geometry(*sizes), 2, 3
    before = torch.randn(n, batch, g.H, g.W, g.C, device=DEVICE, requires_grad=True)
    images = before.relu() if g.relu else before * 1
    weights = torch.randn(n, g.KH * g.KW, g.C, g.CO, device=DEVICE, requires_grad=True)
    bias = torch.randn(n, g.CO, device=DEVICE, requires_grad=True)
    side = images.permute(1, 0, 4, 2, 3).reshape(batch, n * g.C, g.H, g.W)
    filters = weights.view(n, g.KH, g.KW, g.C, g.CO).permute(0, 4, 3, 1, 2)
    y = functional.conv2d(
        side, filters.reshape(n * g.CO, g.C, g.KH, g.KW), bias.flatten(), g.stride, g.padding, 1, n
    )
    y = y.view(batch, n, g.CO, g.OH, g.OW).permute(1, 0, 3, 4, 2)
    grad = torch.randn(y.shape, device=DEVICE)
    dx, dw, db = torch.autograd.grad(y, (before, weights, bias), grad)
    x, w, b = images.detach(), weights.detach(), bias.detach()
    close(kernels.convolve(x, w, b, g), y.detach())
    close(kernels.input_gradient(grad, w, x, g), dx)
    found_dw, found_db = kernels.weight_gradient(x, grad, g)
    close(found_dw, dw)
    close(found_db, db)


def test_relu_and_pooling():
    torch.manual_seed(0)
    x = torch.randn(4, 7, 9, 5, device=DEVICE, requires_grad=True)
    y = functional.max_pool2d(x.permute(0, 3, 1, 2).relu(), 2).permute(0, 2, 3, 1)
    grad = torch.randn(y.shape, device=DEVICE)
    (dx,) = torch.autograd.grad(y, x, grad)
    found, winner = kernels.relu_pool(x.detach())
    assert torch.equal(found, y.detach())
    assert torch.equal(kernels.relu_pool_gradient(grad, winner, 7, 9), dx)


def test_dropout_drops_what_the_cpu_drops():
    keys = torch.tensor([derive(seed, "dropout") for seed in range(3)], device=DEVICE)
    x = torch.randn(3, 2500, device=DEVICE)
    mask = keep_mask(keys, 2500, 0.3)
    found = kernels.drop(x, *halves(keys), keep_threshold(0.3), 1 / 0.7)
    assert torch.equal(found != 0, mask)
    torch.testing.assert_close(found, x * mask / 0.7)
