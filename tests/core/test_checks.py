"""Numbers from outside, of any size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from carvyfl.core.checks import number, seed_number, whole_number
from carvyfl.core.errors import CarvyError, printable, reason, shown


@pytest.mark.parametrize(
    "value", [10**9 + 1, 10**18, 10**5000, -(10**5000), np.uint64(2**63)], ids=range(5)
)
def test_a_number_of_any_size_is_refused_in_a_short_line(value: Any) -> None:
    with pytest.raises(CarvyError, match=r"^rounds must be a whole number of at least 1") as caught:
        whole_number(value, "rounds")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("value", [10**5000, 2**128, -(2**128)], ids=range(3))
def test_giant_seeds(value: int) -> None:
    with pytest.raises(CarvyError, match=r"^seed must be a whole number of at most 38 digits"):
        seed_number(value)


@pytest.mark.parametrize("value", [0, -1, 2**128 - 1, np.int64(-7), True])
def test_seeds_that_can_be_printed(value: int) -> None:
    assert seed_number(value) == int(value)


@pytest.mark.parametrize("value", [1.0, "1", None])
def test_what_is_no_seed(value: Any) -> None:
    with pytest.raises(CarvyError, match=r"^seed must be a whole number, not"):
        seed_number(value)


def test_values_in_messages_are_cut_and_harmless() -> None:
    assert shown("x" * 1000) == "'" + "x" * 59 + "…"
    assert shown(10**5000) == "something too large to print (int)"
    assert printable("a\x1b[2J\r\nb\u202ec\udcff") == "a�[2J��b�c�"
    with pytest.raises(CarvyError, match=r"^lr must be a number, not 'x"):
        number("x" * 10**6, "lr")


def test_the_reason_of_an_error_is_one_line_even_if_it_says_nothing() -> None:
    assert reason(ValueError("\nfirst\nsecond")) == "first"
    assert reason(RuntimeError()) == "RuntimeError"
