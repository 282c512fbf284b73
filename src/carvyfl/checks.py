"""What is asked of numbers, whichever step they belong to."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def are_whole(numbers: npt.NDArray[Any]) -> bool:
    """Whether all are whole numbers, as integers or as floats such as 2.0."""
    if numbers.dtype.kind == "f":
        return bool((np.isfinite(numbers) & (numbers == np.floor(numbers))).all())
    return numbers.dtype.kind in "iu"
