"""Arrays joined on several cores."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from carvyfl.core.environment import usable_cores

N = TypeVar("N", bound=np.generic)
AT_ONCE = 128
"""Arrays that a thread copies before it takes others."""


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
