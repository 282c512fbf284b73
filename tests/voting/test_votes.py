from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from carvyfl.core.errors import CarvyError
from carvyfl.voting import votes as voting
from carvyfl.voting.votes import (
    NO_VOTE,
    argmax_votes,
    check_labels,
    plurality,
    predict,
    tallies,
    tally,
    votes,
)

C = 4
ballots = hnp.arrays(
    np.int16, st.tuples(st.integers(1, 9), st.integers(1, 12)), elements=st.integers(NO_VOTE, C - 1)
)


def counted_by_hand(groups: np.ndarray, num_classes: int) -> list[list[int]]:
    tables = [Counter(column.tolist()) for column in groups.T]
    return [[table[c] for c in range(num_classes)] for table in tables]


@given(ballots)
def test_every_vote_counts_and_the_smallest_of_the_most_voted_wins(groups: np.ndarray) -> None:
    counts, by_hand = tally(votes(groups, C)), counted_by_hand(groups, C)
    assert counts.dtype == np.int32
    assert counts.tolist() == by_hand
    winners = [row.index(max(row)) if any(row) else NO_VOTE for row in by_hand]
    assert predict(votes(groups, C)).tolist() == winners


@given(ballots, st.integers(1, 40))
def test_slices_do_not_change_the_counts_or_the_labels(groups: np.ndarray, cells: int) -> None:
    cast = votes(groups, C)
    whole, labels = tally(cast), predict(cast)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(voting, "_CELLS_AT_ONCE", cells)
        parts = list(tallies(cast))
        assert predict(cast).tolist() == labels.tolist()
    assert [i for part, _ in parts for i in range(part.start, part.stop)] == list(range(len(whole)))
    assert np.concatenate([counts for _, counts in parts]).tolist() == whole.tolist()


def test_worked_example() -> None:
    #                input: clear  tie of 1 and 2  nobody votes  one voter only
    cast = votes([[2, 1, -1, -1], [2, 2, -1, 3], [0, 2, -1, -1], [2, 1, -1, -1]])
    assert (cast.num_groups, cast.num_inputs, cast.num_classes) == (4, 4, 4)
    assert tally(cast, 1, 3).tolist() == [[0, 2, 2, 0], [0, 0, 0, 0]]
    assert plurality(tally(cast)).tolist() == [2, 1, NO_VOTE, 3]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "uint16", "int32", "uint64", "int64"])
def test_any_integer_type_is_kept_and_not_copied(dtype: str) -> None:
    groups = np.array([[0, 1, 2], [2, 1, 1]], dtype=dtype)
    cast = votes(groups)
    assert cast.groups is groups
    assert tally(cast).tolist() == [[1, 0, 1], [0, 2, 0], [0, 1, 1]]


def test_the_number_of_classes_is_given_or_follows_from_the_votes() -> None:
    groups = np.array([[255, 0], [255, 254]], dtype=np.uint8)
    assert predict(votes(groups)).tolist() == [255, 0]
    assert predict(votes([[70_000, 3], [70_000, 3], [1, 2]])).tolist() == [70_000, 3]
    given = [([[0, 0]], None), ([[-1]], None), ([[0, 4]], None), ([[0, 4]], 9)]
    assert [votes(*each).num_classes for each in given] == [2, 2, 5, 9]


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: votes([0, 1]), "votes of shape (2,)"),
        (lambda: votes(np.zeros((0, 3), dtype=int)), "at least one of each"),
        (lambda: votes(np.zeros((3, 0), dtype=int)), "at least one of each"),
        (lambda: votes([[0.0, 1.0]]), "votes of type float64"),
        (lambda: votes([[True, False]]), "votes of type bool"),
        (lambda: votes(np.zeros((2, 2), "m8[s]")), "votes of type timedelta64[s]"),
        (lambda: votes([[0, 1], [1, -2]]), "group 1 votes -2 on input 1"),
        (lambda: votes([[0, 1], [3, 5]], 3), "group 1 votes 3 on input 0; classes are 0 to 2"),
        (lambda: votes([[0, 10**12]]), "group 0 votes 1000000000000 on input 1"),
        (lambda: votes([[0, 1]], 1), "1 classes"),
        (lambda: votes([[0, 1]], 10**9), "1000000000 classes"),
        (lambda: labelled([0, 1]), "labels of shape (2,) for 3 inputs"),
        (lambda: labelled([[0, 1, 2]]), "labels of shape (1, 3)"),
        (lambda: labelled([0.0, 1.5, 2.0]), "labels of type float64: give class numbers as whole"),
        (lambda: labelled([0.0, float("nan"), 2.0]), "labels of type float64"),
        (lambda: labelled([0.0, 1.0, float("inf")]), "labels of type float64"),
        (lambda: labelled([True, False, True]), "labels of type bool"),
        (lambda: labelled(["0", "1", "2"]), "labels of type <U1"),
        (
            lambda: labelled([0, 1, 3]),
            "the label of input 2 is 3; classes are 0 to 2; if there are more, set num_classes",
        ),
        (lambda: labelled([0.0, 1.0, 3.0]), "the label of input 2 is 3.0; classes are 0 to 2"),
        (lambda: labelled([0, -1, 1]), "the label of input 1 is -1; classes are 0 to 2"),
        (lambda: labelled([0, 10**9, 1]), "the label of input 1 is 1000000000; classes are 0 to 2"),
        (lambda: argmax_votes(np.zeros(3)), "logits of shape (3,)"),
        (lambda: argmax_votes(np.zeros((2, 2, 1))), "at least 2 classes"),
        (lambda: argmax_votes(np.zeros((2, 2, 2), dtype=complex)), "logits of type complex128"),
        (lambda: argmax_votes(np.zeros((0, 2, 2))), "at least one of each"),
    ],
)
def test_what_means_nothing_is_refused(check: Callable[[], object], message: str) -> None:
    with pytest.raises(CarvyError) as caught:
        check()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    # More classes are suggested only where they help.
    assert ("set num_classes" in str(caught.value)) == ("2 is 3" in str(caught.value))


def labelled(labels: object) -> object:
    return check_labels(labels, 3, 3)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.uint8, np.int64])
def test_whole_labels_of_any_type_are_labels(dtype: type) -> None:
    labels = check_labels(np.array([2, 0, 1], dtype), 3, 3)
    assert labels.dtype == np.int64
    assert labels.tolist() == [2, 0, 1]


LOGITS = [
    [[0.1, 3.0, -1.0], [2.0, 2.0, 1.0]],  # the second row ties: the smaller class
    [[np.nan, 9.0, 0.0], [0.0, 0.0, np.inf]],
    [[-np.inf, 1.0, 2.0], [-3.0, -2.0, -1.0]],
]
CAST = [[1, 0], [NO_VOTE, NO_VOTE], [NO_VOTE, 2]]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_argmax_votes_of_tensors(dtype: torch.dtype) -> None:
    cast = argmax_votes(torch.tensor(LOGITS, dtype=dtype, requires_grad=True))
    assert cast.groups.dtype == np.int16
    assert cast.num_classes == 3
    assert cast.groups.tolist() == CAST


def test_argmax_votes_of_arrays_and_of_one_group() -> None:
    assert argmax_votes(np.array(LOGITS)).groups.tolist() == CAST
    assert argmax_votes(np.array(LOGITS[0])).groups.tolist() == CAST[:1]
    wide = np.zeros((1, 1, 40_000), dtype=np.float32)
    wide[0, 0, 39_999] = 1
    assert argmax_votes(wide).groups.tolist() == [[39_999]]
