"""Feature maps: what is accepted, what is refused, and that nothing is computed twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from carvyfl.core.errors import CarvyError
from carvyfl.core.fingerprint import fingerprint
from carvyfl.core.progress import quiet
from carvyfl.learning.one_shot import features as features_module
from carvyfl.learning.one_shot.features import KnownFeatures, features_for, projected_to
from carvyfl.learning.one_shot.training import one_shot_model

SHAPE = (1, 12, 12)


def pictures(seed: int, number: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, (number, *SHAPE), dtype=np.uint8)


class Frozen(nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(), nn.Flatten()
        )

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layers(x)
        return result


def batch_dependent(x: Tensor) -> Tensor:
    flat = x.flatten(1)
    return flat - flat.mean(dim=0)


def random_features(x: Tensor) -> Tensor:
    return torch.rand(len(x), 3)


@pytest.mark.parametrize(
    ("features", "shape", "words"),
    [
        ("scatering", SHAPE, "did you mean 'scattering'"),
        ("scattering", (20,), "needs images"),
        (3, SHAPE, "must be a name, a torch module or a function"),
        (random_features, SHAPE, "a second time"),
        (batch_dependent, SHAPE, "in a batch than alone"),
        (lambda x: x, SHAPE, "one vector per input"),
        (lambda x: x.flatten(1)[:1], SHAPE, "one vector per input"),
        (lambda x: "no tensor", SHAPE, "one vector per input"),
        (lambda x: x.flatten(1) / 0, SHAPE, "NaN"),
        (lambda x: x.repeat(1, 1, 10, 10).flatten(1), SHAPE, "can be used"),
        (nn.Linear(7, 3), SHAPE, "does not accept inputs of shape"),
    ],
)
def test_a_map_that_cannot_be_used_is_refused_in_one_line(
    features: Any, shape: tuple[int, ...], words: str
) -> None:
    with pytest.raises(CarvyError, match=words) as refused:
        features_for(features, shape)
    assert "\n" not in str(refused.value)


def test_a_frozen_network_is_used_in_evaluation_mode() -> None:
    network = Frozen().train()
    features = features_for(network, SHAPE)
    x = torch.rand(5, *SHAPE)
    with torch.no_grad():
        wanted = network.eval()(x)
    assert torch.equal(features(x), wanted)
    assert features.width == wanted.shape[1]


def test_the_key_of_a_group_names_the_map_and_its_weights() -> None:
    keys = {
        fingerprint(one_shot_model(features, SHAPE, 3, ridge))
        for features in ("scattering", "none", Frozen(0), Frozen(1))
        for ridge in (0.1, 0.2)
    }
    assert len(keys) == 8
    assert fingerprint(one_shot_model(Frozen(0), SHAPE, 3)) == fingerprint(
        one_shot_model(Frozen(0), SHAPE, 3)
    )


class Counting:
    """Counts the inputs that a map is asked for."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, x: Tensor) -> Tensor:
        self.asked += len(x)
        return x.flatten(1)[:, :5]


def learned(inputs: Any, folder: Path | None = None, name: str = "count", **how: bool) -> Any:
    """Return features that were learned of inputs, and the counting map below them."""
    count = Counting()
    known = KnownFeatures(count, 5, name, **{"by_input": True, **how})
    known.learn([inputs], device=None, folder=folder, progress=quiet)
    return known, count


def plain(inputs: Any) -> Any:
    return inputs.reshape(len(inputs), -1)[:, :5] / np.float32(255)


@pytest.mark.parametrize("by_input", [True, False])
def test_what_is_known_is_not_computed_again(by_input: bool) -> None:
    one, two = pictures(0, 30), pictures(1, 30)
    known, count = learned(one, by_input=by_input)
    for inputs in (one, two, one, np.concatenate([one[:10], two[:10], pictures(2, 3)])):
        assert np.array_equal(known.of(inputs), plain(inputs))
    assert count.asked == (63 if by_input else 83)


@pytest.mark.parametrize(
    ("damage", "name", "asked"),
    [
        ("none", "count", 0),
        ("none", "another map", 40),
        ("cut", "count", 40),
        ("flip", "count", 40),
        ("swap", "count", 0),
    ],
)
def test_features_are_found_in_their_folder_unless_damaged(
    tmp_path: Path, damage: str, name: str, asked: int
) -> None:
    inputs = pictures(4, 40)
    learned(inputs, tmp_path)
    (path,) = tmp_path.glob("count-*/*")
    content = bytearray(path.read_bytes())
    if damage == "cut":
        content = content[:-7]
    elif damage == "flip":
        content[-9] ^= 1
    elif damage == "swap":
        path = path.with_name("0" * 32 + ".safetensors")
    path.write_bytes(content)
    known, count = learned(inputs, tmp_path, name)
    assert count.asked == asked
    assert np.array_equal(known.of(inputs), plain(inputs))
    assert not path.exists() or damage != "swap"


@pytest.mark.parametrize("ridge", [0, -1, float("nan"), float("inf"), "much"])
def test_a_ridge_that_is_no_number_above_zero_is_refused(ridge: Any) -> None:
    with pytest.raises(CarvyError, match="ridge"):
        one_shot_model("none", (4,), 3, ridge)


def test_a_projection_is_a_fixed_matrix_that_keeps_lengths() -> None:
    whole, cut = (features_for("scattering", SHAPE, d) for d in (None, 200))
    x = torch.rand(40, *SHAPE)
    ratios = cut(x).norm(dim=1) / whole(x).norm(dim=1)
    assert cut(x).shape == (40, 200)
    assert 0.8 < float(ratios.mean()) < 1.2  # lengths survive up to about 1/√d
    assert torch.equal(cut(x), features_for("scattering", SHAPE, 200)(x))
    assert cut.fingerprint != whole.fingerprint
    with pytest.raises(CarvyError, match="choose fewer"):
        features_for("scattering", SHAPE, whole.width)


def test_a_projection_of_projected_features_is_one_after_the_other() -> None:
    once = features_for("none", SHAPE, projection=40)
    twice = projected_to(10, once)
    images = pictures(3, 5)
    draw = np.random.default_rng([40, 10])
    onto = draw.standard_normal((40, 10), dtype=np.float32) / np.sqrt(10)
    assert np.allclose(twice.of(images), once.of(images) @ onto, atol=1e-4)
    assert twice.width == 10
    assert twice.fingerprint != once.fingerprint


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("known", [False, True])
def test_arrays_taken_together_have_the_features_each_has_alone(
    known: bool, device: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features_module, "PROJECTED_AT_ONCE", 6)
    monkeypatch.setattr(features_module, "AT_ONCE_ON_DEVICE", 4)
    features, alone = (features_for("scattering", SHAPE, projection=5) for _ in range(2))
    arrays = [pictures(seed, number) for seed, number in enumerate((2, 3, 4, 9, 1))]
    if known:
        features.known.learn(arrays, device=device, folder=None, progress=quiet)
    for inputs, rows in zip(arrays, features.of_each(arrays, device, learned=known), strict=True):
        np.testing.assert_allclose(rows, alone.of(inputs), rtol=1e-4, atol=1e-5)


class Tracker(nn.Module):
    """In evaluation mode, too, it keeps a running mean, of batches with enough inputs."""

    mean: Tensor

    def __init__(self, least: int, *, assigned: bool = False) -> None:
        super().__init__()
        self.least, self.assigned = least, assigned
        self.register_buffer("mean", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(1) - self.mean
        if len(x) >= self.least:
            mean = self.mean + 1e-6 * (x.mean() - self.mean)
            if self.assigned:
                self.mean = mean
            else:
                self.mean.data.copy_(mean)
        return rows


@pytest.mark.parametrize("assigned", [False, True])
def test_a_network_that_changes_its_buffers_is_refused(assigned: bool) -> None:
    """The rows of one client would hang on those before, by too little for the trial to see."""
    with pytest.raises(CarvyError, match="changes its parameters or buffers") as refused:
        features_for(Tracker(1, assigned=assigned), SHAPE)
    assert "\n" not in str(refused.value)
    unseen = features_for(Tracker(10, assigned=assigned), SHAPE)
    assert unseen.of(pictures(0, 9)).shape == (9, 144)
    with pytest.raises(CarvyError, match="changes its parameters or buffers"):
        unseen.of(pictures(0, 10))


def test_a_network_with_nan_in_a_buffer_is_not_taken_for_a_changed_one() -> None:
    network = Tracker(1000)
    network.register_buffer("unused", torch.tensor([torch.nan, torch.inf]))
    assert features_for(network, SHAPE).of(pictures(0, 5)).shape == (5, 144)


def test_a_network_goes_where_the_inputs_are(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(features_module, "_same_bits", lambda *_: True)  # "meta" holds no numbers
    network = nn.Sequential(nn.Flatten(), nn.Linear(9, 4))
    features = features_for(network, (1, 3, 3))
    assert features(torch.empty((2, 1, 3, 3), device="meta")).shape == (2, 4)
    assert next(network.parameters()).device.type == "cpu"  # the user's own stays where it is
