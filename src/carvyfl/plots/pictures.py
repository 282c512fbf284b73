"""Pictures of a run: CA(m) of every method, and the members of every group."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from carvyfl.groups.grouping import Grouping, check_labels
from carvyfl.plots.draw import draw, draw_tiles, save
from carvyfl.plots.figure import Curve, Ints, Tiles, ca_panel
from carvyfl.plots.style import method_style


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
    """Draw every client as a tile: by type above, by group below.

    Parameters
    ----------
    grouping
        The groups.
    types
        The type of every client, shape (N,); the colour of its tile, grey for -1.
    path
        The image to write; the ending chooses the format.
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
    save(draw_tiles(panels), Path(path))


def _leftover(clients: Ints, stacks: Sequence[tuple[str, Ints]]) -> list[tuple[str, Ints]]:
    """Stack clients without a type or group no higher than the others."""
    depth = max(len(members) for _, members in stacks)
    pieces = np.split(clients, range(depth, len(clients), depth)) if len(clients) else []
    return [("" if position else "none", piece) for position, piece in enumerate(pieces)]
