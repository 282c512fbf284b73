"""Parts: nothing is lost, none is longer than allowed, and none could have been longer."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from carvyfl.core.parts import in_parts


@given(lengths=st.lists(st.integers(0, 9)), most=st.integers(1, 12))
def test_parts_are_as_long_as_allowed_and_no_longer(lengths: list[int], most: int) -> None:
    items = ["x" * length for length in lengths]
    parts = list(in_parts(items, most))
    assert [item for part in parts for item in part] == items
    for part in parts:
        assert len("".join(part)) <= most or len(part) == 1
    for part, following in pairwise(parts):
        assert len("".join(part)) + len(following[0]) > most
