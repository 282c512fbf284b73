"""The headline areas of the paper, of its own settings and of our defaults, side by side."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from carvyfl.paper import tables
from carvyfl.paper.published import DATASETS, METHODS, PRESETS, SWEEP_SAMPLES
from carvyfl.paper.summaries import label, paper_size

HEAD = (
    f"AUC, {SWEEP_SAMPLES} samples a client",
    "paper",
    *(f"preset {preset}" for preset in PRESETS),
)


def overview(found: Mapping[str, pd.DataFrame]) -> list[list[str]]:
    """Return a line for every data set, measure and method: paper, then each preset.

    Parameters
    ----------
    found
        The trials of every preset.
    """
    lines = []
    alike = [paper_size(found[preset]) for preset in PRESETS]
    attacked = [tables.asr_areas(trials).texts() for trials in alike]
    for dataset, name in DATASETS.items():
        certified = [tables.ca_areas(trials, dataset).texts() for trials in alike]
        rows = [
            (f"{name}, CA: {m}", certified, (str(SWEEP_SAMPLES), m)) for m in map(label, METHODS)
        ]
        rows += [(f"{name}, 100 − ASR: {m}", attacked, (m, name)) for m in map(label, METHODS)]
        for title, texts, cell in rows:
            printed = str(texts[0].loc[cell, "paper"])  # all presets share it
            lines.append([title, printed, *(str(text.loc[cell, "ours"]) for text in texts)])
    return lines
