"""The audit finds faults and does not find what is not there; attacks are no better than proved."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom, norm

from carvyfl.privacy.class_sums import noise_for_sums
from carvyfl.privacy.noise import STEP
from reproduction.studies.__main__ import main
from reproduction.studies.privacy_audit import (
    CONFIDENCE,
    FAULTS,
    Message,
    Samples,
    _at_least,
    _at_most,
    auc,
    audit,
    broken,
    class_alone,
    membership,
    private,
    reconstruction,
)

EPSILON, TRIALS = 2.0, 4000


@pytest.fixture(autouse=True)
def _same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds fail once in a thousand audits; the same noise each time, so that no test does."""
    monkeypatch.setattr("secrets.token_bytes", np.random.default_rng(0).bytes)


def audited(message: Message) -> tuple[float, float]:
    rng = np.random.default_rng(0)
    vectors, labels = rng.normal(size=(20, 8)) / 3, rng.integers(0, 4, 20)
    bounds = audit(message, vectors, labels, 5 * np.eye(8)[0], 0, TRIALS)
    return bounds.epsilon, bounds.gaussian_epsilon


@pytest.mark.slow
def test_the_message_costs_no_more_than_it_claims_and_the_audit_is_not_blind() -> None:
    epsilon, gaussian = audited(private(EPSILON, 4))
    assert epsilon <= EPSILON
    assert 0.4 * EPSILON <= gaussian <= EPSILON


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_found(fault: str) -> None:
    epsilon, gaussian = audited(broken(fault, EPSILON, 4))
    assert gaussian > EPSILON
    if fault != "noise halved":  # it takes more trials where nothing is assumed of the noise
        assert epsilon > EPSILON


@pytest.mark.parametrize(("rate", "trials"), [(0.5, 50), (0.03, 200), (0.999, 100)])
def test_bounds_on_rates_fail_as_rarely_as_stated(rate: float, trials: int) -> None:
    chance = binom.pmf(np.arange(trials + 1), trials, rate)
    too_high = [_at_least(hits, trials, 2) > rate for hits in range(trials + 1)]
    too_low = [_at_most(hits, trials, 2) < rate for hits in range(trials + 1)]
    assert max(chance[too_high].sum(), chance[too_low].sum()) <= (1 - CONFIDENCE) / 2
    assert _at_most(trials, trials, 2) == 1
    assert _at_least(0, trials, 2) == 0


def test_auc_is_the_share_of_pairs() -> None:
    rng = np.random.default_rng(0)
    first, second = (rng.integers(low, low + 9, 40).astype(np.float64) for low in (0, 3))
    pairs = [(a > b) + (a == b) / 2 for a in first for b in second]
    assert auc(first, second) == pytest.approx(np.mean(pairs))


def samples(size: int, seed: int) -> Samples:
    """Images of four classes that are a linear function of their vectors."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, size)
    vectors = np.eye(4, 6)[labels] / 2 + rng.normal(size=(size, 6)) / 6
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1)
    plane = np.random.default_rng(9).normal(size=(6, 20))
    return Samples(vectors, vectors @ plane, labels)


def exact(vectors: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    chosen = np.eye(4)[labels]
    return chosen.T @ vectors, chosen.sum(axis=0)


def test_images_come_back_from_exact_sums_and_not_from_private_ones() -> None:
    known, hidden = samples(400, 0), samples(100, 1)
    assert reconstruction(exact, 0.0, known, hidden, share=1) > 0.95
    scale = noise_for_sums(1.0, 1e-5).scale * STEP
    drawn = reconstruction(private(1.0, 4), scale, known, hidden, share=1)
    assert drawn == pytest.approx(class_alone(known, hidden), abs=0.02)


def test_members_are_told_no_better_than_the_noise_allows() -> None:
    pool = samples(400, 0)
    assert membership(exact, pool, 10, 100)["knows all others"] == 1.0
    found = membership(private(4.0, 4), pool, 10, 1500)
    signal = noise_for_sums(4.0, 1e-5).signal
    best, error = norm.cdf(signal / np.sqrt(2)), 4 * np.sqrt(1 / 12 / 1500) * np.sqrt(2)
    assert 0.5 + error < found["knows all others"] < best + error
    assert found["knows the classes"] < best + error


def test_the_study_writes_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ("--epsilons", "2", "--trials", "300", "--commit", "abc1234", "--out", str(tmp_path))
    main(["privacy-audit", *few])
    record = json.loads((tmp_path / "audit.json").read_text())
    assert record["commit"] == "abc1234"
    (found,) = record["audits"]
    assert set(found["bounds"]) == {"as it is", *FAULTS}
    assert found["bounds"]["counts without noise"]["epsilon"] > 2
    assert "ε = 2, clipping off: " in capsys.readouterr().out
