"""Heads, weights and profiles of private messages, against second formulas and simulation."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.random import Generator

from carvyfl.core.errors import CarvyError
from carvyfl.learning.private import head as heads
from carvyfl.learning.private.head import head, profiles, trial, weights
from carvyfl.learning.private.map import plain_map
from carvyfl.learning.private.message import Messages, fault, message
from carvyfl.privacy import noise_for_sums, simulated_noise
from carvyfl.privacy.noise import STEP, GaussianNoise, to_units

C, D = 4, 12
MAP = plain_map(D, D)
CENTRES = np.random.default_rng(5).normal(size=(C, D))


def samples(rng: Generator, counts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    labels = np.repeat(np.arange(C), counts)
    return MAP.vectors(CENTRES[labels] + rng.normal(size=(len(labels), D))), labels


def sent(
    counts: list[list[int]], noise: GaussianNoise | None = None, seed: int = 0
) -> tuple[Messages, list[tuple[np.ndarray, np.ndarray]]]:
    rng = np.random.default_rng(seed)
    data = [samples(rng, each) for each in counts]
    units = [message(*each, C, noise, simulated_noise).units for each in data]
    return Messages.of(units, noise), data


def test_one_sample_moves_a_message_by_its_sensitivity_at_most() -> None:
    """Brute force over every sample that could be removed, features of any size among them."""
    features, labels = samples(np.random.default_rng(3), [5, 1, 0, 6])
    assert np.array_equal(to_units(features) * STEP, features)
    features[:4] *= [[1e30], [1e-40], [0.0], [1e300]]
    features[4, 2], features[5, 0] = np.nan, np.inf
    whole = message(MAP.vectors(features), labels, C, None, simulated_noise).units.astype(np.int64)
    bound = noise_for_sums(1.0, 1e-5).squared_sensitivity
    assert np.sqrt(bound) * STEP == pytest.approx(np.sqrt(1.09), abs=1e-4)
    moves = []
    for k in range(len(labels)):
        rest = MAP.vectors(np.delete(features, k, axis=0)), np.delete(labels, k)
        without = message(*rest, C, None, simulated_noise).units
        moves.append(int(np.square(whole - without).sum()))
    assert 0.999 * bound < max(moves) <= bound


def test_without_noise_a_head_is_the_nearest_mean_of_the_pooled_vectors() -> None:
    private, data = sent([[9, 0, 4, 0], [3, 7, 0, 0], [0, 2, 1, 0]])
    vectors, labels = (np.concatenate(part) for part in zip(*data, strict=True))
    means = [vectors[labels == c].mean(axis=0) for c in range(3)]
    inputs = np.random.default_rng(1).normal(size=(300, D))
    nearest = ((inputs[:, None] - np.array(means)) ** 2).sum(axis=2).argmin(axis=1)
    matrix, biases = head(private)
    assert np.array_equal((inputs @ matrix.T + biases).argmax(axis=1), nearest)
    assert matrix[:3] == pytest.approx(np.array(means))
    assert biases[3] == -1e30


def test_weights_are_those_of_one_client_by_itself_and_drop_empty_classes() -> None:
    noise = noise_for_sums(2.0, 1e-5)
    private, _ = sent([[300, 0, 40, 0], [0, 20, 0, 0]], noise)
    part = weights(private)
    sd = noise.scale * STEP / 0.3
    for k in range(2):
        assert np.array_equal(part[k], weights(private.of_clients(np.array([k])))[0])
        for c in range(C):
            z = max(private.counts[k, c], 0) / sd
            assert part[k, c] == pytest.approx(z * z / (z * z + 8))
    assert part[0, 0] > 0.99


def test_noise_does_not_lengthen_means_on_average() -> None:
    """In many dimensions noise alone would make every mean look far away."""
    noise, width, size = noise_for_sums(1.0, 1e-5), 200, 80
    vectors = np.zeros((3 * size, width))
    labels = np.repeat(np.arange(3), size)
    vectors[np.arange(3 * size), labels] = [0.5] * size + [0.6] * size + [0.7] * size
    biases = []
    for _ in range(100):
        units = message(vectors, labels, 3, noise, simulated_noise).units
        biases.append(head(Messages.of([units], noise))[1])
    by_noise = width * (noise.scale * STEP / size) ** 2 / 2
    assert by_noise > 0.2
    usable = np.array(biases)[(np.array(biases) > -1e29).all(axis=1)]
    assert usable.mean(axis=0) == pytest.approx([-0.125, -0.18, -0.245], abs=by_noise / 4)


def test_biases_follow_the_formula_class_by_class() -> None:
    noise = noise_for_sums(1.0, 1e-5)
    private, _ = sent([[900, 500, 60, 0], [40, 700, 90, 0]], noise)
    matrix, biases = head(private)
    sigma, part = noise.scale * STEP, weights(private)
    lengths, spreads = {}, {}
    for c in range(C):
        n = sum(part[k, c] * private.counts[k, c] for k in range(2))
        squares = sum(part[k, c] ** 2 for k in range(2))
        if n <= 2 * (sigma / 0.3) * squares**0.5:
            assert biases[c] == -1e30
            continue
        mean = sum(part[k, c] * private.sums[k, c] for k in range(2)) / n
        assert matrix[c] == pytest.approx(mean)
        tau = sigma * squares**0.5 / n
        lengths[c] = e = sum(x * x for x in mean) - D * tau**2
        spreads[c] = 2 * D * tau**4 + 4 * tau**2 * max(e, 0) + 4 * e**2 * tau**2 / 0.09
    assert {0, 1} <= set(lengths)
    usual = sum(lengths[c] / (0.09 + spreads[c]) for c in lengths)
    usual /= sum(1 / (0.09 + spreads[c]) for c in lengths)
    for c, length in lengths.items():
        drawn = (0.09 * length + spreads[c] * usual) / (0.09 + spreads[c])
        assert biases[c] == pytest.approx(-drawn / 2)


def test_a_group_of_noise_alone_does_not_vote() -> None:
    units = np.zeros((2, C, D + 1), np.int32)
    for sigma in (0.0, 2.0):
        matrix, biases = head(Messages(units, sigma))
        assert np.isnan(matrix).all()
        assert np.isnan(biases).all()
    with pytest.raises(CarvyError, match="raise `epsilon`"):
        trial(Messages(units, 2.0), MAP.spread, 10, 0)


def test_forged_messages_of_any_size_give_finite_heads_and_profiles() -> None:
    private, _ = sent([[20, 30, 10, 5]] * 3, noise_for_sums(2.0, 1e-5))
    rng = np.random.default_rng(2)
    honest = profiles(private)
    for forged in (2**31 - 1, -(2**31), None):
        units = private.units.copy()
        units[1] = rng.integers(-(2**31), 2**31, units[1].shape) if forged is None else forged
        attacked = Messages(units, private.sigma)
        for array in head(attacked):
            assert np.isfinite(array.astype(np.float32)).all()
        read = profiles(attacked)
        assert all(np.isfinite(part).all() for part in read)
        assert (np.linalg.norm(read[0], axis=1) <= np.sqrt(1.09) + 1e-6).all()
        for i in range(3):  # the others' do not change
            assert np.array_equal(read[i][[0, 2]], honest[i][[0, 2]])


def test_profiles_are_label_shares_and_leading_sums() -> None:
    private, data = sent([[9, 0, 3, 0], [0, 5, 0, 0]])
    rows, sizes, errors = profiles(private)
    assert sizes.tolist() == [12, 5]
    assert not errors.any()
    for k, (vectors, labels) in enumerate(data):
        sums = [vectors[labels == c].sum(axis=0) for c in range(C)]
        expected = np.concatenate([np.bincount(labels, minlength=C), 0.3 * np.ravel(sums)])
        assert rows[k] == pytest.approx(expected / len(labels), rel=1e-5)


def test_profile_errors_are_those_of_the_noise() -> None:
    noise = noise_for_sums(2.0, 1e-5)
    exact, data = sent([[4000, 0, 3000, 0]])
    true = profiles(exact)[0][0]
    distances, stated = [], []
    for _ in range(300):
        units = message(*data[0], C, noise, simulated_noise).units
        rows, _, errors = profiles(Messages.of([units], noise))
        distances.append(np.square(rows[0] - true).sum())
        stated.append(errors[0])
    # Now and then noise passes for a class, so the mean of 300 squares varies by a quarter.
    assert np.mean(distances) == pytest.approx(np.mean(stated), rel=0.5)


def test_many_clients_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    private, _ = sent([[30, 5, 0, 0]] * 7, noise_for_sums(4.0, 1e-5))
    whole, made_up = profiles(private), trial(private, MAP.spread, 50, 1)
    monkeypatch.setattr(heads, "AT_ONCE", 2)
    assert all(np.array_equal(profiles(private)[i], whole[i]) for i in range(3))
    vectors, labels = trial(private, MAP.spread, 50, 1)
    assert vectors == pytest.approx(made_up[0])
    assert np.array_equal(labels, made_up[1])


def test_made_up_inputs_lie_around_the_means_in_the_shares_of_classes() -> None:
    private, _ = sent([[600, 300, 0, 0], [0, 0, 100, 0]])
    vectors, labels = trial(private, MAP.spread, 4000, 0)
    assert (np.linalg.norm(vectors, axis=1) <= 1 + 1e-6).all()
    assert np.bincount(labels, minlength=C) / 4000 == pytest.approx([0.6, 0.3, 0.1, 0], abs=0.03)
    matrix, biases = head(private)
    assert ((vectors @ matrix.T + biases).argmax(axis=1) == labels).mean() > 0.6


@pytest.mark.parametrize(
    ("units", "words"),
    [
        (np.zeros((C, D + 1), np.int32), None),
        (np.full((C, D + 1), 2**31 - 1, np.int32), None),
        (np.zeros((C, D), np.int32), "classes"),
        (np.zeros((C, D + 1, 1), np.int32), "classes"),
        (np.zeros((C, D + 1)), "32-bit"),
        (np.full((C, D + 1), np.nan, np.float32), "32-bit"),
    ],
)
def test_form_alone_makes_a_message_unusable(units: np.ndarray, words: str | None) -> None:
    why = fault(units, C, D)
    assert (why is None) == (words is None)
    assert words is None or words in str(why)
