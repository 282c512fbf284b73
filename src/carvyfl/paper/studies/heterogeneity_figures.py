"""Any heterogeneity: tabulate and draw what was measured.

Reads the LEARNER.jsonl files of the study; writes a table for each, the curves over G, and a
summary of all of them, heterogeneity.json, one folder up.
"""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from carvyfl.core.errors import CarvyError
from carvyfl.core.files import write_text
from carvyfl.groups.methods import GROUPINGS
from carvyfl.paper.markdown import markdown
from carvyfl.paper.studies.common import write_record
from carvyfl.paper.studies.heterogeneity import CHOSEN, PARTITIONS, Cell, read_rows
from carvyfl.plots.draw import draw, save
from carvyfl.plots.figure import Curve, Panel
from carvyfl.plots.style import nth_style
from carvyfl.voting.spread import mean_sd

LEVEL = 60
"""Percent: the largest m at which CA(m) is at least this is noted."""
DRAWN = {"scaffold": "CNN, SCAFFOLD", "one-shot": "one-shot heads"}
"""The files of the figure, and their titles."""

Rows = Mapping[tuple[str, str, int], Sequence[Mapping[str, Any]]]


def run(args: Namespace) -> None:
    """Write the tables, the figure and the summary."""
    folder: Path = args.out
    files = {path.stem: by_cell(read_rows(path)) for path in sorted(folder.glob("*.jsonl"))}
    if not files:
        raise CarvyError(f"{folder} holds no results; run 'heterogeneity' first")
    for name, rows in files.items():
        write_text(folder / f"{name}.md", table(rows))
    panels = [panel(title, files[name]) for name, title in DRAWN.items() if name in files]
    if panels:
        save(draw(panels, columns=2), folder / "groups.svg")
    summary = {name: summarised(rows) for name, rows in files.items()}
    write_record(folder.with_suffix(".json"), summary)


def by_cell(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str, int], list[Any]]:
    """Return the rows by partition, method and the G that was asked for, one for every seed."""
    found: dict[tuple[str, str, int], list[Any]] = {}
    for row in rows:
        cell = Cell(*row["cell"])
        found.setdefault((cell.partition, cell.method, cell.groups), []).append(row)
    return found


def fixed_groups(rows: Rows) -> int:
    """Return the G that most methods were measured at."""
    asked = {(method, groups) for _, method, groups in rows if groups != CHOSEN}
    return Counter(groups for _, groups in asked).most_common(1)[0][0]


def table(rows: Rows) -> str:
    """Return the AUC by partition: every method at the same G, and with G chosen."""
    fixed = fixed_groups(rows)
    methods = [m for m in (*GROUPINGS, "flcert-p") if any(key[1:] == (m, fixed) for key in rows)]
    lines = []
    for name in PARTITIONS:
        if not any(key[0] == name for key in rows):
            continue
        cells = [_area(rows.get((name, method, fixed), [])) for method in methods]
        chosen = rows.get((name, "carvy", CHOSEN), [])
        cells.append(", ".join(map(str, sorted({row["groups"] for row in chosen}))))
        cells += [_area(rows.get((name, m, CHOSEN), [])) for m in ("carvy", "balanced")]
        cells.append(mean_sd([largest_m(row) for row in chosen], 1) if chosen else "")
        lines.append([name, *cells])
    head = [
        "clients' data",
        *(f"{method}, G = {fixed}" for method in methods),
        "G chosen",
        "carvy there",
        "balanced there",
        f"largest m at {LEVEL} %",
    ]
    return markdown(head, lines)


def largest_m(row: Mapping[str, Any]) -> int:
    """Return the largest m at which 60 % are certified, -1 if not even m = 0."""
    return int(np.sum(np.array(row["ca"]) >= LEVEL)) - 1


def _area(rows: Sequence[Mapping[str, Any]]) -> str:
    return mean_sd([row["auc"] for row in rows], 0) if rows else ""


def panel(title: str, rows: Rows) -> Panel:
    """Return the AUC of `carvy` over G, a curve for every partition that was swept."""
    curves = []
    for position, name in enumerate(PARTITIONS):
        points = {
            groups: np.mean([row["auc"] for row in own])
            for (partition, method, groups), own in rows.items()
            if (partition, method) == (name, "carvy") and groups != CHOSEN
        }
        if len(points) > 2:
            across = sorted(points)
            areas = [float(points[groups]) for groups in across]
            curves.append(Curve(name, across, areas, style=nth_style(position)))
    return Panel(title, "G, groups", "AUC of CA(m)", curves, y_range=None)


def summarised(rows: Rows) -> list[dict[str, Any]]:
    """Return mean, spread and what else is told of every cell."""
    return [
        {
            "partition": partition,
            "method": method,
            "groups": groups or "chosen",
            "groups_taken": [row["groups"] for row in own],
            "seeds": [row["cell"][1] for row in own],
            "auc": [row["auc"] for row in own],
            "auc_mean": round(float(np.mean([row["auc"] for row in own])), 1),
            "auc_sd": round(float(np.std([row["auc"] for row in own], ddof=1)), 1)
            if len(own) > 1
            else None,
            "accuracy": round(float(np.mean([row["ca"][0] for row in own])), 1),
            "largest_m": [largest_m(row) for row in own],
            "commit": own[0]["commit"],
            "hardware": own[0]["environment"]["gpu"] or own[0]["environment"]["processor"],
        }
        for (partition, method, groups), own in rows.items()
    ]
