"""One-shot learning: draw and tabulate what was measured, the CNN's records beside it."""

from __future__ import annotations

import json
from argparse import Namespace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from carvyfl.core.errors import CarvyError
from carvyfl.core.files import write_text
from carvyfl.groups.methods import GROUPINGS
from carvyfl.paper.markdown import markdown
from carvyfl.paper.published import DATASETS
from carvyfl.paper.studies.one_shot import LEVEL
from carvyfl.plots.draw import draw, save
from carvyfl.plots.figure import Curve, Panel
from carvyfl.plots.style import CA, M, method_style
from carvyfl.voting.spread import mean_sd

DRAWN = ("carvy", "flcert")
"""The groupings of the figure."""
SIZES = ("50", "500")
"""The samples per client of the figure."""


def run(args: Namespace) -> None:
    """Write a table for every file of a folder, and the figure of those that have a CNN's curves.

    The CNN's are those of the preset `default`, in default.jsonl one folder up.
    """
    folder: Path = args.out
    records = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    if not records:
        raise CarvyError(f"{folder} holds no results; run 'one-shot' first")
    trained = _trained(folder.parent / "default.jsonl")
    panels = []
    for name, record in records.items():
        write_text(folder / f"{name}.md", table(name, record, trained))
        if name in DATASETS:
            panels += [
                panel(f"{DATASETS[name]}, {samples} samples per client", found, trained, name)
                for samples, found in record["sizes"].items()
                if samples in SIZES
            ]
    if panels:
        save(draw(panels, columns=2), folder / "ca.svg")


def _trained(path: Path) -> dict[tuple[str, str, str], list[list[float]]]:
    """Return the CNN's curves by data set, size and method, one for every seed."""
    found: dict[tuple[str, str, str], list[list[float]]] = {}
    for line in path.read_text().splitlines():
        trial = json.loads(line)
        if trial["kind"] == "ca" and trial["groups"] is None:  # not of the sweep over G
            key = (trial["dataset"], str(trial["samples"]), trial["method"])
            found.setdefault(key, []).append(trial["ca"])
    return found


def panel(
    title: str,
    found: dict[str, Any],
    trained: dict[tuple[str, str, str], list[list[float]]],
    dataset: str,
) -> Panel:
    """Return CA(m) of one size: heads in full lines, the CNN dotted."""
    samples = title.split(", ")[1].split()[0]
    curves = []
    for method in DRAWN:
        style, label = method_style(method), GROUPINGS[method].label
        curves.append(_curve(f"{label}, one-shot", found[method]["ca"], style))
        if (dataset, samples, method) in trained:
            own = trained[dataset, samples, method]
            curves.append(_curve(f"{label}, CNN", own, style.dotted()))
    return Panel(title, M, CA, curves)


def _curve(name: str, trials: list[list[float]], style: Any) -> Curve:
    """Return the mean over the seeds, with a band of one standard deviation."""
    padded = np.array(list(zip_longest(*trials, fillvalue=0.0))).T
    mean, spread = padded.mean(axis=0), padded.std(axis=0, ddof=1 if len(trials) > 1 else 0)
    low, high = np.maximum(mean - spread, 0), np.minimum(mean + spread, 100)
    return Curve(name, range(len(mean)), mean.tolist(), low.tolist(), high.tolist(), style)


def table(
    name: str,
    record: dict[str, Any],
    trained: dict[tuple[str, str, str], list[list[float]]],
) -> str:
    """Return a line for every size and grouping: the CNN's area, and what the heads reach."""
    rows = []
    for samples, found in record["sizes"].items():
        for method, own in found.items():
            if not isinstance(own, dict):
                continue
            cnn = [_area(curve) for curve in trained.get((name, samples, method), [])]
            clean = [curve[0] for curve in own["ca"]]
            rows.append(
                [
                    samples,
                    method,
                    mean_sd(cnn, 1) if cnn else "",
                    mean_sd(own["auc"], 1),
                    mean_sd(clean, 1),
                    mean_sd(own["largest_m"], 1) if min(own["largest_m"]) >= 0 else "none",
                ]
            )
    head = ["samples", "groups", "AUC, CNN", "AUC, one-shot", "CA(0), %", f"largest m at {LEVEL} %"]
    return markdown(head, rows)


def _area(curve: list[float]) -> float:
    return float(np.trapezoid(curve))
