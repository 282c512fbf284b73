"""Numbers from outside, of any size, and values as one line of a message."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch import nn

from carvyfl import Recipe
from carvyfl.core.checks import number, seed_number, whole_number
from carvyfl.core.errors import CarvyError, call_text, printable, reason, shown, value_text
from carvyfl.data.clients import Client, Federation, Samples
from carvyfl.data.datasets import load
from carvyfl.groups.basis import BLIND
from carvyfl.groups.grouping import Grouping
from carvyfl.learning.job import GroupResult
from carvyfl.voting.certificate import certify
from carvyfl.voting.votes import votes


@pytest.mark.parametrize("value", [10**9 + 1, 10**5000, np.uint64(2**63)], ids=range(3))
def test_a_number_of_any_size_is_refused_in_a_short_line(value: Any) -> None:
    with pytest.raises(CarvyError, match=r"^rounds must be a whole number of at least 1") as caught:
        whole_number(value, "rounds")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (10**5000, "of at most 38 digits"),
        (2**128, "of at most 38 digits"),
        (-(2**128), "of at most 38 digits"),
        (1.0, ", not 1.0"),
        (None, ", not None"),
    ],
    ids=range(5),
)
def test_what_is_no_seed(value: Any, words: str) -> None:
    with pytest.raises(CarvyError, match=f"^seed must be a whole number ?{words}"):
        seed_number(value)


def test_seeds_that_can_be_printed() -> None:
    for value in (0, -1, 2**128 - 1, np.int64(-7)):
        assert seed_number(value) == int(value)


def test_values_in_messages_are_cut_and_harmless() -> None:
    assert shown("x" * 1000) == "'" + "x" * 59 + "…"
    assert shown(10**5000) == "something too large to print (int)"
    assert printable("a\x1b[2J\r\nb\u202ec\udcff") == "a�[2J��b�c�"
    with pytest.raises(CarvyError, match=r"^lr must be a number, not 'x"):
        number("x" * 10**6, "lr")


def test_the_reason_of_an_error_is_one_line_even_if_it_says_nothing() -> None:
    assert reason(ValueError("\nfirst\nsecond")) == "first"
    assert reason(RuntimeError()) == "RuntimeError"


def test_only_what_differs_is_written() -> None:
    assert call_text("f", {"a": 1, "b": 2}, {"a": 1, "b": 3}) == "f(b=2)"
    assert call_text("f", {"a": 1, "b": 2}, {}, first=["a"]) == "f(1, b=2)"
    assert call_text("f", {"a": True}, {"a": 1}) == "f(a=True)"


def test_large_values_are_named_by_their_kind() -> None:
    assert value_text(nn.Sequential(nn.Linear(1, 1))) == "<Sequential>"
    assert value_text(np.zeros((3, 2))) == "<ndarray of shape (3, 2)>"
    assert value_text(len) == "<len>"
    assert len(value_text("x" * 1000)) < 100


def test_values_of_a_run_are_one_short_line() -> None:
    samples = Samples(np.zeros((3, 2), np.float32), np.array([0, 1, 1]))
    client = Client(samples, samples.take([]))
    small = Client(samples.take([0]), samples.take([]))
    result = GroupResult(nn.Linear(3, 2).weight.detach().flatten(), (0.25, 0.5), "rounds")
    shown = {
        repr(Federation((client, small), 2)): ("2 clients", "1 to 3 training", "2 classes"),
        repr(Federation((), 2)): ("0 clients",),
        repr(load("embedded")): ("'embedded'", "1×28×28", "10 classes"),
        repr(Grouping(np.array([0, 1, 1, -1]), 2, "mine", BLIND)): ("4 clients", "of 1 to 2"),
        repr(result): ("6 weights", "2 rounds", "stopped: rounds", "0.50"),
        repr(certify(votes([[0, 1], [0, 0], [0, 1]], 2), [0, 1])): ("2 inputs", "3 gr", "100.0"),
        repr(certify(votes([[0, 1]], 2))): ("no labels",),
        repr(Recipe()): ("Recipe()",),
        repr(Recipe(rounds=3)): ("Recipe(rounds=3)",),
    }
    for text, words in shown.items():
        assert "\n" not in text
        assert len(text) < 120
        assert all(word in text for word in words), text
    assert eval(repr(Recipe(rounds=3, lr=0.5))) == Recipe(rounds=3, lr=0.5)
