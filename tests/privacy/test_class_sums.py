"""Noisy sums: one sample moves the exact ones no further than the noise is for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from carvyfl.privacy.class_sums import class_sums, noise_for_sums, noisy_sums
from carvyfl.privacy.noise import STEP, Units, simulated_noise, to_units


def silent(count: int, scale: float) -> Units:
    return np.zeros(count, np.int64)


@given(st.integers(0, 2**32 - 1), st.integers(0, 20), st.floats(0, 50), st.floats(0.05, 2))
def test_one_sample_moves_the_sums_by_the_sensitivity_at_most(
    seed: int, size: int, length: float, weight: float
) -> None:
    rng = np.random.default_rng(seed)
    vectors, labels = rng.normal(size=(size + 1, 5)), rng.integers(0, 3, size + 1)
    vectors *= length / np.linalg.norm(vectors, axis=1, keepdims=True)
    units = to_units(vectors)
    with_it = class_sums(units, labels, 3, weight)
    without = class_sums(units[1:], labels[1:], 3, weight)
    moved = sum(int(number) ** 2 for number in (with_it - without).ravel())
    bound = noise_for_sums(1.0, 1e-5, weight).squared_sensitivity
    assert moved <= bound
    if length >= 1:
        assert moved >= 0.99 * bound


def test_sums_are_those_of_a_loop() -> None:
    rng = np.random.default_rng(1)
    vectors, labels = rng.normal(size=(60, 8)) / 4, rng.integers(0, 4, 60)
    message = noisy_sums(vectors, labels, 5, noise_for_sums(2, 1e-5), silent)
    assert message.units.dtype == np.int32
    assert message.units.nbytes == 4 * 5 * 9
    for c in range(5):
        rows = [v / max(1, np.linalg.norm(v)) for v in vectors[labels == c]]
        assert message.sums[c] == pytest.approx(
            np.sum(rows or [np.zeros(8)], axis=0), abs=60 * STEP
        )
        assert message.counts[c] == (labels == c).sum()


def test_noise_has_the_stated_scale_in_sums_and_counts() -> None:
    noise = noise_for_sums(2.0, 1e-5)
    empty = np.zeros((0, 200)), np.zeros(0, int)
    message = noisy_sums(*empty, 50, noise, simulated_noise)
    scale = noise.scale * STEP
    low, high = (chi2.ppf(tail, 10_000) for tail in (1e-6, 1 - 1e-6))
    assert low < np.square(message.sums / scale).sum() < high
    low, high = (chi2.ppf(tail, 50) for tail in (1e-6, 1 - 1e-6))
    assert low < np.square(message.counts * 0.3 / scale).sum() < high


def test_a_sample_that_is_not_finite_stops_nothing() -> None:
    """A crash would tell the server that the sample is there."""
    vectors = np.array([[np.nan, 1.0], [0.5, 0.5]])
    message = noisy_sums(vectors, np.array([0, 0]), 2, noise_for_sums(2, 1e-5), silent)
    assert message.sums[0].tolist() == [0.5, 0.5]
    assert message.counts.tolist() == [2.0, 0.0]


def test_what_leaves_32_bits_is_cut_off() -> None:
    huge = noisy_sums(
        np.zeros((0, 1)),
        np.zeros(0, int),
        1,
        noise_for_sums(2, 1e-5),
        lambda n, s: np.full(n, 2**40),
    )
    assert huge.units.tolist() == [[2**31 - 1, 2**31 - 1]]
