"""Keys from a stem are those of the whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from carvyfl.core.randomness import derive, derive_each, stem


@given(st.integers(0, 2**40), st.text(max_size=5), st.integers(-1, 2**40), st.integers(-1, 2**40))
def test_a_number_derived_from_a_stem_is_that_of_the_whole_key(seed, purpose, client, round_):
    stems = [stem(seed, purpose, client), stem(seed, purpose)]
    expected = [derive(seed, purpose, client, round_), derive(seed, purpose, client)]
    assert derive_each(stems, [round_, client]).tolist() == expected
