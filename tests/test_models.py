"""Which modules may be trained, and what the others are told."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from carvyfl.errors import CarvyError
from carvyfl.federation.models import MODELS, build_model, check_model

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
