"""Pictures of a run: CA(m) of every method, and the members of every group."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from carvyfl.core.errors import CarvyError
from carvyfl.groups.basis import READINGS
from carvyfl.groups.grouping import Grouping, check_labels
from carvyfl.groups.methods import GROUPINGS
from carvyfl.plots.draw import draw, draw_grouping, png, save
from carvyfl.plots.figure import Curve, ca_panel
from carvyfl.plots.style import method_style
from carvyfl.voting.certificate import Certificate
from carvyfl.voting.spread import Comparison, Spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

Drawn = Certificate | Spread | npt.NDArray[np.float64]


@dataclass(frozen=True)
class Picture:
    """A drawing: a notebook shows it, ``save`` writes it."""

    figure: Drawing
    """The drawing, a ``matplotlib.figure.Figure`` that may be changed."""

    def save(self, *paths: str | os.PathLike[str]) -> None:
        """Write the drawing; the endings of the files (.png, .svg, .pdf) choose the formats."""
        save(self.figure, *map(Path, paths))

    def __repr__(self) -> str:
        return "Picture(); save(path) writes it, and a notebook shows it"

    def _repr_png_(self) -> bytes:
        return png(self.figure)


def plot(
    value: Grouping | Certificate | Comparison | Mapping[str, Drawn],
    *,
    types: npt.ArrayLike | None = None,
    title: str = "",
) -> Picture:
    """Draw a certificate, several of them together, a comparison, or groups.

    Parameters
    ----------
    value
        A certificate, or several by name: CA(m) with its 95 % interval. What
        :func:`~carvyfl.comparison.compare` found, or curves over seeds by name
        (:class:`~carvyfl.voting.spread.Spread`): their mean with one standard deviation.
        Arrays by name: CA(m) in percent, m = 0, 1, …
        A grouping: every client as a tile, by type and by group.
    types
        For a grouping, the type of every client, shape (N,): the colour of its tile, grey for -1.
    title
        What stands above the curves; above a comparison, by default its reading.
    """
    if isinstance(value, Grouping):
        clients = len(value.assignment)
        labels = check_labels(np.zeros(clients, int) if types is None else types, clients)
        return Picture(draw_grouping(value, labels))
    if isinstance(value, Certificate):
        value = {READINGS[value.reading].label: value}
    if isinstance(value, Comparison):
        title = title or READINGS[value.reading].label
        value = value.methods
    if not isinstance(value, Mapping) or not value:
        raise CarvyError(
            "plot draws a certificate, certificates by name, a comparison or a grouping, not "
            f"{type(value).__name__}"
        )
    curves = [_curve(name, own) for name, own in value.items()]
    return Picture(draw([ca_panel(title, curves)], inches=(7, 4.6)))


def _curve(name: str, own: Drawn) -> Curve:
    """Return a curve with its band; under a method's name it has the method's style."""
    band = None
    if isinstance(own, Spread):
        ca, band = own.mean, own.band
    elif isinstance(own, Certificate):
        ca, band = own.ca(), own.ca_interval()
    elif isinstance(own, np.ndarray):
        ca = own
    else:
        raise CarvyError(f"plot: '{name}' is no certificate but {type(own).__name__}")
    style = method_style(name) if name in GROUPINGS else None
    low, high = (None, None) if band is None else (band[0].tolist(), band[1].tolist())
    return Curve(style.label if style else name, range(len(ca)), ca.tolist(), low, high, style)
