"""Pictures of a run: CA(m) of every method, and the members of every group."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from carvyfl.core.errors import CarvyError
from carvyfl.groups.basis import READINGS
from carvyfl.groups.grouping import Grouping, check_labels
from carvyfl.groups.methods import GROUPINGS
from carvyfl.plots.draw import draw, draw_tiles, png, save
from carvyfl.plots.figure import Curve, Ints, Tiles, ca_panel
from carvyfl.plots.style import method_style
from carvyfl.voting.certificate import Certificate
from carvyfl.voting.spread import Spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


@dataclass(frozen=True)
class Picture:
    """A drawing: a notebook shows it, ``save`` writes it.

    Attributes
    ----------
    figure
        The drawing, a ``matplotlib.figure.Figure`` that may be changed.
    """

    figure: Drawing

    def save(self, *paths: str | os.PathLike[str]) -> None:
        """Write the drawing; the endings of the files (.png, .svg, .pdf) choose the formats."""
        save(self.figure, *map(Path, paths))

    def __repr__(self) -> str:
        return "Picture(); save(path) writes it, and a notebook shows it"

    def _repr_png_(self) -> bytes:
        return png(self.figure)


def plot(
    value: Certificate | Grouping | Mapping[str, Certificate] | Mapping[str, Spread],
    *,
    types: npt.ArrayLike | None = None,
    title: str = "",
) -> Picture:
    """Draw a certificate, several of them together, or groups.

    Parameters
    ----------
    value
        A certificate, or several by name: CA(m) with its 95 % interval. Curves over seeds by
        name (:class:`~carvyfl.voting.spread.Spread`): their mean with one standard deviation.
        A grouping: every client as a tile.
    types
        For a grouping, the type of every client, shape (N,): the colour of its tile.
    title
        What stands above the curves.
    """
    if isinstance(value, Grouping):
        none = np.zeros(len(value.assignment), np.int64)
        return Picture(grouping_drawing(value, none if types is None else types))
    if isinstance(value, Certificate):
        value = {READINGS[value.reading].label: value}
    if not isinstance(value, Mapping) or not value:
        raise CarvyError(
            "plot draws a certificate, certificates by name, or a grouping, not "
            f"{type(value).__name__}"
        )
    curves = [_curve(name, own) for name, own in value.items()]
    return Picture(draw([ca_panel(title, curves)], inches=(7, 4.6)))


def _curve(name: str, own: Certificate | Spread) -> Curve:
    """Return a curve with its band; under a method's name it has the method's style."""
    if isinstance(own, Spread):
        ca, band = own.mean, own.band
    elif isinstance(own, Certificate):
        ca, band = own.ca(), own.ca_interval()
    else:
        raise CarvyError(f"plot: '{name}' is no certificate but {type(own).__name__}")
    style = method_style(name) if name in GROUPINGS else None
    low, high = (None, None) if band is None else (band[0].tolist(), band[1].tolist())
    return Curve(style.label if style else name, range(len(ca)), ca.tolist(), low, high, style)


def plot_ca(curves: Mapping[str, npt.NDArray[np.float64]], path: Path, *, title: str) -> None:
    """Draw CA(m) of every method, as in the paper's figures.

    Parameters
    ----------
    curves
        CA(m) in percent for m = 0, 1, …, ending at the first zero, by method.
    path
        The image to write; the ending chooses the format.
    title
        What was run.
    """
    drawn = []
    for method, ca in curves.items():
        style = method_style(method)
        drawn.append(Curve(style.label, range(len(ca)), ca.tolist(), style=style))
    save(draw([ca_panel(title, drawn)], inches=(7, 4.6)), path)


def plot_grouping(grouping: Grouping, types: npt.ArrayLike, path: str | os.PathLike[str]) -> None:
    """Write the picture of :func:`grouping_drawing`; the ending of the path chooses the format."""
    save(grouping_drawing(grouping, types), Path(path))


def grouping_drawing(grouping: Grouping, types: npt.ArrayLike) -> Drawing:
    """Draw every client as a tile: by type above, by group below.

    Parameters
    ----------
    grouping
        The groups.
    types
        The type of every client, shape (N,); the colour of its tile, grey for -1.
    """
    labels = check_labels(types, len(grouping.assignment))
    kinds = np.unique(labels[labels >= 0])
    shade = np.searchsorted(kinds, labels)
    shade[labels < 0] = len(kinds)
    by_type = [(str(kind), np.flatnonzero(labels == kind)) for kind in kinds]
    by_type += _leftover(np.flatnonzero(labels < 0), by_type)
    by_group = [(str(g), m[np.argsort(shade[m])]) for g, m in enumerate(grouping.groups)]
    by_group += _leftover(grouping.benched, by_group)
    diversity = grouping.mean_diversity(labels)
    note = f"'{grouping.method}', G = {grouping.num_groups}, mean diversity {diversity:.2f}"
    panels = [
        Tiles("Clients by type", "", "type", by_type, shade, len(kinds)),
        Tiles("Clients by group", note, "group", by_group, shade, len(kinds)),
    ]
    return draw_tiles(panels)


def _leftover(clients: Ints, stacks: Sequence[tuple[str, Ints]]) -> list[tuple[str, Ints]]:
    """Stack clients without a type or group no higher than the others."""
    depth = max(len(members) for _, members in stacks)
    pieces = np.split(clients, range(depth, len(clients), depth)) if len(clients) else []
    return [("" if position else "none", piece) for position, piece in enumerate(pieces)]
