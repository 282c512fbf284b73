"""CA(m) over several seeds: mean and standard deviation, of one method and of several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np

from carvyfl.core.arrays import data_frame
from carvyfl.core.errors import CarvyError
from carvyfl.groups.basis import READINGS, Reading
from carvyfl.voting.certificate import Percent

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, eq=False)
class Spread:
    """Curves of CA(m) in percent, (seeds, points), that differ in the seed alone, 0 at the end."""

    curves: Percent

    @classmethod
    def of(cls, curves: Iterable[Sequence[float] | Percent]) -> Spread:
        """Put curves of CA(m), m = 0, 1, …, of any lengths together."""
        points = list(zip_longest(*curves, fillvalue=0.0))
        if not points:
            raise CarvyError("a mean over seeds needs at least one curve")
        return cls(np.ascontiguousarray(np.array(points, dtype=np.float64).T))

    def __repr__(self) -> str:
        return f"Spread({len(self.curves)} seeds, CA(0) {mean_sd(self.curves[:, 0])} %)"

    @property
    def mean(self) -> Percent:
        """The mean of every CA(m), in percent."""
        return np.asarray(self.curves.mean(axis=0))

    @property
    def sd(self) -> Percent:
        """The sample standard deviation of every CA(m), in percent; NaN for a single seed."""
        return sample_sd(self.curves)

    @property
    def auc(self) -> Percent:
        """The area under each seed's curve by the trapezoid rule, in percent × clients."""
        inner = self.curves.sum(axis=1) - self.curves[:, 0] / 2
        return np.asarray(inner - self.curves[:, -1] / 2)

    @property
    def band(self) -> tuple[Percent, Percent] | None:
        """Mean less and plus one standard deviation, within 0 to 100; None for a single seed."""
        if len(self.curves) < 2:
            return None
        return np.maximum(self.mean - self.sd, 0), np.minimum(self.mean + self.sd, 100)


@dataclass(frozen=True)
class Comparison:
    """CA(m) of methods, by name, on the same data, and their G; see :func:`carvyfl.compare`."""

    seeds: tuple[int, ...]
    reading: Reading
    methods: Mapping[str, Spread]
    groups: Mapping[str, tuple[int, ...]]

    def to_frame(self) -> DataFrame:
        """Return a pandas data frame with a row per method and m: mean and sd of CA(m) in %."""
        rows = [
            (name, m, mean, sd)
            for name, spread in self.methods.items()
            for m, (mean, sd) in enumerate(np.stack([spread.mean, spread.sd], axis=1).tolist())
        ]
        return data_frame(rows, ["method", "m", "mean", "sd"])

    def __str__(self) -> str:
        """Return a table: a row per m, mean ± sd of CA(m) in percent; the area below; and G."""
        length = max(len(spread.mean) for spread in self.methods.values())
        columns = [["m", *map(str, range(length)), "AUC", "G"]]
        for name, spread in self.methods.items():
            cells = list(map(mean_sd, spread.curves.T))
            ended = ["0.0"] * (length - len(cells))
            groups = " to ".join(map(str, sorted({min(self.groups[name]), max(self.groups[name])})))
            columns.append([name, *cells, *ended, mean_sd(spread.auc), groups])
        padded = [[f"{cell:>{max(map(len, column))}}" for cell in column] for column in columns]
        label = READINGS[self.reading].label
        head = f"CA(m) in %, {label}, mean ± standard deviation over {len(self.seeds)} seeds"
        return "\n".join([head, *map("  ".join, zip(*padded, strict=True))])

    def __repr__(self) -> str:
        areas = ", ".join(f"{name} {mean_sd(each.auc)}" for name, each in self.methods.items())
        return f"Comparison({len(self.seeds)} seeds, AUC of CA(m): {areas})"


def sample_sd(values: Percent) -> Percent:
    """Return the sample standard deviation (ddof 1) along the first axis; NaN for one value."""
    if len(values) < 2:
        return np.full(values.shape[1:], np.nan)
    return np.asarray(values.std(axis=0, ddof=1))


def mean_sd(values: Sequence[float] | Percent, digits: int = 1) -> str:
    """Return numbers as "mean ± sd", with so many decimal places; a single one as it is."""
    array = np.asarray(values, dtype=np.float64)
    mean = f"{array.mean():.{digits}f}"
    return mean if len(array) < 2 else f"{mean} ± {float(sample_sd(array)):.{digits}f}"
