"""Label shares under local differential privacy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest, norm

from carvyfl import CarvyError, CarvyFL, build_federation, load
from carvyfl.core.randomness import generator
from carvyfl.profiles import private_shares as module
from carvyfl.profiles.methods import read_profiles
from carvyfl.profiles.private_shares import WHOLE, noise_for_shares, onto_simplex, private_shares


def no_noise(count, scale):
    return np.zeros(count, np.int64)


def test_any_two_clients_shares_are_within_the_sensitivity(monkeypatch):
    """In whole units, as they are before noise: the noise is replaced by none."""
    monkeypatch.setattr(module, "simulated_noise", no_noise)
    federation = build_federation(load("embedded"), "dirichlet", num_clients=60, samples=20, seed=0)
    rows = private_shares(federation, 2.0).values.astype(np.float64) * WHOLE
    assert (rows == np.rint(rows)).all()
    assert rows.min() >= 0
    assert rows.sum(axis=1).max() <= WHOLE
    farthest = ((rows[:, None] - rows) ** 2).sum(axis=2).max()
    bound = noise_for_shares(2.0).squared_sensitivity
    assert 0.3 * bound < farthest <= bound
    only = np.eye(10) * WHOLE  # clients of one class each
    assert ((only[0] - only[1]) ** 2).sum() == bound


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=5), st.integers(0, 99))
def test_no_point_of_the_simplex_is_nearer(row, seed):
    values = np.array([row])
    nearest = onto_simplex(values)[0]
    assert nearest.min() >= 0
    assert nearest.sum() == pytest.approx(1)
    others = np.random.default_rng(seed).dirichlet(np.full(len(row), 0.5), size=200)
    least = np.linalg.norm(others - values, axis=1).min()
    assert np.linalg.norm(nearest - values) <= least + 1e-9


def iid(clients=300):
    return build_federation(load("embedded"), "iid", num_clients=clients, samples=20, seed=0)


def test_noise_is_gaussian_of_its_size_and_no_seed_gives_it_again():
    federation = iid()
    sent, again = (private_shares(federation, 2.0).values - 0.1 for _ in range(2))
    scale = noise_for_shares(2.0).scale / WHOLE  # all shares are 1/10
    assert kstest(sent.ravel() / scale, norm.cdf).pvalue > 1e-6
    assert abs(np.corrcoef(sent.ravel(), again.ravel())[0, 1]) < 0.1
    by_seed = generator(0, "private shares", 0).normal(size=10)  # once client 0's noise
    assert not np.allclose(sent[0], scale * by_seed, rtol=0.01)


@pytest.mark.parametrize("huge", [1e17, -1e17, 3e38, [3e38, -3e38] * 5, np.nan, np.inf, 1e308])
def test_a_hostile_message_changes_no_other_client_and_hides_no_warning(huge):
    honest = private_shares(iid(), 2.0)
    values = honest.values.astype(np.float64)
    values[7] = huge
    rows = honest.replaced(values)
    attacked, before = (read_profiles("private-shares", sent) for sent in (rows, honest))
    assert attacked.vectors is not None
    assert before.vectors is not None
    others = np.arange(300) != 7
    assert np.array_equal(attacked.vectors.rows[others], before.vectors.rows[others])
    for k in np.flatnonzero(others):
        names = [p.types.names[p.types.labels[k]] for p in (attacked, before)]
        assert names[0] == names[1]
    assert any("chance" in text for text in attacked.types.warnings)
    if 7 in attacked.types.set_aside:
        assert not (np.abs(values[7]) < 3.4e38).all()
    else:
        assert attacked.vectors.rows[7].sum() == pytest.approx(1)
        assert attacked.vectors.rows[7].min() >= 0


def test_saved_shares_are_read_as_the_same_to_the_bit():
    before = read_profiles("private-shares", private_shares(iid(), 2.0))
    assert before.vectors is not None
    saved = before.vectors.rows.copy()
    saved[3] = np.nan
    after = read_profiles("private-shares", private_shares(iid(), 2.0, saved))
    assert after.vectors is not None
    same = (after.vectors.rows == saved).all(axis=1)
    assert np.flatnonzero(~same).tolist() == [3]


def test_choosing_the_number_of_groups_is_refused():
    model = CarvyFL(types="private-shares", model="mlp")
    with pytest.raises(CarvyError, match="groups"):
        model.fit(iid(6))


def test_much_noise_is_said_and_without_noise_shares_are_kept(monkeypatch):
    federation = build_federation(
        load("embedded"), "class-disjoint", num_clients=200, samples=20, seed=0
    )
    noisy = read_profiles("private-shares", private_shares(federation, 0.5))
    assert any("chance" in text for text in noisy.types.warnings)
    monkeypatch.setattr(module, "simulated_noise", no_noise)
    exact = read_profiles("private-shares", private_shares(federation, 0.5))
    assert federation.types is not None
    assert exact.types.agree_with(federation.types)
