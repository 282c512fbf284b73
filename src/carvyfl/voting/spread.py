"""CA(m) of one method over several seeds: mean and standard deviation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from carvyfl.core.errors import CarvyError
from carvyfl.voting.certificate import Percent


@dataclass(frozen=True, eq=False)
class Spread:
    """Curves of CA(m) that differ in the seed alone.

    Attributes
    ----------
    curves
        In percent, shape (seeds, points). A curve that has ended goes on with zeros.
    """

    curves: Percent

    @classmethod
    def of(cls, curves: Iterable[Sequence[float] | Percent]) -> Spread:
        """Put curves of CA(m), m = 0, 1, …, of any lengths together."""
        own = [np.asarray(curve, dtype=np.float64) for curve in curves]
        if not own:
            raise CarvyError("a mean over seeds needs at least one curve")
        together = np.zeros((len(own), max(map(len, own))))
        for row, curve in zip(together, own, strict=True):
            row[: len(curve)] = curve
        return cls(together)

    def __repr__(self) -> str:
        return f"Spread({len(self.curves)} seeds, CA(0) {mean_sd(self.curves[:, 0])} %)"

    @property
    def mean(self) -> Percent:
        """The mean of every CA(m) over the seeds, in percent."""
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
