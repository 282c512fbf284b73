"""Panels that only the reproduction draws: clients in the plane, and shaded tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from carvyfl.plots.draw import paint
from carvyfl.plots.figure import Floats
from carvyfl.plots.style import nth_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    values: Floats
    """Shape (rows, columns), in percent; NaN leaves a cell empty."""
    texts: Sequence[Sequence[str]]
    """The text in the cells, so that colour alone says nothing; same shape."""


@paint.register(Cloud)
def _paint_cloud(cloud: Cloud, axes: Axes) -> None:
    """Colour says the type found, the marker the true one."""
    points, labels, true = (np.asarray(v) for v in (cloud.points, cloud.labels, cloud.true))
    for label, real in sorted(set(zip(cloud.labels, cloud.true, strict=True))):
        x, y = points[(labels == label) & (true == real)].T
        colour, marker = nth_style(label).colour, nth_style(real).marker
        name = f"found {label + 1}, true {real + 1}"
        axes.scatter(x, y, color=colour, marker=marker, s=22, label=name)
    axes.set(xlabel="first principal component", ylabel="second principal component")
    axes.grid(alpha=0.3)
    axes.legend()


@paint.register(HeatMap)
def _paint_heat_map(panel: HeatMap, axes: Axes) -> None:
    image = axes.imshow(panel.values, cmap="cividis", vmin=0, vmax=100, aspect="auto")
    for (row, column), value in np.ndenumerate(panel.values):
        if math.isfinite(value):
            ink = "white" if value < 50 else "black"
            text = panel.texts[row][column]
            axes.text(column, row, text, ha="center", va="center", fontsize=6.5, color=ink)
    axes.set_xticks(range(len(panel.columns)), panel.columns, rotation=40, ha="right")
    axes.set_yticks(range(len(panel.rows)), panel.rows)
    figure = axes.get_figure()
    assert figure is not None
    figure.colorbar(image, ax=axes, label=panel.label, shrink=0.6)
