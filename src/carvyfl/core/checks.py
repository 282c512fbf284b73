"""Checks of numbers that several steps use."""

from __future__ import annotations

import math
import operator
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from carvyfl.core.errors import CarvyError, shown

T = TypeVar("T")

LARGEST = 10**9  # of settings that count something: more would take all memory, or years
SEED_BITS = 128


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
    if is_number(value):
        return int(value) if isinstance(value, (int, np.integer)) else float(value)
    raise CarvyError(f"{name} must be a number, not {shown(value)}")


def positive(value: Any, name: str) -> float:
    """Return a setting if it is a finite number above 0, or say what is wrong."""
    if is_number(value) and 0 < value < math.inf:
        return float(value)
    raise CarvyError(f"{name} must be a finite number above 0, not {shown(value)}")


def whole_number(value: Any, name: str, least: int = 1) -> int:
    """Return a whole number from ``least`` to a billion, or say what is wrong."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if whole and least <= value <= LARGEST:
        return int(value)
    most = f" and at most {LARGEST:,}" if whole and value > LARGEST else ""
    raise CarvyError(f"{name} must be a whole number of at least {least}{most}, not {shown(value)}")


def check_length(name: str, length: int, number: int, of: str = "client") -> None:
    """Refuse a parameter that does not have one entry for every client, or group."""
    if length != number:
        raise CarvyError(
            f"`{name}` has {length} entries, but there are {number} {of}s; give one for every {of}"
        )


def returned(value: Any, kind: type[T], where: str) -> T:
    """Return what the variant ``where`` returned if it is of the right kind, or say so."""
    if not isinstance(value, kind):
        raise CarvyError(f"{where} must return a {kind.__name__}, not {type(value).__name__}")
    return value


def seed_number(value: Any) -> int:
    """Return a seed if it is a whole number of a size that can be printed, or say what is wrong."""
    try:
        seed = operator.index(value)
    except TypeError as error:
        raise CarvyError(f"seed must be a whole number, not {shown(value)}") from error
    if seed.bit_length() > SEED_BITS:
        raise CarvyError(f"seed must be a whole number of at most 38 digits, not {shown(value)}")
    return seed
