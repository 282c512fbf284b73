"""Lies about profiles: the promise and the bound hold."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carvyfl.groups.exchange import imbalance
from reproduction.studies.__main__ import main
from reproduction.studies.profile_attacks import balance, table

FEW = ("--engine", "loop", "--workers", "1", "--commit", "abc1234", "--dataset", "embedded")
SMALL = ("--clients", "20", "--samples", "30", "--groups", "4", "--seeds", "0")
ATTACKS = ("complement", "crowd", "nan", "unheard-of", "honest-then-gone")


@pytest.mark.slow
def test_profile_attacks(tmp_path):
    options = ("--out", str(tmp_path), "--store", str(tmp_path / "store"), "--m", "1", "3")
    partitions = ("--partitions", "Dirichlet 0.3")
    main(["profile-attacks", *FEW, *SMALL, *options, *partitions, "--attacks", *ATTACKS])
    record = json.loads((tmp_path / "attacks.json").read_text())
    assert record["commit"] == "abc1234"
    assert record["config"]["data_dir"] is None
    rows = record["rows"]
    assert [(row["attack"], row["m"]) for row in rows] == [(a, m) for a in ATTACKS for m in (1, 3)]
    for row in rows:
        assert row["accuracy_worst"] >= row["ca_given_groups"]
        assert row["imbalance_honest"] <= row["imbalance_bound"] * (1 + 1e-9)
        assert row["groups_touched"] <= row["m"]
    found = {(row["attack"], row["m"]): row for row in rows}
    assert found["nan", 3]["groups_touched"] == 0  # set aside: no group has them
    assert found["nan", 3]["imbalance_honest"] == found["nan", 3]["imbalance_seen"]
    assert found["crowd", 3]["longest"] == pytest.approx(4 * np.sqrt(1 + 1 / 9), rel=1e-5)
    assert found["unheard-of", 3]["longest"] > 0.3  # a third of a full sketch, and no shares
    text = (tmp_path / "attacks.md").read_text()
    assert text == table(rows)
    assert len(text.splitlines()) == 2 + len(rows)


@given(seed=st.integers(0, 2**32), liars=st.integers(0, 6), groups=st.integers(1, 5))
def test_no_lie_breaks_the_bound(seed: int, liars: int, groups: int):
    draw = np.random.default_rng(seed)
    vectors = draw.normal(size=(12, 3)) * draw.choice([0.1, 10], (12, 1))
    assignment = draw.integers(-1, groups, 12)
    malicious = draw.choice(12, liars, replace=False)
    found = balance(vectors, assignment, malicious, groups)
    assert found.honest <= found.bound * (1 + 1e-9) + 1e-12
    assert found.together <= found.liars <= liars


def test_balance_is_the_imbalance_that_is_made_small():
    """Where groups are of equal size; a liar counts as a client that brings nothing."""
    draw = np.random.default_rng(0)
    vectors, assignment = draw.normal(size=(12, 3)), draw.permutation(np.arange(12) % 4)
    found = balance(vectors, assignment, np.array([2, 5]), 4)
    assert found.seen == pytest.approx(imbalance(vectors, assignment, 4))
    vectors[[2, 5]] = 0
    assert found.honest == pytest.approx(imbalance(vectors, assignment, 4))
    assert found.liars == 2


def test_balance_by_hand():
    """One liar takes three from its group."""
    vectors = np.array([[1.0], [1.0], [3.0], [-3.0], [1.0], [1.0]])
    found = balance(vectors, np.array([0, 0, 1, 1, 2, 2]), np.array([3]), 3)
    # Sums are 2, 0 and 2 as claimed, and 2, 3 and 2 without the liar.
    assert found.seen == pytest.approx(8 / 3)
    assert found.honest == pytest.approx(2 / 3)
    assert found.bound == pytest.approx((np.sqrt(8 / 3) + 3) ** 2)
