"""Checks of what a client sends, before anything else uses it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

NOT_FINITE = "NaN or infinite values"


def vector(message: Any, length: int) -> npt.NDArray[Any] | str:
    """Return what a client sent as ``length`` numbers, or say why it is not that.

    The message may be anything at all; the numbers may be NaN or infinite.
    """
    if message is None:
        return "no answer"
    try:
        array = np.asarray(message)
    except (TypeError, ValueError, RuntimeError):  # ragged lists, tensors that are not plain
        return f"not an array of numbers ({type(message).__name__})"
    return form_fault(array.dtype, array.shape, length) or array


def form_fault(dtype: np.dtype[Any], shape: tuple[int, ...], length: int) -> str | None:
    """Say what is wrong with the kind of numbers or the shape of a message, if anything."""
    if dtype.kind not in "fiu":
        return f"not an array of numbers ({dtype})"
    if shape != (length,):
        return f"wrong shape: {shape} instead of ({length},)"
    return None


def fault(message: Any, length: int) -> str | None:
    """Say why a message cannot be used; None if it is ``length`` numbers, finite in float32."""
    found = vector(message, length)
    if isinstance(found, str):
        return found
    with np.errstate(over="ignore"):
        return None if np.isfinite(found.astype(np.float32)).all() else NOT_FINITE
