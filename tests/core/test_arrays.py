"""Arrays joined on several cores."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from carvyfl.core import arrays


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=3 * arrays.AT_ONCE),
    st.sampled_from([(), (2,), (2, 3)]),
)
def test_joined_arrays_are_concatenated(lengths: list[int], shape: tuple[int, ...]) -> None:
    ends = np.cumsum(lengths)
    whole = np.arange(ends[-1] * np.prod(shape, dtype=int)).reshape(ends[-1], *shape)
    parts = [whole[end - n : end] for n, end in zip(lengths, ends, strict=True)]
    np.testing.assert_array_equal(arrays.joined(parts), np.concatenate(parts))
