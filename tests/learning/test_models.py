"""Which modules may be trained, and what the others are told."""

from __future__ import annotations

import ast
import dataclasses
import functools
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from carvyfl.core.errors import CarvyError
from carvyfl.core.fingerprint import describe, fingerprint
from carvyfl.learning.models import MODELS, build_model, check_model, parameter_gradients

EXAMPLE = torch.rand(2, 8)


def linear() -> nn.Linear:
    return nn.Linear(8, 4)


class OwnDropout(nn.Module):
    """Draws from the global generator, as ``functional.dropout`` does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = linear()

    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(self.layer(x), 0.5)


def frozen() -> nn.Module:
    layers = nn.Sequential(linear(), nn.Linear(4, 4))
    layers[0].requires_grad_(False)
    return layers


def hooked(kind: str) -> nn.Module:
    layers = nn.Sequential(linear(), nn.Linear(4, 4))
    getattr(layers[1], f"register_{kind}_hook")(lambda *_: None)
    return layers


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(linear(), nn.BatchNorm1d(4)), "buffers.*use GroupNorm or LayerNorm"),
        (nn.Flatten(), "no parameters"),
        (linear().double(), r"call \.float\(\)"),
        (frozen(), "frozen parameters"),
        (nn.Sequential(linear(), nn.RReLU()), "layer '1' draws its own randomness"),
        (nn.Sequential(linear(), nn.AlphaDropout()), "layer '1' draws its own randomness"),
        (nn.Dropout(), "no parameters"),
        (OwnDropout(), "random numbers of its own"),
        (nn.Linear(9, 4), r"inputs of shape \(2, 8\)"),
        *(
            (hooked(kind), "layer '1' has hooks")
            for kind in ("forward", "forward_pre", "full_backward", "full_backward_pre")
        ),
        (nn.Linear(8, 5), r"logits of shape \(2, 4\) for 4 classes, but gave \(2, 5\)"),
    ],
)
def test_what_cannot_be_trained_soundly_is_refused(module: nn.Module, message: str) -> None:
    before = torch.get_rng_state()
    with pytest.raises(CarvyError, match=message):
        check_model(module, EXAMPLE, 4)
    assert torch.equal(torch.get_rng_state(), before)


LEAST = {"compact-cnn": "6×6", "resnet": "8×8"}
ADD_AXIS, MOVE_AXIS = "x[:, None]", "np.moveaxis(x, -1, 1)"
OTHER_MODEL = "use the model 'mlp'"


@pytest.mark.parametrize("name", LEAST)
@pytest.mark.parametrize(
    ("shape", "advice"),
    [
        ((28, 28), ADD_AXIS),
        ((24, 32, 3), MOVE_AXIS),
        ((28, 28, 1), MOVE_AXIS),
        ((3, 5, 5), OTHER_MODEL),
        ((3, 3), OTHER_MODEL),
        ((8,), OTHER_MODEL),
        ((2, 1, 28, 28), OTHER_MODEL),
    ],
)
def test_models_of_images_say_how_images_lie(
    name: str, shape: tuple[int, ...], advice: str
) -> None:
    with pytest.raises(CarvyError) as caught:
        build_model(name, shape, 4, seed=0)
    message = str(caught.value)
    assert f"needs images (channels, height, width) of at least {LEAST[name]}" in message
    assert f"not inputs of shape {shape}; " in message
    assert [a for a in (ADD_AXIS, MOVE_AXIS, OTHER_MODEL) if a in message] == [advice]
    if advice != OTHER_MODEL:
        x = np.zeros((2, *shape), np.float32)
        followed = torch.from_numpy(eval(advice, {"np": np, "x": x}))
        check_model(build_model(name, tuple(followed.shape[1:]), 4, seed=0), followed, 4)


@pytest.mark.parametrize("name", MODELS)
def test_built_in_models_are_accepted(name: str) -> None:
    check_model(build_model(name, (3, 16, 16), 4, seed=0), torch.rand(2, 3, 16, 16), 4)


class Configured(nn.Module):
    """Computes something else for every ``how``, with the same layers and the same printed form."""

    def __init__(self, how: object) -> None:
        super().__init__()
        self.layer = linear()
        if isinstance(how, Tensor):
            self.register_buffer("how", how)
        else:
            self.how = how

    def forward(self, x: Tensor) -> Tensor:
        how = self.how
        return how(self.layer(x)) if callable(how) else self.layer(x) * how


def scaled_by(factor: float) -> Callable[[Tensor], Tensor]:
    return lambda x: factor * x


class Scale(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    size: int


class Loop:
    """Refers to itself, as an object may."""

    def __init__(self, size: int) -> None:
        self.size, self.itself = size, self

    def times(self, x: Tensor) -> Tensor:
        return self.size * x


def configured() -> list[nn.Module]:
    leaky = functional.leaky_relu
    third = torch.tensor(1 / 3, dtype=torch.float64)
    hows: list[object] = [
        *(torch.relu, torch.tanh, functional.max_pool2d, functional.adaptive_max_pool2d),
        *(1, 0.5, Path("a"), range(2), range(2, 4), {"b", "a", "c"}, [1, {"a": (2, None)}]),
        *(scaled_by(3), scaled_by(4), Loop(1).times, Loop(2).times, (1.5).__mul__, (2.5).__mul__),
        *(functools.partial(leaky, negative_slope=slope) for slope in (0.1, 0.2)),
        *(torch.arange(4.0), torch.ones(4), np.arange(4), np.array([None, "a"], object)),
        *(third, third + 1e-12, np.array(["2026-01-01"], "datetime64[D]"), np.dtype("int8")),
        *(torch.tensor(0.5, dtype=kind) for kind in (torch.float64, torch.float32, torch.bfloat16)),
        *(Loop(2), Loop(3), Slotted(1), Slotted(2), logging.getLogger("test"), np),
        *([nn.Sequential(Scale(2))], [nn.Sequential(Scale(3))], torch.channels_last),
        *(lambda x: x.cos(), lambda x: x.sin()),
        *(lambda x: x if x.ndim in {1, 2, 3} else -x, eval("lambda x: x", {})),
    ]
    return [Configured(how) for how in hows]


@pytest.mark.slow
def test_fingerprints_tell_models_apart_and_are_the_same_in_another_process():
    """Sets have another order there, and objects other addresses."""
    code = (
        f"from {__name__} import *\n"
        "print([fingerprint(m) for m in (*configured(), nn.LSTM(2, 2), nn.GRU(2, 2))])"
    )
    here = [fingerprint(m) for m in (*configured(), nn.LSTM(2, 2), nn.GRU(2, 2))]
    assert len(set(here)) == len(here)
    there = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONHASHSEED": "17"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ast.literal_eval(there.stdout) == here


def test_what_cannot_be_described_is_never_taken_for_another():
    """Objects that are gone leave their identity to others."""
    nothing: tuple[int, ...] = ()
    assert len({fingerprint(Configured(item for item in nothing)) for _ in range(50)}) == 50
    locked = Configured(threading.Lock())
    assert fingerprint(locked) == fingerprint(locked)
    assert fingerprint(locked) != fingerprint(Configured(threading.Lock()))


def test_objects_that_all_know_each_other_are_described_once():
    crowd: list[list[object]] = [[] for _ in range(200)]
    for member in crowd:
        member.extend(crowd)
    assert describe(crowd).count("<") == 200 * 200
    late: int
    assert describe(lambda: late)  # captured, and not there yet
    late = 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_those_of_autograd_bit_for_bit(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)).to(dtype)
    x, gradient = torch.rand((7, 1, 8, 8), dtype=dtype), torch.randn((7, 5), dtype=dtype)
    parameters = list(net.parameters())
    expected = torch.autograd.grad(net(x), parameters, gradient)
    gradients = parameter_gradients(net(x), gradient, parameters)
    assert all(map(torch.equal, gradients, expected))


def test_an_unused_parameter_has_a_gradient_of_zero() -> None:
    used, unused = torch.ones(3, requires_grad=True), torch.ones(2, requires_grad=True)
    gradients = parameter_gradients(2 * used, torch.tensor([1.0, 2.0, 3.0]), [used, unused])
    assert [part.tolist() for part in gradients] == [[2.0, 4.0, 6.0], [0.0, 0.0]]
