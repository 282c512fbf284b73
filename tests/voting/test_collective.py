"""The collective certificate against programs that try everything, written here from scratch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import optimize

from carvyfl.core.errors import CarvyError
from carvyfl.voting import collective as module
from carvyfl.voting.collective import collective
from carvyfl.voting.votes import NO_VOTE, votes
from support.elections import winner

Columns = Sequence[tuple[int, ...]]


def withstands(column: tuple[int, ...], label: int, chosen: Any, num_classes: int) -> bool:
    """Try everything that the chosen groups could vote, on this one input."""
    for new in product(range(NO_VOTE, num_classes), repeat=len(chosen)):
        changed = list(column)
        for at, vote in zip(chosen, new, strict=True):
            changed[at] = vote
        if winner(tuple(changed), num_classes) != label:
            return False
    return True


def brute_force(columns: Columns, labels: list[int], k: int, num_classes: int) -> int:
    """Count the answers that the worst of all sets of k groups leaves."""
    return min(
        sum(withstands(c, y, chosen, num_classes) for c, y in zip(columns, labels, strict=True))
        for chosen in combinations(range(len(columns[0])), k)
    )


@st.composite
def cases(
    draw: st.DrawFn, most_groups: int = 5, most_inputs: int = 6
) -> tuple[Columns, list[int], int]:
    num_classes = draw(st.integers(2, 3))
    num_groups = draw(st.integers(1, most_groups))
    vote = st.integers(NO_VOTE, num_classes - 1)
    columns = draw(st.lists(st.tuples(*[vote] * num_groups), min_size=1, max_size=most_inputs))
    size = len(columns)
    # mostly what the groups say, so that something is left to lose
    winners = [max(winner(column, num_classes), 0) for column in columns]
    other = draw(st.lists(st.integers(0, num_classes - 1), min_size=size, max_size=size))
    right = draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))
    labels = [y if lucky else z for y, z, lucky in zip(winners, other, right, strict=True)]
    return columns, labels, num_classes


def ballots(columns: Columns, num_classes: int) -> Any:
    return votes(np.array(columns).T, num_classes)


@pytest.mark.parametrize("programme", [False, True])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases())
def test_brute_force_gives_the_same(
    programme: bool, case: tuple[Columns, list[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if programme:
        monkeypatch.setattr(module, "SETS_AT_MOST", 0)
    columns, labels, num_classes = case
    groups, n = len(columns[0]), len(columns)
    certified = collective(ballots(columns, num_classes), labels, most=groups)
    expected = [100 * brute_force(columns, labels, k, num_classes) / n for k in range(groups + 1)]
    assert certified.ca.tolist() == pytest.approx(expected)
    assert certified.exact.all()


def larger(seed: int, groups: int = 11, inputs: int = 150) -> tuple[Any, list[int]]:
    """Votes of groups that are right in two cases of three, with some silent ones."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, inputs)
    right = rng.random((groups, inputs)) < 0.65
    table = np.where(right, labels, rng.integers(NO_VOTE, 4, (groups, inputs)))
    return votes(table, 4), labels.tolist()


@pytest.mark.parametrize("seed", range(3))
def test_programme_and_enumeration_agree_on_larger_cases(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """And small pieces of memory change nothing."""
    ballot, labels = larger(seed, groups=9, inputs=30)
    tried = collective(ballot, labels)
    monkeypatch.setattr(module, "CELLS", 1)
    assert collective(ballot, labels).ca.tolist() == tried.ca.tolist()
    monkeypatch.setattr(module, "SETS_AT_MOST", 0)
    solved = collective(ballot, labels)
    assert solved.ca.tolist() == tried.ca.tolist()
    assert solved.exact.all()


@pytest.mark.parametrize("seconds", [0.0, 1e-3, 0.05])
def test_a_bound_that_stops_early_is_sound(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    ballot, labels = larger(4, groups=12, inputs=300)
    exact = collective(ballot, labels, most=6)
    monkeypatch.setattr(module, "SETS_AT_MOST", 0)
    early = collective(ballot, labels, most=6, seconds=seconds)
    assert (early.ca <= exact.ca + 1e-9).all()
    assert (early.ca[early.exact] == exact.ca[early.exact]).all()


def test_a_solver_without_an_answer_leaves_a_sound_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing found and nothing proved: every contested input counts as lost."""
    ballot, labels = larger(5)
    exact = collective(ballot, labels, most=4)
    monkeypatch.setattr(module, "SETS_AT_MOST", 0)
    nothing = SimpleNamespace(mip_dual_bound=None, status=1, fun=None, x=None)
    monkeypatch.setattr(optimize, "milp", lambda *a, **b: nothing)
    found = collective(ballot, labels, most=4)
    assert (found.ca <= exact.ca).all()
    assert found.exact[0]
    assert not found.exact[1:].all()


@pytest.mark.parametrize("seed", range(5))
def test_it_lies_between_ca_of_m_and_ca_of_none(seed: int) -> None:
    """CA(m) is counted here by the definition: the lead over each rival, a tie to the smaller."""
    ballot, labels = larger(seed)
    found = collective(ballot, labels)
    for m, share in enumerate(found.ca):
        alone = 0
        for column, y in zip(ballot.groups.T.tolist(), labels, strict=True):
            lead = min(column.count(y) - column.count(r) - (r < y) for r in range(4) if r != y)
            alone += lead >= 2 * m
        assert share >= 100 * alone / len(labels) - 1e-9
        assert share <= found.ca[0]
    assert (np.diff(found.ca) <= 0).all()
    assert found.ca[-1] == 0


def test_a_client_that_changes_two_groups_counts_twice() -> None:
    ballot, labels = larger(6)
    once = collective(ballot, labels, most=6)
    twice = collective(ballot, labels, most=3, groups_per_client=2)
    assert twice.ca.tolist() == once.ca[::2].tolist()
    assert twice.groups_per_client == 2


def test_bad_requests_are_refused() -> None:
    ballot = ballots([(0, 1, 0)], 2)
    refused: list[tuple[list[int], dict[str, Any], str]] = [
        ([0], {"groups_per_client": 0}, "groups_per_client must be a whole number of at least 1"),
        ([0], {"most": 1.5}, "most must be a whole number of at least 0, not 1.5"),
        ([0, 1], {}, "one label per input"),
        ([2], {}, "the label of input 0 is 2"),
    ]
    for labels, options, message in refused:
        with pytest.raises(CarvyError, match=message):
            collective(ballot, labels, **options)
