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


WHOLE = {"rounds": 1, "batch_size": 1, "patience": 1, "tolerated": 0}
NUMBERS = ("lr", "lr_min", "min_improvement", "server_step")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *(
            ({name: value, "aggregation": "krum"}, f"{name} must be a whole number of at least {n}")
            for name, n in WHOLE.items()
            for value in (1.5, 2.0, "3", True, n - 1, [1])
        ),
        *(
            ({name: value}, f"{name} must be a number, not")
            for name in NUMBERS
            for value in ("0.1", None, True, 1j, np.ones(2))
        ),
        *(({name: value}, name) for name in NUMBERS for value in (float("nan"), float("inf"), -1)),
        ({"lr": 0.1, "lr_min": 0.2}, "0 < lr_min <= lr"),
        ({"lr_min": 0.0}, "0 < lr_min <= lr"),
        ({"server_step": 0.0}, "server_step must be above 0"),
        ({"aggregation": "average"}, "unknown aggregation 'average'"),
        ({"algorithm": "fedprox"}, "unknown training algorithm 'fedprox'"),
        ({"tolerated": 2}, "leave it at 0"),
        ({"tolerated": 2, "aggregation": "median"}, "leave it at 0"),
        ({"round": 3}, "unknown parameter of Recipe 'round'; did you mean 'rounds'?"),
        ({"epochs": 3}, "unknown parameter of Recipe 'epochs'; .*known: .*batch_size.* rounds"),
    ],
)
def test_what_no_recipe_can_have_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(CarvyError, match=message):
        Recipe(**settings)


def test_a_recipe_is_made_copied_and_shown_as_before() -> None:
    recipe = Recipe("fedavg", 7, lr=0.5)
    assert copy.deepcopy(recipe) == recipe  # made without parameters, as from a pickle
    assert replace(recipe, rounds=8).rounds == 8
    assert list(inspect.signature(Recipe).parameters) == [field.name for field in fields(Recipe)]
