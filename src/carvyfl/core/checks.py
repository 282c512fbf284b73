"""Checks of numbers that several steps use."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from carvyfl.core.errors import CarvyError


def are_whole(numbers: npt.NDArray[Any]) -> bool:
    """Whether all are whole numbers, as integers or as floats such as 2.0."""
    if numbers.dtype.kind == "f":
        return bool((np.isfinite(numbers) & (numbers == np.floor(numbers))).all())
    return numbers.dtype.kind in "iu"


def is_number(value: Any) -> bool:
    """Whether this is a real number, Python's or NumPy's; NaN and infinity are, booleans not."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def number(value: Any, name: str) -> int | float:
    """Return a setting as Python's int or float if it is a number, or say what is wrong."""
    if not is_number(value):
        raise CarvyError(f"{name} must be a number, not {value!r}")
    return int(value) if isinstance(value, (int, np.integer)) else float(value)


def whole_number(value: Any, name: str, least: int = 1) -> int:
    """Return a setting if it is a whole number of at least ``least``, or say what is wrong."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and value >= least:
        return int(value)
    raise CarvyError(f"{name} must be a whole number of at least {least}, not {value!r}")
