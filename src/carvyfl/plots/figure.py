"""What a figure shows, as values: panels of curves, bars, points or shaded cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from carvyfl.plots.style import CA, M, Style

Values = Sequence[float]


@dataclass(frozen=True)
class Curve:
    """A line of a panel."""

    name: str
    """Plain text for the legend and the table."""
    x: Values
    """Ascending."""
    y: Values
    """As many; NaN leaves a gap."""
    low: Values | None = None
    high: Values | None = None
    """A band around the line (spread, interval), as many values as ``y``."""
    style: Style | None = None
    """How it is drawn; None takes :func:`~carvyfl.plots.style.nth_style` of its position."""


@dataclass(frozen=True)
class Panel:
    """Curves over a common axis; without curves there is nothing to show yet."""

    title: str
    x_label: str
    y_label: str
    """Plain text; the axes with their units."""
    curves: Sequence[Curve]
    y_range: tuple[float, float] | None = (0.0, 100.0)
    """Both ends of the y axis; None fits the data."""
    faint: Sequence[tuple[Values, Values]] = ()
    """The points (x, y) of thin grey lines behind the curves, without name and numbers."""


def ca_panel(title: str, curves: Sequence[Curve]) -> Panel:
    """Return curves of CA(m), m = 0, 1, …, as a panel; one that ends early keeps its last value."""
    length = max(len(curve.y) for curve in curves)

    def longer(values: Values) -> Values:
        return [*values, *[values[-1]] * (length - len(values))]

    return Panel(
        title,
        M,
        CA,
        [
            replace(
                c,
                x=range(length),
                y=longer(c.y),
                low=c.low and longer(c.low),
                high=c.high and longer(c.high),
            )
            for c in curves
        ],
    )


@dataclass(frozen=True)
class Bar:
    """A bar of a histogram."""

    start: float
    stop: float
    """Where it stands on the x axis."""
    height: float
    """A count, or any number from 0 up."""
    name: str
    """What it counts, for the table."""
    striped: bool = False
    """Whether it belongs to the second kind, which is drawn striped."""


@dataclass(frozen=True)
class Histogram:
    """Bars of two kinds, from left to right; at least one."""

    title: str
    x_label: str
    y_label: str
    bars: Sequence[Bar]
    kinds: tuple[str, str]
    """What the plain bars and the striped bars are, for the legend."""


@dataclass(frozen=True)
class Cloud:
    """Clients in the plane: position, type found and true type, one entry per client."""

    title: str
    points: Sequence[tuple[float, float]]
    labels: Sequence[int]
    true: Sequence[int]


@dataclass(frozen=True, eq=False)
class HeatMap:
    """A table whose cells are shaded by percentages."""

    title: str
    label: str
    """What the shades stand for."""
    rows: Sequence[str]
    columns: Sequence[str]
    values: npt.NDArray[np.float64]
    """Shape (rows, columns), in percent; NaN leaves a cell empty."""
    texts: Sequence[Sequence[str]]
    """The text in the cells, so that colour alone says nothing; same shape."""
