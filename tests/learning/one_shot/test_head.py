"""The closed-form head equals the head of the pooled data, solved another way."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from carvyfl.learning.one_shot.head import head, heads
from carvyfl.learning.one_shot.sums import NEVER, Sums, add, fault, sums_of
from carvyfl.learning.one_shot.training import head_from, one_shot_model

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
CLASSES = 4


def weighted_ridge(x: Floats, y: Ints, ridge: float) -> tuple[Floats, Floats]:
    """Solve the same problem from the samples themselves, as weighted least squares.

    Every class weighs the same between classes; within, deviations weigh 1/n. No sums occur.
    """
    held = np.unique(y)
    means = {int(c): x[y == c].mean(axis=0) for c in held}
    centre = np.mean(list(means.values()), axis=0)
    within = np.stack([x[i] - means[int(y[i])] for i in range(len(x))])
    between = np.stack([means[int(c)] - centre for c in held])
    rows = np.concatenate([within / np.sqrt(len(x)), between / np.sqrt(len(held))])
    shrink = ridge * (rows**2).sum() / len(x)
    augmented = np.concatenate([rows, np.sqrt(shrink) * np.eye(x.shape[1])])
    weights = np.zeros((CLASSES, x.shape[1]))
    biases = np.full(CLASSES, NEVER)
    for c in held:
        # Aᵀ A w = b by QR: the normal equations are never formed.
        _, r = np.linalg.qr(augmented)
        side = (means[int(c)] - centre) / len(held)
        weights[c] = np.linalg.solve(r, np.linalg.solve(r.T, side))
        biases[c] = -weights[c] @ centre
    return weights, biases


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    samples=st.integers(3, 40),
    width=st.integers(1, 12),
    clients=st.integers(1, 6),
    ridge=st.sampled_from([0.01, 0.3, 3.0]),
)
def test_any_split_over_clients_gives_the_head_of_the_pooled_data(
    seed: int, samples: int, width: int, clients: int, ridge: float
) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, width)) + rng.normal(size=width)
    y = rng.integers(0, CLASSES, samples)
    y[:2] = (0, 1)
    owner = rng.integers(0, clients, samples)
    parts = [
        sums_of(x[owner == k], y[owner == k], CLASSES, np.float64)
        for k in range(clients)
        if (owner == k).any()
    ]
    actual, wanted = head(add(parts), ridge), weighted_ridge(x, y, ridge)
    size = max(1.0, float(np.abs(wanted[0]).max()))
    assert np.allclose(actual[0], wanted[0], rtol=0, atol=1e-5 * size)
    held = np.unique(y)
    assert np.allclose(actual[1][held], wanted[1][held], rtol=0, atol=1e-5 * size)


def scores(x: Floats, actual: tuple[Floats, Floats]) -> Floats:
    result: Floats = x @ actual[0].T + actual[1]
    return result


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_features_on_another_scale_give_the_same_answers(factor: float) -> None:
    rng = np.random.default_rng(3)
    y = rng.integers(0, CLASSES, 60)
    x = rng.normal(size=(60, 5)) + y[:, None]
    answers = [
        scores(part, head(sums_of(part, y, CLASSES, np.float64), 0.3)).argmax(axis=1)
        for part in (x, factor * x)
    ]
    assert np.array_equal(*answers)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        pytest.param(np.ones((6, 3)), [0, 0, 1, 1, 2, 2], id="constant features"),
        pytest.param(np.zeros((6, 3)), [0, 0, 1, 1, 2, 2], id="zero features"),
        pytest.param(np.random.default_rng(0).normal(size=(6, 3)), [2] * 6, id="a single class"),
        pytest.param(np.random.default_rng(0).normal(size=(1, 3)), [2], id="a single sample"),
        pytest.param(np.random.default_rng(0).normal(size=(3, 200)), [0, 1, 2], id="d > n"),
        pytest.param(np.random.default_rng(4).normal(size=(30, 6)), [1, 3] * 15, id="two classes"),
    ],
)
def test_degenerate_data_give_a_finite_head_that_chooses_a_class_held(x: Floats, y: list[int]):
    labels = np.array(y)
    actual = head(sums_of(x, labels, CLASSES), 0.3)
    assert all(np.isfinite(part).all() for part in actual)
    far = 1e6 * np.random.default_rng(4).normal(size=(1000, x.shape[1]))
    for inputs in (x, far):
        assert set(scores(inputs, actual).argmax(axis=1).tolist()) <= set(y)


def broken(**changes: object) -> Sums:
    sums = sums_of(np.random.default_rng(0).normal(size=(9, 3)), np.arange(9) % CLASSES, CLASSES)
    return Sums(**{**vars(sums), **changes})


@pytest.mark.parametrize(
    ("sums", "reason"),
    [
        (broken(second=np.eye(4)), "other shapes"),
        (broken(first=np.zeros((3, 3))), "other shapes"),
        (broken(counts=np.array([1, 2, 3, -1])), "counts"),
        (broken(counts=np.array([1.0, 2, 3, 4])), "counts"),
        (broken(counts=np.zeros(4, dtype=np.int64)), "counts"),
        (broken(counts=np.array([1, 2, 3, 10**12])), "counts"),
        (broken(counts=np.array([1, 2, 3, 4], dtype=np.uint8)), "counts"),
        (broken(counts=np.array([1, 2, 3, 4], dtype=np.uint64)), "counts"),
        (broken(second=np.eye(3, dtype=complex)), "floating-point"),
        (broken(first=np.zeros((4, 3), dtype=object)), "floating-point"),
        (broken(second=np.full((3, 3), np.nan)), "not finite"),
        (broken(first=np.full((4, 3), np.inf)), "not finite"),
        (broken(second=np.arange(9.0).reshape(3, 3)), "symmetric"),
    ],
)
def test_sums_that_cannot_be_used_are_set_aside(sums: Sums, reason: str) -> None:
    why = fault(sums, 3, CLASSES)
    assert why is not None
    assert reason in why
    honest, module = broken(), one_shot_model("none", (3,), CLASSES)
    assert fault(honest, 3, CLASSES) is None
    with_a_liar = head_from(module, [(0, honest), (1, sums), (2, honest)])
    without = head_from(module, [(0, honest), (2, honest)])
    assert torch.equal(with_a_liar.weights, without.weights)
    assert with_a_liar.set_aside == {1: why}


def forged_sums(rng: np.random.Generator) -> list[Sums]:
    """Return sums that no samples have: not positive, so large that they overflow, all alike."""
    honest = sums_of(rng.normal(size=(40, 6)), rng.integers(0, CLASSES, 40), CLASSES, np.float64)
    turned = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    indefinite = turned @ np.diag([900.0, 500, 3, -20, -40, -60]) @ turned.T
    forged = Sums((indefinite + indefinite.T) / 2, honest.first, honest.counts)
    assert all(np.isfinite(part).all() for part in head(add([honest, forged]), 0.3))
    return [
        forged,
        Sums(-honest.second, honest.first, honest.counts),
        Sums(honest.second, honest.first * 1e200, honest.counts),
        Sums(honest.second, honest.first + 1.0, np.array([5, 0, 0, 35])),
        Sums(np.zeros((6, 6)), np.zeros((CLASSES, 6)), honest.counts),
    ]


def test_many_heads_are_those_of_every_group_alone() -> None:
    """Ordinary groups, few samples, one class, features all alike, and forged sums."""
    rng = np.random.default_rng(9)
    data = [(np.ones((8, 6)), np.arange(8) % CLASSES), (rng.normal(size=(9, 6)), np.full(9, 2))]
    for samples in (40, 3, 1, 200, 17):
        y = rng.integers(0, CLASSES, samples)
        data.append((rng.normal(size=(samples, 6)) + y[:, None], y))
    groups = [*(sums_of(x, y, CLASSES, np.float64) for x, y in data), *forged_sums(rng)]
    second, first, counts = (
        torch.from_numpy(np.stack([getattr(g, name) for g in groups]))
        for name in ("second", "first", "counts")
    )
    for group, *together in zip(groups, *heads(second, first, counts, 0.3), strict=True):
        alone = head(group, 0.3)
        size = np.abs(alone[0]).max()
        for one, other in zip(together, alone, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9 * size)
