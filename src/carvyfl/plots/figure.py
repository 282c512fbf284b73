"""What a figure shows, as values: panels of curves, and of stacked shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from carvyfl.plots.style import CA, M, Style

Floats = npt.NDArray[np.float64]
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
    marked: float | None = None
    """Where a vertical line stands; the x axis then begins at 0."""


def ca_panel(title: str, curves: Sequence[Curve]) -> Panel:
    """Return curves of CA(m), m = 0, 1, …, as a panel; one that ends early keeps its last value."""
    length = max(len(curve.y) for curve in curves)

    def extended(values: Values) -> Values:
        return [*values, *[values[-1]] * (length - len(values))]

    longer = []
    for curve in curves:
        sides = {side: getattr(curve, side) for side in ("y", "low", "high")}
        known: dict[str, Any] = {s: extended(v) for s, v in sides.items() if v is not None}
        longer.append(replace(curve, x=range(length), **known))
    return Panel(title, M, CA, longer)


@dataclass(frozen=True, eq=False)
class Shares:
    """What groups, or clients, consist of: a stacked bar for each, and one for all together."""

    title: str
    label: str
    """What a bar stands for."""
    names: Sequence[str]
    """The names of the B bars."""
    parts: Sequence[str]
    """The names of the K parts of a bar."""
    shares: Floats
    """Shape (B, K), 0…1; a row adds up to 1, or to 0 where nothing is known."""
    overall: Floats
    """The shares of all together, shape (K,)."""
