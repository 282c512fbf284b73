"""What a figure shows, as values: panels of curves, bars, points, tiles or shaded cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from carvyfl.plots.style import CA, M, Style

Ints = npt.NDArray[np.int64]
PERCENT = (0.0, 100.0)


@dataclass(frozen=True)
class Curve:
    """A line of a panel.

    Attributes
    ----------
    name
        Plain text for the legend and the table.
    x, y
        The points, x ascending; NaN in y leaves a gap.
    low, high
        A band around the line (spread, interval), as many values as ``y``; or None.
    style
        How it is drawn; None takes :func:`~carvyfl.plots.style.nth_style` of its position.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    style: Style | None = None


@dataclass(frozen=True)
class Panel:
    """Curves over a common axis.

    Attributes
    ----------
    title, x_label, y_label
        Plain text; the axes with their units.
    curves
        None of them: there is nothing to show yet.
    y_range
        Both ends of the y axis; None fits the data.
    faint
        The points (x, y) of thin grey lines behind the curves, without name and numbers.
    """

    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]
    y_range: tuple[float, float] | None = PERCENT
    faint: Sequence[tuple[Sequence[float], Sequence[float]]] = ()


def ca_panel(title: str, curves: Sequence[Curve]) -> Panel:
    """Return curves of CA(m), m = 0, 1, …, as a panel; one that ends early keeps its last value."""
    length = max(len(curve.y) for curve in curves)

    def extended(values: Sequence[float]) -> list[float]:
        return [*values, *[values[-1]] * (length - len(values))]

    def longer(c: Curve) -> Curve:
        low, high = c.low and extended(c.low), c.high and extended(c.high)
        return Curve(c.name, range(length), extended(c.y), low, high, c.style)

    return Panel(title, M, CA, [longer(curve) for curve in curves])


@dataclass(frozen=True)
class Bar:
    """A bar of a histogram.

    Attributes
    ----------
    start, stop
        Where it stands on the x axis.
    height
        A count, or any number from 0 up.
    name
        What it counts, for the table.
    striped
        Whether it belongs to the second kind, which is drawn striped.
    """

    start: float
    stop: float
    height: float
    name: str
    striped: bool = False


@dataclass(frozen=True)
class Histogram:
    """Bars of two kinds.

    Attributes
    ----------
    title, x_label, y_label
        As in :class:`Panel`.
    bars
        At least one, from left to right.
    kinds
        What the plain bars and the striped bars are, for the legend.
    """

    title: str
    x_label: str
    y_label: str
    bars: Sequence[Bar]
    kinds: tuple[str, str]


@dataclass(frozen=True)
class Cloud:
    """Clients in the plane: position, type found and true type, one entry per client."""

    title: str
    points: Sequence[tuple[float, float]]
    labels: Sequence[int]
    true: Sequence[int]


@dataclass(frozen=True, eq=False)
class HeatMap:
    """A table whose cells are shaded by percentages.

    Attributes
    ----------
    title, label
        What is shown, and what the shades stand for.
    rows, columns
        Names, from the top and from the left.
    values
        Shape (rows, columns), in percent; NaN leaves a cell empty.
    texts
        The text in the cells, so that colour alone says nothing; same shape.
    """

    title: str
    label: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: npt.NDArray[np.float64]
    texts: Sequence[Sequence[str]]


@dataclass(frozen=True, eq=False)
class Tiles:
    """Every client a tile, in named stacks.

    Attributes
    ----------
    title, note, what
        What is shown, what is to be known about it, and what a stack is.
    stacks
        A name and the clients (numbers from 0 up) of every stack.
    shade, num_shades
        The colour of each client's tile, shape (N,), and how many colours there are;
        that number itself stands for none, which is grey.
    """

    title: str
    note: str
    what: str
    stacks: Sequence[tuple[str, Ints]]
    shade: Ints
    num_shades: int

    @property
    def depth(self) -> int:
        """The number of clients in the largest stack."""
        return max(len(members) for _, members in self.stacks)
