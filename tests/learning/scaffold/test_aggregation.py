"""Robust aggregation against definitions worked out by hand or brute force."""

from __future__ import annotations

import itertools

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from carvyfl.learning.job import group_job
from carvyfl.learning.recipe import Recipe
from carvyfl.learning.scaffold.aggregation import (
    AGGREGATION_RULES,
    krum,
    median,
    multi_krum,
    norm_clipping,
    trimmed_mean,
)
from carvyfl.learning.scaffold.arithmetic import server_step
from carvyfl.learning.scaffold.group import train_group
from support.federations import class_disjoint_federation, small_net

vectors = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 9), st.integers(1, 4)),
    elements=st.integers(-20, 20).map(float),
)

ROBUST = sorted(name for name, rule in AGGREGATION_RULES.items() if rule.robust)


@given(vectors)
def test_median_is_numpys(rows):
    actual = median(torch.from_numpy(rows), torch.zeros(rows.shape[1]), 0)
    np.testing.assert_allclose(actual.numpy(), np.median(rows, axis=0))


@given(vectors, st.integers(0, 3))
def test_trimmed_mean_is_scipys(rows, tolerated):
    cut = min(tolerated, (len(rows) - 1) // 2)
    expected = stats.trim_mean(rows, cut / len(rows) + 1e-9, axis=0)
    actual = trimmed_mean(torch.from_numpy(rows), torch.zeros(rows.shape[1]), tolerated)
    np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-5, atol=1e-5)


def score_by_definition(rows, i, tolerated):
    """Blanchard et al.: the sum of squared distances to the n - f - 2 nearest others."""
    distances = sorted(
        sum((a - b) ** 2 for a, b in zip(rows[i], rows[j], strict=True))
        for j in range(len(rows))
        if j != i
    )
    return sum(distances[: max(len(rows) - tolerated - 2, 1)])


@given(vectors.filter(lambda rows: len(rows) >= 4), st.integers(0, 2))
def test_krum_takes_a_row_of_least_score(rows, tolerated):
    scores = [score_by_definition(rows.tolist(), i, tolerated) for i in range(len(rows))]
    actual = krum(torch.from_numpy(rows), torch.zeros(rows.shape[1]), tolerated).numpy()
    chosen = [i for i in range(len(rows)) if (rows[i] == actual).all()]
    assert min(scores[i] for i in chosen) == pytest.approx(min(scores))


def test_multi_krum_leaves_the_outlier_out():
    rows = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [100.0, -100.0]])
    torch.testing.assert_close(multi_krum(rows, rows[0], 1), torch.tensor([0.5, 0.5]))


def test_norm_clipping_by_hand():
    # Changes of norm 5, 1 and 2 from (1, 1): the median is 2, so the first is cut to 2/5.
    before = torch.tensor([1.0, 1.0])
    rows = before + torch.tensor([[3.0, 4.0], [1.0, 0.0], [0.0, -2.0]])
    expected = before + torch.tensor([1.2 + 1.0, 1.6 - 2.0]) / 3
    torch.testing.assert_close(norm_clipping(rows, before, 0), expected)


@pytest.mark.parametrize("name", ROBUST)
def test_one_giant_cannot_carry_a_robust_rule_away(name):
    benign = torch.randn((9, 5), generator=torch.Generator().manual_seed(0))
    rows = torch.cat([benign, torch.full((1, 5), 1e6)])
    actual = AGGREGATION_RULES[name].combine(rows, torch.zeros(5), 1)
    assert actual.abs().max() <= benign.abs().max() + benign.norm(dim=1).max()


def test_rules_do_not_depend_on_the_order_of_clients():
    rows = torch.randn((5, 3), generator=torch.Generator().manual_seed(1))
    for name, rule in AGGREGATION_RULES.items():
        results = [
            rule.combine(rows[list(order)], torch.zeros(3), 1)
            for order in itertools.permutations(range(5))
        ]
        for other in results:
            torch.testing.assert_close(other, results[0], msg=name)


@given(st.floats(0.1, 3))
def test_the_server_goes_its_share_of_the_way(step):
    before, aggregate = torch.tensor([1.0, -2.0]), torch.tensor([3.0, 4.0])
    expected = before + step * (aggregate - before)
    torch.testing.assert_close(server_step(before, aggregate, step), expected)
    assert torch.equal(server_step(before, aggregate, 1.0), aggregate)


def test_training_with_a_robust_rule_differs_from_the_mean():
    federation = class_disjoint_federation()
    results = {}
    for name in AGGREGATION_RULES:
        tolerated = 1 if name in {"krum", "multi-krum", "trimmed-mean"} else 0
        recipe = Recipe(rounds=3, lr=0.1, batch_size=8, aggregation=name, tolerated=tolerated)
        job = group_job(federation, range(6), small_net(), recipe, 1)
        results[name] = train_group(job)
        assert results[name].stopped == "rounds"
    for name in ROBUST:
        assert (results[name].weights - results["mean"].weights).abs().max() > 1e-3
