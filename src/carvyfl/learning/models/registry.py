"""The built-in models by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from carvyfl.core.checks import returned
from carvyfl.core.errors import CarvyError
from carvyfl.core.randomness import derive
from carvyfl.core.registry import Registry

Shape = tuple[int, ...]


def compact_cnn(shape: Shape, num_classes: int) -> nn.Module:
    """Build the paper's compact CNN: two 3×3 convolutions, max-pool, dropout, linear.

    For 1×28×28 inputs and 10 classes it has P = 110,986 weights.
    """
    _check_images("compact-cnn", shape, 6)
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), num_classes),
    )


def _check_images(model: str, shape: Shape, least: int) -> None:
    """Refuse inputs that are not images of at least ``least`` × ``least``, and say what to do."""
    if len(shape) == 3 and min(shape[1:]) >= least:
        return
    if len(shape) == 2 and min(shape) >= least:
        advice = "add the channel axis, as x[:, None] does"
    elif len(shape) == 3 and shape[2] in (1, 3, 4) and min(shape[:2]) >= least:
        advice = "move the channels to the front, as np.moveaxis(x, -1, 1) does"
    else:
        advice = "use the model 'mlp' or one of your own"
    raise CarvyError(
        f"{model} needs images (channels, height, width) of at least {least}×{least}, "
        f"not inputs of shape {shape}; {advice}"
    )


def mlp(shape: Shape, num_classes: int) -> nn.Module:
    """Build one hidden layer of 128: far cheaper than the CNN, for quick runs."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(shape), 128), nn.ReLU(), nn.Linear(128, num_classes)
    )


class _Residual(nn.Module):
    """Two 3×3 convolutions with GroupNorm around a shortcut; the first may halve the image."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride, 1, bias=False),
            nn.GroupNorm(8, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False),
            nn.GroupNorm(8, width),
        )
        alike = stride == 1 and channels == width
        self.shortcut = (
            nn.Identity() if alike else nn.Conv2d(channels, width, 1, stride, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet(shape: Shape, num_classes: int) -> nn.Module:
    """Build a small ResNet of three stages with GroupNorm, for colour images such as 3×32×32."""
    _check_images("resnet", shape, 8)
    return nn.Sequential(
        nn.Conv2d(shape[0], 16, 3, padding=1, bias=False),
        nn.GroupNorm(8, 16),
        nn.ReLU(),
        _Residual(16, 16, 1),
        _Residual(16, 32, 2),
        _Residual(32, 64, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, num_classes),
    )


@dataclass(frozen=True)
class Architecture:
    """A model that can be named; ``build``: (shape of one input, number of classes) → module."""

    name: str
    help: str
    build: Callable[[Shape, int], nn.Module]


MODELS: Registry[Architecture] = Registry(
    "model",
    "carvyfl.models",
    [
        Architecture("compact-cnn", "the paper's: two convolutions, 110,986 weights", compact_cnn),
        Architecture("mlp", "one hidden layer of 128: quick", mlp),
        Architecture("resnet", "a small ResNet with GroupNorm, for colour images", resnet),
    ],
)
"""Every registered model."""


def build_model(name: str, shape: Shape, num_classes: int, seed: int) -> nn.Module:
    """Build a registered model with initial weights w⁰ that depend on the seed alone."""
    architecture = MODELS.pick(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "initial weights"))
        built = architecture.build(shape, num_classes)
    return returned(built, nn.Module, f"model '{name}'")
