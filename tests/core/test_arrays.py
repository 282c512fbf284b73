"""Arrays joined on several cores."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carvyfl.core import arrays
from carvyfl.core.errors import CarvyError
from carvyfl.groups.basis import BLIND
from carvyfl.groups.grouping import Grouping
from carvyfl.profiles.covariates import checked_table
from carvyfl.profiles.types import given_types
from carvyfl.voting.overlap import check_members
from carvyfl.voting.votes import argmax_votes, check_labels, votes

MASKED = np.ma.masked_less(np.array([[1, 0], [1, 1]]), 1)


@pytest.mark.parametrize(
    "taken",
    [
        lambda: votes(MASKED),
        lambda: votes(list(MASKED)),
        lambda: votes([[1, np.ma.masked], [1, 1]]),
        lambda: check_labels(MASKED[0], 2, 2),
        lambda: argmax_votes(MASKED * 0.5),
        lambda: check_members(MASKED, 2),
        lambda: given_types(MASKED[0]),
        lambda: checked_table(MASKED),
        lambda: Grouping(MASKED[0], 2, "test", BLIND),
    ],
)
def test_what_lies_under_a_mask_is_never_used(taken: Callable[[], object]) -> None:
    with pytest.raises(CarvyError, match=": masked entries have no value; fill them in or leave"):
        taken()


def test_a_mask_that_hides_nothing_changes_nothing() -> None:
    assert votes(np.ma.masked_less(MASKED.data, 0)).groups.tolist() == [[1, 0], [1, 1]]


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=3 * arrays.AT_ONCE),
    st.sampled_from([(), (2,), (2, 3)]),
)
def test_joined_arrays_are_concatenated(lengths: list[int], shape: tuple[int, ...]) -> None:
    ends = np.cumsum(lengths)
    whole = np.arange(ends[-1] * np.prod(shape, dtype=int)).reshape(ends[-1], *shape)
    parts = [whole[end - n : end] for n, end in zip(lengths, ends, strict=True)]
    np.testing.assert_array_equal(arrays.joined(parts), np.concatenate(parts))
