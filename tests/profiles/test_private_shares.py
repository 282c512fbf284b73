"""Label shares under local differential privacy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from carvyfl import CarvyError, build_federation, load
from carvyfl.profiles.methods import read_profiles
from carvyfl.profiles.private_shares import (
    DELTA,
    DISTANCE,
    noise_scale,
    onto_simplex,
    private_shares,
)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0, 10.0, 50.0])
def test_the_noise_is_the_least_that_is_private(epsilon):
    """δ by integration: how much the two densities differ beyond the factor exp(ε)."""

    def delta(scale: float) -> float:
        def beyond(x: float) -> float:
            there, other = norm.pdf(x, DISTANCE, scale), norm.pdf(x, 0, scale)
            return max(0.0, float(there - np.exp(epsilon) * other))

        edge = scale**2 * epsilon / DISTANCE + DISTANCE / 2
        return float(quad(beyond, edge, edge + 12 * scale + DISTANCE, epsabs=1e-12)[0])

    scale = noise_scale(epsilon)
    assert delta(scale) == pytest.approx(DELTA, rel=0.02)
    assert delta(0.97 * scale) > DELTA


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("nan"), float("inf")])
def test_an_impossible_epsilon_is_refused(epsilon):
    with pytest.raises(CarvyError, match="epsilon"):
        noise_scale(epsilon)


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=5), st.integers(0, 99))
def test_no_point_of_the_simplex_is_nearer(row, seed):
    values = np.array([row])
    nearest = onto_simplex(values)[0]
    assert nearest.min() >= 0
    assert nearest.sum() == pytest.approx(1)
    others = np.random.default_rng(seed).dirichlet(np.full(len(row), 0.5), size=200)
    least = np.linalg.norm(others - values, axis=1).min()
    assert np.linalg.norm(nearest - values) <= least + 1e-9


def test_noise_is_as_large_as_it_should_be_and_a_clients_own():
    federation = build_federation(load("embedded"), "iid", num_clients=60, samples=20, seed=0)
    sent = private_shares(federation, 2.0, seed=1).values - 0.1  # all shares are 1/10
    assert sent.std() == pytest.approx(noise_scale(2.0), rel=0.1)
    fewer = build_federation(load("embedded"), "iid", num_clients=30, samples=20, seed=0)
    assert np.array_equal(private_shares(fewer, 2.0, seed=1).values - 0.1, sent[:30])


def test_much_noise_is_said_and_little_noise_keeps_the_shares():
    federation = build_federation(
        load("embedded"), "class-disjoint", num_clients=20, samples=20, seed=0
    )
    noisy = read_profiles("private-shares", private_shares(federation, 0.5, seed=1))
    assert any("chance" in text for text in noisy.types.warnings)
    exact = read_profiles("private-shares", private_shares(federation, 1e6, seed=1))
    assert federation.types is not None
    assert exact.types.agree_with(federation.types)
