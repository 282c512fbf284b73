"""Values as one line."""

from __future__ import annotations

import numpy as np
from torch import nn

from carvyfl import Recipe
from carvyfl.core.errors import call_text, value_text
from carvyfl.data.clients import Client, Federation, Samples
from carvyfl.data.datasets import load
from carvyfl.groups.basis import BLIND
from carvyfl.groups.grouping import Grouping
from carvyfl.learning.job import GroupResult
from carvyfl.voting.certificate import certify
from carvyfl.voting.votes import votes


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
        repr(Grouping(np.array([0, 1, 1, -1]), 2, "mine", BLIND)): (
            "4 clients",
            "of 1 to 2",
            "1 in",
        ),
        repr(result): ("6 weights", "2 rounds", "stopped: rounds", "0.50"),
        repr(certify(votes([[0, 1], [0, 0], [0, 1]], 2), [0, 1])): (
            "2 inputs",
            "3 groups",
            "100.0",
        ),
        repr(certify(votes([[0, 1]], 2))): ("no labels",),
        repr(Recipe()): ("Recipe()",),
        repr(Recipe(rounds=3)): ("Recipe(rounds=3)",),
    }
    for text, words in shown.items():
        assert "\n" not in text
        assert len(text) < 120
        assert all(word in text for word in words), text
    assert eval(repr(Recipe(rounds=3, lr=0.5))) == Recipe(rounds=3, lr=0.5)
