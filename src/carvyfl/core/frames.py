"""Tables for pandas, where it is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from carvyfl.core.errors import CarvyError

if TYPE_CHECKING:
    from pandas import DataFrame


def data_frame(
    table: Mapping[str, Any] | Sequence[tuple[Any, ...]], names: list[str] | None = None
) -> DataFrame:
    """Return columns of one length, or rows and the columns' names, as a pandas data frame."""
    try:
        from pandas import DataFrame
    except ModuleNotFoundError as error:
        raise CarvyError("to_frame needs pandas, which is not installed; pip install pandas") from (
            error
        )
    return DataFrame(table, columns=names)
