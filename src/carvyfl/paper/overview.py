"""The headline areas of the paper, of its own settings and of our defaults, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from carvyfl.paper import tables
from carvyfl.paper.grid import Table
from carvyfl.paper.published import DATASETS, METHODS, PRESETS, SWEEP_SAMPLES
from carvyfl.paper.quantities import paper_size
from carvyfl.paper.records import Record
from carvyfl.plots.style import method_style

HEAD = ("AUC, 500 samples a client", "paper", *(f"preset {preset}" for preset in PRESETS))


def overview(found: Mapping[str, Sequence[Record]]) -> list[list[str]]:
    """Return a line for every data set, measure and method: paper, then each preset.

    Parameters
    ----------
    found
        The records of every preset.
    """
    lines = []
    alike = {preset: paper_size(found[preset]) for preset in PRESETS}
    attacked = [tables.asr_areas(alike[preset]) for preset in PRESETS]
    for dataset, name in DATASETS.items():
        certified = [tables.ca_areas(alike[preset], dataset) for preset in PRESETS]
        for method in METHODS:
            label = method_style(method).label
            lines.append(_line(f"{name}, CA: {label}", certified, str(SWEEP_SAMPLES), label))
        for method in METHODS:
            label = method_style(method).label
            lines.append(_line(f"{name}, 100 − ASR: {label}", attacked, label, name))
    return lines


def _line(title: str, grids: Sequence[Table], row: str, column: str) -> list[str]:
    """Return the paper's number, which all presets share, and each preset's."""
    printed = grids[0].printed(row, column)
    return [title, printed, *(grid.ours(row, column) for grid in grids)]
