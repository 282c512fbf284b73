"""Arrays of what users give, and arrays joined on several cores."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from carvyfl.core.environment import usable_cores
from carvyfl.core.errors import CarvyError

N = TypeVar("N", bound=np.generic)
AT_ONCE = 128
"""Arrays that a thread copies before it takes others."""


def plain_array(values: Any, where: str, dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
    """Return ``np.asarray(values)``, which would take what lies under a mask for values."""
    if _masked(values):
        raise CarvyError(f"{where}: masked entries have no value; fill them in or leave them out")
    return np.asarray(values, dtype)


def _masked(values: Any) -> bool:
    if isinstance(values, list | tuple):
        return any(map(_masked, values))
    return isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values)


def joined(arrays: Sequence[npt.NDArray[N]]) -> npt.NDArray[N]:
    """Return ``np.concatenate(arrays)``, copied on a few cores: new memory is slow to fill.

    There is at least one array, and all are of one type.
    """
    ends = np.cumsum([len(array) for array in arrays])
    whole = np.empty((ends[-1], *arrays[0].shape[1:]), arrays[0].dtype)

    def copy_some(first: int) -> None:
        some = arrays[first : first + AT_ONCE]
        end = ends[first + len(some) - 1]
        np.concatenate(some, out=whole[end - sum(map(len, some)) : end])

    with ThreadPoolExecutor(min(4, usable_cores())) as threads:
        list(threads.map(copy_some, range(0, len(arrays), AT_ONCE)))
    return whole
