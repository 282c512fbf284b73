from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carvyfl.core.errors import CarvyError
from carvyfl.groups.anticluster import anticluster, permuted_types

SEEDS = st.integers(0, 2**32)
LABELS = st.lists(st.integers(-1, 6), min_size=1, max_size=80).filter(lambda v: max(v) >= 0)


@st.composite
def labels_and_number(draw: st.DrawFn) -> tuple[npt.NDArray[np.int64], int]:
    labels = np.array(draw(LABELS))
    return labels, draw(st.integers(1, int(np.count_nonzero(labels >= 0))))


def partition(assignment: npt.NDArray[np.int64]) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(assignment == g).tolist()) for g in set(assignment) - {-1}}


def algorithm_2(lists: list[list[int]]) -> list[set[int]]:
    """Transcribe lines 4-14 of the paper's pseudo-code, given the permuted clusters."""
    groups = []
    while any(h != [] for h in lists):
        g: set[int] = set()
        for h in lists:
            if h != []:
                g = g | {h.pop(0)}
        groups.append(g)
    return groups


@given(labels_and_number(), SEEDS)
def test_sizes_and_types_are_spread_to_within_one(
    case: tuple[npt.NDArray[np.int64], int], seed: int
) -> None:
    labels, num_groups = case
    assignment = anticluster(labels, seed=seed, num_groups=num_groups)
    assert assignment.dtype == np.int64
    np.testing.assert_array_equal(assignment == -1, labels == -1)
    sizes = [int((assignment == g).sum()) for g in range(num_groups)]
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1
    for kind in set(labels.tolist()) - {-1}:
        held = [int(((assignment == g) & (labels == kind)).sum()) for g in range(num_groups)]
        assert sum(held) == (labels == kind).sum()
        assert max(held) - min(held) <= 1
        if sum(held) <= num_groups:
            assert max(held) == 1


@given(LABELS, SEEDS)
def test_literal_is_the_pseudo_code(labels: list[int], seed: int) -> None:
    lists = [members.tolist() for members in permuted_types(labels, seed, "anticluster")]
    kinds = sorted(set(labels) - {-1})
    of_kind = [[k for k, label in enumerate(labels) if label == kind] for kind in kinds]
    assert [sorted(members) for members in lists] == of_kind
    expected = algorithm_2(lists)
    assignment = anticluster(labels, seed=seed, literal=True)
    assert [set(np.flatnonzero(assignment == g).tolist()) for g in range(len(expected))] == expected
    # There are as many groups as the largest type has clients.
    assert assignment.max() == anticluster(labels, seed=seed).max() == len(expected) - 1
    assert len(expected) == max(map(len, of_kind))


@given(st.integers(1, 6), st.integers(1, 12), st.randoms(), SEEDS)
def test_equal_types_give_algorithm_2(
    num_types: int, size: int, shuffle: object, seed: int
) -> None:
    labels = [kind for kind in range(num_types) for _ in range(size)]
    shuffle.shuffle(labels)  # type: ignore[attr-defined]
    lists = [members.tolist() for members in permuted_types(labels, seed, "anticluster")]
    expected = {frozenset(g) for g in algorithm_2(lists)}
    assert partition(anticluster(labels, seed=seed)) == expected


@given(st.integers(0, 4), st.lists(st.integers(1, 19), min_size=1, max_size=4, unique=True), SEEDS)
def test_a_split_type_still_reaches_every_group(split: int, cuts: list[int], seed: int) -> None:
    truth = np.repeat(np.arange(5), 20)
    # Client k is the (k mod 20)-th of its true type; the split one falls into adjacent pieces.
    piece = np.where(truth == split, np.searchsorted(sorted(cuts), np.arange(100) % 20, "right"), 0)
    labels = truth + np.where(truth > split, len(cuts), 0) + piece
    assert len(set(labels.tolist())) == 5 + len(cuts)

    def all_five(assignment: npt.NDArray[np.int64]) -> list[bool]:
        return [len(set(truth[assignment == g])) == 5 for g in range(assignment.max() + 1)]

    continuous = anticluster(labels, seed=seed)
    literal = anticluster(labels, seed=seed, literal=True)
    assert continuous.max() + 1 == literal.max() + 1 == 20
    assert all(all_five(continuous))
    assert not all(all_five(literal))


def test_if_all_types_are_split_the_sweep_still_holds() -> None:
    truth = np.repeat(np.arange(5), 20)
    labels = 2 * truth + (np.arange(100) % 20 >= 12)  # ten pieces of 12 and 8: G = 12
    assert len({frozenset(partition(anticluster(labels, seed=seed))) for seed in range(4)}) == 4
    for seed in range(20):
        continuous = anticluster(labels, seed=seed)
        literal = anticluster(labels, seed=seed, literal=True)
        assert {len(set(truth[continuous == g])) for g in range(12)} == {5}
        assert {int((continuous == g).sum()) for g in range(12)} == {8, 9}
        assert {int((literal == g).sum()) for g in range(12)} == {5, 10}


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        *(
            ([0, 1, -1, 0], {"num_groups": n}, f"^{n} groups cannot be formed of 3 clients")
            for n in (0, -1, 4)
        ),
        ([0, 1], {"num_groups": 2, "literal": True}, "literally"),
        ([-1, -1], {}, "no client has a usable type"),
        ([0, -3], {}, "-3"),
        ([0.5, 1.0], {}, "whole numbers"),
    ],
)
def test_mistakes_are_named(labels: list[int], options: Any, message: str) -> None:
    with pytest.raises(CarvyError, match=message):
        anticluster(labels, seed=0, **options)
