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


def hooked(register: Callable[[nn.Module], object]) -> nn.Module:
    layers = nn.Sequential(linear(), nn.Linear(4, 4))
    register(layers[1])
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
        (nn.Linear(8, 5), r"logits of shape \(2, 4\) for 4 classes, but gave \(2, 5\)"),
    ],
)
def test_what_cannot_be_trained_soundly_is_refused(module: nn.Module, message: str) -> None:
    with pytest.raises(CarvyError, match=message):
        check_model(module, EXAMPLE, 4)


@pytest.mark.parametrize(
    "register",
    [
        lambda layer: layer.register_forward_hook(lambda *_: None),
        lambda layer: layer.register_forward_pre_hook(lambda *_: None),
        lambda layer: layer.register_full_backward_hook(lambda *_: None),
        lambda layer: layer.register_full_backward_pre_hook(lambda *_: None),
    ],
)
def test_hooks_are_refused_since_rewritten_layers_would_lose_them(
    register: Callable[[nn.Module], object],
) -> None:
    with pytest.raises(CarvyError, match="layer '1' has hooks"):
        check_model(hooked(register), EXAMPLE, 4)


def test_a_refusal_leaves_the_global_generator_as_it_was() -> None:
    module, before = OwnDropout(), torch.get_rng_state()
    with pytest.raises(CarvyError):
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


@pytest.mark.parametrize("name", LEAST)
@pytest.mark.parametrize(("shape", "advice"), [((28, 28), ADD_AXIS), ((24, 32, 3), MOVE_AXIS)])
def test_the_advice_on_images_leads_to_an_accepted_shape(
    name: str, shape: tuple[int, ...], advice: str
) -> None:
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


def configured() -> dict[str, nn.Module]:
    hows: dict[str, object] = {
        "relu": torch.relu,
        "tanh": torch.tanh,
        "one": 1,
        "half": 0.5,
        "three times": scaled_by(3),
        "four times": scaled_by(4),
        "leaky": functools.partial(functional.leaky_relu, negative_slope=0.1),
        "leakier": functools.partial(functional.leaky_relu, negative_slope=0.2),
        "buffer": torch.arange(4.0),
        "other buffer": torch.ones(4),
        "array": np.arange(4),
        "list": [1, {"a": (2, None)}],
        "set": {"b", "a", "c"},
        "method": Loop(1).times,
        "other method": Loop(2).times,
        "method of a number": (1.5).__mul__,
        "method of another": (2.5).__mul__,
        "object": Loop(2),
        "larger object": Loop(3),
        "unregistered": [nn.Sequential(Scale(2))],
        "other unregistered": [nn.Sequential(Scale(3))],
        "range": range(2),
        "other range": range(2, 4),
        "slots": Slotted(1),
        "other slots": Slotted(2),
        "path": Path("a"),
        "type": np.dtype("int8"),
        "pool": functional.max_pool2d,
        "adaptive pool": functional.adaptive_max_pool2d,
        **dict(zip(("one lambda", "another"), (lambda x: x.cos(), lambda x: x.sin()), strict=True)),
        "constant set": lambda x: x if x.ndim in {1, 2, 3} else -x,
        "third": torch.tensor(1 / 3, dtype=torch.float64),
        "more": torch.tensor(1 / 3 + 1e-12, dtype=torch.float64),
        "half as double": torch.tensor(0.5, dtype=torch.float64),
        "half as float": torch.tensor(0.5),
        "half as bfloat": torch.tensor(0.5, dtype=torch.bfloat16),
        "times": np.array(["2026-01-01"], "datetime64[D]"),
        "objects": np.array([None, "a"], object),
        "log": logging.getLogger("test"),
        "library": np,
        "evaluated": eval("lambda x: x", {}),
        "layout": torch.channels_last,
    }
    return {name: Configured(how) for name, how in hows.items()}


@pytest.mark.slow
def test_models_that_compute_something_else_have_another_fingerprint():
    found = {name: fingerprint(module) for name, module in configured().items()}
    assert len(set(found.values())) == len(found)
    assert {name: fingerprint(module) for name, module in configured().items()} == found


@pytest.mark.slow
def test_fingerprints_are_the_same_in_another_process():
    """Sets have another order there, and objects other addresses."""
    code = (
        f"from {__name__} import *\n"
        "recurrent = {'lstm': nn.LSTM(2, 2), 'gru': nn.GRU(2, 2)}\n"
        "print({name: fingerprint(m) for name, m in (configured() | recurrent).items()})"
    )
    recurrent = {"lstm": nn.LSTM(2, 2), "gru": nn.GRU(2, 2)}
    here = {name: fingerprint(m) for name, m in (configured() | recurrent).items()}
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONHASHSEED": "17"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ast.literal_eval(found.stdout) == here


def test_what_cannot_be_described_is_never_taken_for_another():
    """Objects that are gone leave their identity to others."""
    nothing: tuple[int, ...] = ()
    found = [fingerprint(Configured(item for item in nothing)) for _ in range(50)]
    assert len(set(found)) == 50
    kept = Configured(threading.Lock())
    assert fingerprint(kept) == fingerprint(kept)
    assert fingerprint(kept) != fingerprint(Configured(threading.Lock()))


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
    found = parameter_gradients(net(x), gradient, parameters)
    assert all(torch.equal(own, other) for own, other in zip(found, expected, strict=True))


def test_an_unused_parameter_has_a_gradient_of_zero() -> None:
    used, unused = torch.ones(3, requires_grad=True), torch.ones(2, requires_grad=True)
    found = parameter_gradients(2 * used, torch.tensor([1.0, 2.0, 3.0]), [used, unused])
    assert [own.tolist() for own in found] == [[2.0, 4.0, 6.0], [0.0, 0.0]]
