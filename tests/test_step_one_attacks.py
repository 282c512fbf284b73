"""Attacks on Step 1: they do what they say, and no honest client's type moves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from carvyfl.attacks.step_one import STEP_ONE_ATTACKS, attacked, orthogonal
from carvyfl.grouping import form_groups
from carvyfl.grouping.slots import without
from carvyfl.inference.bias_profile import bias_profile_types
from carvyfl.inference.reports import Updates, collect
from carvyfl.inference.types import ClientTypes
from carvyfl.training.one_epoch import one_epoch_updates
from carvyfl.training.recipe import Recipe
from federations import class_disjoint_federation, small_net

MALICIOUS = np.array([1, 7])


@pytest.fixture(scope="module")
def updates() -> Updates:
    federation = class_disjoint_federation(per_type=5, size=40)
    return one_epoch_updates(federation, small_net(), Recipe(rounds=1, lr=0.05), 0, workers=1)


def named(types: ClientTypes) -> list[str | None]:
    return [None if label < 0 else types.names[label] for label in types.labels.tolist()]


@pytest.mark.parametrize("attack", STEP_ONE_ATTACKS)
def test_honest_reports_and_types_stay(updates: Updates, attack: str):
    before = named(bias_profile_types(updates))
    found = attacked(updates, attack, MALICIOUS, np.random.default_rng(0))
    honest = np.delete(np.arange(len(updates)), MALICIOUS)
    assert np.array_equal(found.values[honest], updates.values[honest])
    after = named(bias_profile_types(found))
    assert [after[i] for i in honest] == [before[i] for i in honest]
    assert set(found.set_aside) == (set(MALICIOUS) if attack in {"nan", "infinity"} else set())


@settings(max_examples=50, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_no_report_changes_more_groups_than_promised(
    updates: Updates, data: st.DataObject, seed: int
):
    """The adversary may report anything at all; types, slots and the coupling are the real ones."""
    sent = list(updates.values)
    length = updates.values.shape[1]
    anything = st.one_of(
        st.none(),
        hnp.arrays(np.float32, length, elements=st.floats(width=32)),
        st.sampled_from([*updates.values, *(-updates.values), *(1e30 * updates.values)]),
    )
    for client in MALICIOUS:
        sent[client] = data.draw(anything)
    found = collect(
        sent,
        length=length,
        lr=updates.lr,
        steps=updates.steps,
        num_classes=updates.num_classes,
        head=updates.head,
    )
    types = bias_profile_types(found)
    grouping = form_groups("carvy", num_clients=10, seed=seed, types=types, num_groups=4)
    honest_only = without(grouping.assignment, types.labels, MALICIOUS, np.random.default_rng(seed))
    changed = [
        g
        for g, members in enumerate(grouping.groups)
        if members.tolist() != np.flatnonzero(honest_only == g).tolist()
    ]
    assert len(changed) <= len(MALICIOUS)
    # The honest-only grouping knows nothing of the malicious: every type fills its own slots.
    clean = bias_profile_types(updates).labels
    for kind in np.unique(clean):
        own = honest_only[[i for i in np.flatnonzero(clean == kind) if i not in MALICIOUS]]
        placed = own[own >= 0].tolist()
        assert len(placed) == len(set(placed)) == min(len(own), 4)


def test_orthogonal_is_orthogonal_and_as_long_as_it_says(updates: Updates):
    honest = np.delete(np.arange(len(updates)), MALICIOUS)
    usual = np.median(np.linalg.norm(updates.values[honest], axis=1))
    sent = orthogonal(updates.values, MALICIOUS, np.random.default_rng(0), scale=2.0, shared=False)
    assert np.linalg.norm(sent[MALICIOUS], axis=1) == pytest.approx(2 * usual, rel=1e-4)
    assert np.abs(sent[MALICIOUS] @ sent[honest].T).max() < 1e-4 * usual**2
    assert abs(float(sent[1] @ sent[7])) < 1e-4 * usual**2


def test_a_giant_overflows_a_sum_but_not_its_own_report(updates: Updates):
    found = attacked(updates, "giant", MALICIOUS, np.random.default_rng(0))
    assert np.isfinite(found.values).all()
    with np.errstate(over="ignore"):
        assert np.isinf(found.values.sum(axis=0, dtype=np.float32)).all()


def test_unheard_of_is_a_type_of_its_own(updates: Updates):
    before = named(bias_profile_types(updates))
    sent = attacked(updates, "unheard-of", MALICIOUS, np.random.default_rng(0))
    after = named(bias_profile_types(sent))
    # Two types of two classes each: the opposite of one must not pass for the same one.
    assert all(after[i] != before[i] for i in MALICIOUS)


def test_flood_makes_one_type_grow(updates: Updates):
    before = bias_profile_types(updates)
    after = bias_profile_types(attacked(updates, "flood", MALICIOUS, np.random.default_rng(0)))
    grown = {after.names[after.labels[i]] for i in MALICIOUS}
    assert len(grown) == 1
    (name,) = grown
    honest = np.delete(np.arange(len(updates)), MALICIOUS)
    truth = [before.names[before.labels[i]] == name for i in honest]
    assert after.sizes[after.names.index(name)] == sum(truth) + 2
