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
    found = features_for(network, SHAPE)
    x = torch.rand(5, *SHAPE)
    with torch.no_grad():
        wanted = network.eval()(x)
    assert torch.equal(found(x), wanted)
    assert found.width == wanted.shape[1]


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


@pytest.mark.parametrize("by_input", [True, False])
def test_what_is_known_is_not_computed_again(by_input: bool) -> None:
    count = Counting()
    known = KnownFeatures(count, 5, "count", by_input=by_input)
    one, two = pictures(0, 30), pictures(1, 30)
    known.learn([one, two], device=None, folder=None, progress=quiet)
    mixed = np.concatenate([one[:10], two[:10], pictures(2, 3)])
    for inputs in (one, two, one):
        assert np.array_equal(known.of(inputs), inputs.reshape(30, -1)[:, :5] / np.float32(255))
    assert count.asked == 60
    wanted = mixed.reshape(23, -1)[:, :5] / np.float32(255)
    assert np.array_equal(known.of(mixed), wanted)
    assert count.asked == (63 if by_input else 83)


def test_features_are_found_again_in_their_folder(tmp_path: Path) -> None:
    first, later = Counting(), Counting()
    inputs = pictures(3, 50)
    KnownFeatures(first, 5, "count", by_input=True).learn(
        [inputs], device=None, folder=tmp_path, progress=quiet
    )
    known = KnownFeatures(later, 5, "count", by_input=True)
    known.learn([inputs], device=None, folder=tmp_path, progress=quiet)
    assert np.array_equal(known.of(inputs), inputs.reshape(50, -1)[:, :5] / np.float32(255))
    assert later.asked == 0
    other = Counting()
    KnownFeatures(other, 5, "another map", by_input=True).learn(
        [inputs], device=None, folder=tmp_path, progress=quiet
    )
    assert other.asked == 50


@pytest.mark.parametrize("damage", ["cut", "flip", "swap"])
def test_a_damaged_file_of_features_counts_for_nothing(tmp_path: Path, damage: str) -> None:
    inputs = pictures(4, 40)
    known = KnownFeatures(Counting(), 5, "count", by_input=True)
    known.learn([inputs], device=None, folder=tmp_path, progress=quiet)
    (path,) = tmp_path.glob("count-*/*")
    content = bytearray(path.read_bytes())
    if damage == "cut":
        content = content[:-7]
    elif damage == "flip":
        content[-9] ^= 1
    else:
        path = path.with_name("0" * 32 + ".safetensors")
    path.write_bytes(content)
    again = Counting()
    new = KnownFeatures(again, 5, "count", by_input=True)
    new.learn([inputs], device=None, folder=tmp_path, progress=quiet)
    assert again.asked == (0 if damage == "swap" else 40)
    assert np.array_equal(new.of(inputs), inputs.reshape(40, -1)[:, :5] / np.float32(255))
    assert not path.exists() or damage != "swap"


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


@pytest.mark.parametrize("ridge", [0, -1, float("nan"), float("inf"), "much"])
def test_a_ridge_that_is_no_number_above_zero_is_refused(ridge: Any) -> None:
    with pytest.raises(CarvyError, match="ridge"):
        one_shot_model("none", (4,), 3, ridge)


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
    found, alone = (features_for("scattering", SHAPE, projection=5) for _ in range(2))
    arrays = [pictures(seed, number) for seed, number in enumerate((2, 3, 4, 9, 1))]
    if known:
        found.known.learn(arrays, device=device, folder=None, progress=quiet)
    for own, rows in zip(arrays, found.of_each(arrays, device, learned=known), strict=True):
        np.testing.assert_allclose(rows, alone.of(own), rtol=1e-4, atol=1e-5)


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
