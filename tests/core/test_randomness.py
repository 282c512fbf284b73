"""Keys from a stem are those of the whole, and generators made many at a time NumPy's own."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from carvyfl.core.randomness import derive, derive_each, generators, stem

EDGES = [0, 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**64 - 1]


def test_the_states_are_those_of_thousands_of_generators() -> None:
    numbers = [*EDGES, *(derive(seed, "test", k) for seed in range(3) for k in range(1000))]
    found = [stream.bit_generator.state for stream in generators(numbers)]
    assert found == [np.random.default_rng(number).bit_generator.state for number in numbers]


@given(st.lists(st.integers(0, 2**64 - 1), max_size=5))
def test_nothing_of_a_generator_is_left_to_the_next(numbers: list[int]) -> None:
    """An odd number of 32-bit draws leaves half a word behind."""
    for number, stream in zip(numbers, generators(numbers), strict=True):
        expected = np.random.default_rng(number)
        assert stream.integers(2**32, dtype=np.uint32) == expected.integers(2**32, dtype=np.uint32)
        np.testing.assert_array_equal(stream.permutation(37), expected.permutation(37))
        stream.integers(2**32, dtype=np.uint32)


@given(st.integers(0, 2**40), st.text(max_size=5), st.integers(-1, 2**40), st.integers(-1, 2**40))
def test_a_number_derived_from_a_stem_is_that_of_the_whole_key(seed, purpose, client, round_):
    stems = [stem(seed, purpose, client), stem(seed, purpose)]
    expected = [derive(seed, purpose, client, round_), derive(seed, purpose, client)]
    assert derive_each(stems, [round_, client]).tolist() == expected
