"""Feature shift: transformations of images, the partition, and the test data of a run."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carvyfl.core.errors import CarvyError
from carvyfl.data.clients import Samples
from carvyfl.data.datasets import DataSet
from carvyfl.data.partitions import PARTITIONS, PartitionRule, build_federation, shifted_test
from carvyfl.data.rules import Dealing, Partition, feature_shift
from carvyfl.data.shifts import NOISE, SHIFTS, Shift, shift_mixture, shift_samples
from support.registries import registered

DEFAULT = ("rotate-0", "rotate-90", "rotate-180", "rotate-270", "invert")


def pictures(n: int = 400, shape: tuple[int, ...] = (1, 6, 6), kind: Any = np.uint8) -> DataSet:
    """Random pictures of four classes, so that no two are alike, however they are turned."""
    rng = np.random.default_rng(2)
    pixels = rng.integers(0, 256, (2 * n, *shape), dtype=np.uint8)
    inputs = pixels if kind == np.uint8 else (pixels / 255).astype(np.float32)
    labels = np.arange(2 * n) % 4
    train, test = Samples(inputs[:n], labels[:n]), Samples(inputs[n:], labels[n:])
    return DataSet("pictures", train, test, 4, 0.5, 0.5, tuple("abcd"))


def expected(image: Any, shift: str) -> Any:
    """Transform one picture pixel by pixel."""
    height, width = image.shape[1:]
    moved = np.empty_like(image)
    for y in range(height):
        for x in range(width):
            to = {
                "rotate-90": (width - 1 - x, y),  # the right edge becomes the top
                "rotate-180": (height - 1 - y, width - 1 - x),
                "rotate-270": (x, height - 1 - y),
            }.get(shift, (y, x))
            moved[:, *to] = image[:, y, x]
    if shift == "invert":
        return np.array([[[255 - int(v) for v in row] for row in c] for c in moved], np.uint8)
    return moved


def build(dataset: DataSet, name: str = "feature-shift", **changes: Any) -> Any:
    arguments = {"num_clients": 10, "samples": 20, "seed": 3, "validation": 8, **changes}
    return build_federation(dataset, name, **arguments)


@pytest.mark.parametrize("shape", [(1, 6, 6), (3, 4, 4)])
def test_clients_see_the_pictures_of_iid_through_their_shift(shape: tuple[int, ...]) -> None:
    data = pictures(shape=shape)
    plain, shifted = build(data, "iid"), build(data)
    assert shifted.types.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    for kind, before, after in zip(shifted.types, plain.clients, shifted.clients, strict=True):
        for one, other in ((before.train, after.train), (before.validation, after.validation)):
            assert len(other) > 0
            assert other.labels.tolist() == one.labels.tolist()
            assert other.inputs.dtype == np.uint8
            for image, seen in zip(one.inputs, other.inputs, strict=True):
                assert np.array_equal(seen, expected(image, DEFAULT[kind]))


def test_labels_can_be_uneven_as_well() -> None:
    data = pictures(shape=(1, 4, 6))  # of any shape, upside down
    plain = build(data, "dirichlet", alpha=0.2)
    shifted = build(data, alpha=0.2, shifts=["rotate-180"])
    for before, after in zip(plain.clients, shifted.clients, strict=True):
        assert after.train.labels.tolist() == before.train.labels.tolist()
        assert np.array_equal(after.train.inputs, before.train.inputs[:, :, ::-1, ::-1])


@given(st.integers(1, 40), st.permutations(sorted(SHIFTS)), st.integers(1, 6))
def test_clients_are_dealt_evenly(n: int, names: list[str], kinds: int) -> None:
    kinds = min(kinds, n)
    partition = feature_shift(n, 3, 10, np.random.default_rng(0), shifts=names[:kinds])
    assert partition.shifts is not None
    assert partition.types is not None
    assert [names[kind] for kind in partition.types] == list(partition.shifts)
    sizes = Counter(partition.shifts)
    assert set(sizes) == set(names[:kinds])
    assert max(sizes.values()) - min(sizes.values()) <= 1


# -- single transformations ------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
@pytest.mark.parametrize("shift", sorted(SHIFTS))
def test_shifts_keep_shape_type_and_range(shift: str, kind: Any) -> None:
    samples = pictures(20, kind=kind).train
    before, top = samples.inputs.copy(), 255 if kind == np.uint8 else 1
    shifted = shift_samples(samples, shift, np.arange(20), 1).inputs
    assert (shifted.shape, shifted.dtype) == (before.shape, before.dtype)
    assert shifted.min() >= 0
    assert shifted.max() <= top
    assert np.array_equal(samples.inputs, before)  # the data set's own pictures stay
    assert np.allclose(shifted.astype(float) + before, top) == (shift == "invert")


@pytest.mark.parametrize(("kind", "middle"), [(np.uint8, 128), (np.float32, 0.5)])
def test_noise_has_its_standard_deviation(kind: Any, middle: float) -> None:
    """Mid-grey is clipped beyond 2.5 standard deviations only."""
    grey = Samples(np.full((40, 1, 30, 30), middle, kind), np.zeros(40, np.int64))
    top = 255 if kind == np.uint8 else 1
    noise = (shift_samples(grey, "noise", np.arange(40), 1).inputs.astype(float) - middle) / top
    assert abs(noise.mean()) < 0.01
    assert noise.std() == pytest.approx(NOISE, rel=0.03)


@given(st.lists(st.integers(0, 19), min_size=1, unique=True), st.integers(0, 99))
@settings(max_examples=20)
def test_noise_belongs_to_the_sample(places: list[int], seed: int) -> None:
    whole, chosen = pictures(20).train, np.array(places)
    every = shift_samples(whole, "noise", np.arange(20), seed, "client", 4).inputs
    chosen_only = shift_samples(whole.take(chosen), "noise", chosen, seed, "client", 4).inputs
    other = shift_samples(whole.take(chosen), "noise", chosen, seed, "client", 5).inputs
    assert np.array_equal(chosen_only, every[chosen])
    assert not np.array_equal(chosen_only, other)


# -- the test data ---------------------------------------------------------------------


def test_the_test_data_follow_the_clients_mixture() -> None:
    """Six of ten clients turn their pictures, four invert them; so do the test pictures."""
    test = pictures(3000).test
    shifted = shift_mixture(test, ("rotate-90",) * 6 + ("invert",) * 4, 5)
    pairs = list(zip(test.inputs, shifted.inputs, strict=True))
    turned = [np.array_equal(b, np.rot90(a, axes=(1, 2))) for a, b in pairs]
    inverted = [np.array_equal(b, 255 - a) for a, b in pairs]
    assert all(np.logical_xor(turned, inverted))
    assert abs(sum(turned) - 1800) < 5 * (3000 * 0.6 * 0.4) ** 0.5
    assert shifted.labels.tolist() == test.labels.tolist()
    another = shift_mixture(test, ("rotate-90",) * 6 + ("invert",) * 4, 6)
    assert not np.array_equal(shifted.inputs, another.inputs)


def test_only_shifts_change_the_test_data() -> None:
    test = pictures().test
    sizes: dict[str, Any] = {"num_clients": 10, "num_classes": 4, "samples": 20, "seed": 3}
    for name in PARTITIONS:
        shifted = shifted_test(test, name, **sizes)
        assert (shifted is test) == (name != "feature-shift")
    shifted = shifted_test(test, "feature-shift", **sizes)
    assert shifted.sha256() == shift_mixture(test, [s for s in DEFAULT for _ in "12"], 3).sha256()


# -- rules and shifts of somebody else's -----------------------------------------------


def test_own_rules_and_own_shifts() -> None:
    data = pictures()
    names = ("mirror", "rotate-0", "invert")
    mirror = Shift("mirror", "left is right", lambda images, draws: images[..., ::-1])
    rules: dict[str, Any] = {
        "counted": Partition(np.full((3, 4), 5), None, names),
        "dealt": Dealing(np.full((3, 4), 1 / 3), None, names),
    }
    with registered(SHIFTS, mirror):
        for name, returned in rules.items():
            bare = replace(returned, shifts=None)
            with registered(PARTITIONS, PartitionRule("own", name, lambda *_, r=bare: r)):
                plain = build(data, "own", num_clients=3).clients
            with registered(PARTITIONS, PartitionRule("own", name, lambda *_, r=returned: r)):
                clients = build(data, "own", num_clients=3).clients
            assert np.array_equal(clients[0].train.inputs, plain[0].train.inputs[..., ::-1])
            assert np.array_equal(clients[1].train.inputs, plain[1].train.inputs)
            assert np.array_equal(clients[2].train.inputs, 255 - plain[2].train.inputs)


@pytest.mark.parametrize(
    ("shape", "normalised", "shifts", "message"),
    [
        ((36,), False, ["invert"], r"'invert' needs images .* not inputs of shape \(36,\)"),
        ((4, 6), False, ["rotate-0"], "shift 'rotate-0' needs images of shape"),
        ((1, 4, 6), False, ["rotate-0", "rotate-90"], "'rotate-90' needs square .* not 4×6"),
        ((1, 4, 6), False, ["rotate-270"], "'rotate-270' needs square images, not 4×6"),
        ((1, 4, 4), True, ["invert"], "'invert' needs uint8 or floats from 0 to 1, not from"),
        ((1, 4, 4), True, ["noise"], "'noise' needs uint8 or floats from 0 to 1"),
    ],
)
def test_what_cannot_be_shifted(
    shape: Any, normalised: bool, shifts: list[str], message: str
) -> None:
    data = pictures(shape=shape, kind=np.float32 if normalised else np.uint8)
    if normalised:  # floats whose range is not known
        both = [replace(part, inputs=part.inputs * 2 - 1) for part in (data.train, data.test)]
        data = replace(data, train=both[0], test=both[1])
    with pytest.raises(CarvyError, match=f"^pictures: .*{message}"):
        build(data, shifts=shifts)
    with pytest.raises(CarvyError, match=f"^test data: .*{message}"):
        shift_mixture(data.test, shifts, 0)
