"""A wrong field is answered with the right one; Python's own questions are not."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from typing import Any

import pytest

from carvyfl import CarvyError
from carvyfl.core.registry import NamedFields


@dataclass(frozen=True)
class Seen(NamedFields):
    weights: int
    controls: int

    @property
    def size(self) -> int:
        return self.weights + self.controls


def test_the_nearest_name_is_suggested_and_all_are_listed() -> None:
    seen: Any = Seen(1, 2)
    assert (seen.weights, seen.size) == (1, 3)
    with pytest.raises(CarvyError, match="Seen has no 'wieghts'; did you mean 'weights'") as caught:
        seen.wieghts  # noqa: B018
    assert str(caught.value).endswith("it has: weights, controls, size")
    with pytest.raises(CarvyError, match="did you mean 'size'"):
        seen.sizes  # noqa: B018


def test_values_are_copied_pickled_and_asked_as_before() -> None:
    seen = Seen(1, 2)
    assert copy.deepcopy(seen) == seen
    assert pickle.dumps(seen)  # as it is sent to worker processes
    assert not hasattr(seen, "nothing")
    assert getattr(seen, "nothing", 7) == 7
