"""Which settings a recipe takes, and that it keeps them as plain numbers."""

from __future__ import annotations

import copy
import inspect
import json
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np
import pytest

from carvyfl import CarvyError, Recipe


def test_ordinary_settings_stay_what_they_are() -> None:
    """The key of a stored group is made of this text."""
    assert json.dumps(asdict(Recipe(lr=1, patience=3, aggregation="krum", tolerated=1))) == (
        '{"algorithm": "scaffold", "rounds": 150, "lr": 1, "lr_min": 0.0001, "batch_size": 16, '
        '"patience": 3, "min_improvement": 0.0001, "server_step": 1.0, "aggregation": "krum", '
        '"tolerated": 1}'
    )


def test_numpy_numbers_become_pythons() -> None:
    recipe = Recipe(
        rounds=np.int64(3),  # type: ignore[arg-type]
        batch_size=np.uint8(8),  # type: ignore[arg-type]
        patience=np.int32(2),  # type: ignore[arg-type]
        lr=np.float32(0.5),  # type: ignore[arg-type]
        lr_min=np.float64(0.25),
        server_step=np.int64(1),  # type: ignore[arg-type]
    )
    plain = Recipe(rounds=3, batch_size=8, patience=2, lr=0.5, lr_min=0.25, server_step=1)
    assert json.dumps(asdict(recipe)) == json.dumps(asdict(plain))
    assert {type(value) for value in asdict(recipe).values()} == {str, int, float}


@pytest.mark.parametrize("name", ["rounds", "batch_size", "patience", "tolerated"])
@pytest.mark.parametrize("value", [1.5, 2.0, "3", True, -1, [1]])
def test_what_counts_must_be_whole(name: str, value: Any) -> None:
    with pytest.raises(CarvyError) as caught:
        Recipe(**{name: value, "aggregation": "krum"})
    least = 0 if name == "tolerated" else 1
    assert str(caught.value) == (
        f"{name} must be a whole number of at least {least}, not {value!r}"
    )


@pytest.mark.parametrize("name", ["lr", "lr_min", "min_improvement", "server_step"])
@pytest.mark.parametrize("value", ["0.1", None, True, 1j, np.ones(2)])
def test_the_others_must_be_numbers(name: str, value: Any) -> None:
    with pytest.raises(CarvyError) as caught:
        Recipe(**{name: value})
    assert str(caught.value) == f"{name} must be a number, not {value!r}"


@pytest.mark.parametrize("name", ["lr", "lr_min", "min_improvement", "server_step"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1])
def test_numbers_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(CarvyError, match=name):
        Recipe(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("round", "unknown parameter of Recipe 'round'; did you mean 'rounds'?"),
        ("epochs", "unknown parameter of Recipe 'epochs'; .*known: .*batch_size.* rounds"),
    ],
)
def test_an_unknown_parameter_is_answered_with_the_known_ones(name: str, words: str) -> None:
    with pytest.raises(CarvyError, match=words):
        Recipe(**{name: 3})  # type: ignore[arg-type]


def test_a_recipe_is_made_copied_and_shown_as_before() -> None:
    recipe = Recipe("fedavg", 7, lr=0.5)
    assert copy.deepcopy(recipe) == recipe  # made without parameters, as from a pickle
    assert replace(recipe, rounds=8).rounds == 8
    assert list(inspect.signature(Recipe).parameters) == [field.name for field in fields(Recipe)]
