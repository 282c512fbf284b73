"""Pictures of values: CA(m), and what clients and groups consist of."""

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
from carvyfl.plots.draw import draw, encoded, save
from carvyfl.plots.figure import Curve, Floats, Shares, ca_panel
from carvyfl.plots.style import method_style
from carvyfl.voting.certificate import Certificate
from carvyfl.voting.spread import Comparison, Spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

Drawn = Certificate | Spread | Floats


@dataclass(frozen=True)
class Picture:
    """A drawing: a notebook shows it, ``save`` writes it."""

    figure: Drawing
    """The drawing, a ``matplotlib.figure.Figure`` that may be changed."""

    def save(self, *paths: str | os.PathLike[str]) -> None:
        """Write the drawing; the endings of the files (.png, .svg, .pdf) choose the formats."""
        save(self.figure, *map(Path, paths))

    def _repr_png_(self) -> bytes:
        return encoded(self.figure, "png")


def plot(
    value: Grouping | Certificate | Comparison | Mapping[str, Drawn],
    *,
    types: npt.ArrayLike | None = None,
    shares: npt.ArrayLike | None = None,
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
        A grouping: what every client and every group consists of, beside all clients.
    types
        For a grouping, the type of every client, shape (N,), -1 for none.
    shares
        For a grouping, instead of types, how much each client holds of every class, shape (N, C).
    title
        What stands above the curves; above a comparison, by default its reading.
    """
    if isinstance(value, Grouping):
        clients = len(value.assignment)
        labels = check_labels(np.zeros(clients, int) if types is None else types, clients)
        weights, parts = by_type(labels)
        if shares is not None:
            weights = np.asarray(shares, dtype=np.float64)
            if weights.shape[:-1] != (clients,) or not (weights >= 0).all() or not weights.any():
                raise CarvyError(f"shares must be {clients} rows of numbers from 0 up, not all 0")
            parts = [f"class {c}" for c in range(weights.shape[1])]
        return Picture(draw(composition(value, weights, parts), inches=(10, 3)))
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
    curves = [_curve(name, drawn) for name, drawn in value.items()]
    return Picture(draw([ca_panel(title, curves)], inches=(7, 4.6)))


def by_type(
    labels: npt.NDArray[np.int64], names: Sequence[str] = ()
) -> tuple[Floats, Sequence[str]]:
    """Return clients' types, -1 for none, as what each client holds, and the types' names."""
    kinds = np.unique(labels).tolist()
    known = {kind: names[kind] if names else f"type {kind}" for kind in kinds if kind >= 0}
    return np.equal.outer(labels, kinds).astype(float), [known.get(k, "no type") for k in kinds]


def composition(grouping: Grouping, weights: Floats, parts: Sequence[str]) -> list[Shares]:
    """Return what each client and each group consists of, as two panels.

    ``weights`` are how much of every part each client holds, shape (N, K), zero where nothing is
    known; parts that nobody holds are left out.
    """
    held = np.flatnonzero(weights.sum(axis=0)).tolist()
    weights, names = weights[:, held], [parts[k] for k in held]
    overall = _shares(weights.sum(axis=0))
    clients = _shares(weights)
    order = np.lexsort([-clients.max(axis=1, initial=0), clients.argmax(axis=1)])
    order = order[weights.sum(axis=1)[order] > 0]
    groups = _shares(np.array([weights[members].sum(axis=0) for members in grouping.groups]))
    apart = 50 * np.abs(groups - overall).sum(axis=1).mean()
    title = (
        f"{method_style(grouping.method).label}, G = {grouping.num_groups}: on average "
        f"{apart:.0f} % of a group differs from all clients"
    )
    return [
        Shares("Clients", "client", [str(k) for k in order], names, clients[order], overall),
        Shares(title, "group", [str(g) for g in range(len(groups))], names, groups, overall),
    ]


def _shares(weights: Floats) -> Floats:
    total = weights.sum(axis=-1, keepdims=True)
    shares: Floats = weights / np.where(total > 0, total, 1.0)
    return shares


def _curve(name: str, drawn: Drawn) -> Curve:
    match drawn:
        case Spread():
            ca, band = drawn.mean, drawn.band
        case Certificate():
            ca, band = drawn.ca(), drawn.ca_interval()
        case np.ndarray():
            ca, band = drawn, None
        case _:
            raise CarvyError(f"plot: '{name}' is no certificate but {type(drawn).__name__}")
    style = method_style(name) if name in GROUPINGS else None
    low, high = (None, None) if band is None else (band[0].tolist(), band[1].tolist())
    return Curve(style.label if style else name, range(len(ca)), ca.tolist(), low, high, style)
