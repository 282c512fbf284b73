"""Arrays and messages from others, checked before anything uses them; tables for pandas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from carvyfl.core.errors import CarvyError

if TYPE_CHECKING:
    from pandas import DataFrame

T = TypeVar("T", bound=Sized)
NOT_FINITE = "NaN or infinite values"


def plain_array(values: Any, where: str, dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
    """Return ``np.asarray(values)``, which would take what lies under a mask for values."""
    if _masked(values):
        raise CarvyError(f"{where}: masked entries have no value; fill them in or leave them out")
    return np.asarray(values, dtype)


def _masked(values: Any) -> bool:
    if isinstance(values, list | tuple):
        return any(map(_masked, values))
    return isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values)


def in_parts(items: Iterable[T], most: int) -> Iterator[list[T]]:
    """Cut items into successive parts of total length ``most`` at most; a longer one is alone."""
    part: list[T] = []
    length = 0
    for item in items:
        if part and length + len(item) > most:
            yield part
            part, length = [], 0
        part.append(item)
        length += len(item)
    if part:
        yield part


def data_frame(
    table: Mapping[str, Any] | Sequence[tuple[Any, ...]], names: list[str] | None = None
) -> DataFrame:
    """Return columns of one length, or rows and the columns' names, as a pandas data frame."""
    try:
        from pandas import DataFrame
    except ModuleNotFoundError as error:
        message = "to_frame needs pandas, which is not installed; pip install pandas"
        raise CarvyError(message) from error
    return DataFrame(table, columns=names)


# --- what a client sends ------------------------------------------------------------------------


def vector(message: Any, length: int) -> npt.NDArray[Any] | str:
    """Return what a client sent as ``length`` numbers, NaN and ∞, too, or say why it is not."""
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
    return None if shape == (length,) else f"wrong shape: {shape} instead of ({length},)"


def fault(message: Any, length: int) -> str | None:
    """Say why a message cannot be used; None if it is ``length`` numbers, finite in float32."""
    numbers = vector(message, length)
    if isinstance(numbers, str):
        return numbers
    with np.errstate(over="ignore"):
        return None if np.isfinite(numbers.astype(np.float32)).all() else NOT_FINITE
