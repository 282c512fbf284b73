"""Figures and tables of what was measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from attacks import GROUPINGS
from carvyfl.core.errors import CarvyError
from carvyfl.core.files import write_text
from carvyfl.plots.draw import draw, save
from carvyfl.plots.figure import Curve, HeatMap, Panel
from carvyfl.plots.style import M, method_style

CURVES = {
    "slots, by chance": "random slots, by chance (Theorem 2)",
    "slots": "random slots, Δ ≥ 2m (Theorem 1)",
    "wrap": "random slots, wrapped",
    "flcert": "FLCert",
    "balanced": "balanced random",
}
"""What the figure of E2E-CA shows, and its name there."""


def present(folder: Path) -> None:
    """Draw and tabulate everything that a folder holds."""
    records = {
        part: {
            path.stem.removeprefix(f"{part}-"): json.loads(path.read_text())
            for path in sorted(folder.glob(f"{part}-*.json"))
        }
        for part in ("certified", "attacks")
    }
    if not records["certified"] and not records["attacks"]:
        raise CarvyError(f"{folder} holds no results; run 'certified' or 'attacks' first")
    for name, record in records["certified"].items():
        write_text(folder / f"certified-{name}.md", certified_table(record))
    for name, record in records["attacks"].items():
        write_text(folder / f"attacks-{name}.md", attacks_table(record["rows"]))
        write_text(folder / f"attacks-summary-{name}.md", attacks_summary(record["rows"]))
    if records["certified"]:
        panels = _certified_panels(records["certified"])
        save(draw(panels, columns=2), folder / "certified.svg")
    if records["attacks"]:
        maps = _attack_maps(records["attacks"])
        save(draw(maps, columns=2, inches=(7.1, 6.2)), folder / "attacks.svg")


def certified_table(record: dict[str, Any]) -> str:
    """Return E2E-CA(m) with its interval, a column for each grouping."""
    columns = [*CURVES, "flcert, by chance", "balanced, by chance"]
    lines = ["| m | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for m in range(len(record["slots"]["ca"])):
        cells = [
            f"{record[c]['ca'][m]:.1f} ({record[c]['low'][m]:.1f}–{record[c]['high'][m]:.1f})"
            for c in columns
        ]
        lines.append(f"| {m} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def attacks_summary(rows: list[dict[str, Any]]) -> str:
    """Return a line for every grouping and m: the worst that any attack does to it."""
    lines = [
        "| grouping | m | G | least types in a group | honest types exact | "
        "fewest groups unchanged | CA(m) promised | least CA(m) under attack | "
        "least accuracy left | promise kept |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for grouping in GROUPINGS:
        for m in sorted({row["m"] for row in rows if row["m"]}):
            own = [row for row in rows if (row["grouping"], row["m"]) == (grouping, m)]
            formed = [row for row in own if not row.get("broken")]
            sizes = [row["num_groups"] for row in formed]
            exact = [row["types_exact"] for row in formed if "types_exact" in row]
            promised = [row["ca_promised"] for row in formed]
            lines.append(
                f"| {grouping} | {m} | {_range(sizes)} | "
                f"{min(row['types_covered'] for row in formed):.0%} | "
                f"{f'{sum(exact)} of {len(own)}' if exact else ''} | "
                f"{min(row['groups_unchanged'] for row in formed)} | "
                f"{_range([round(value, 1) for value in promised])} | "
                f"{min(row['ca'] for row in formed):.1f} | "
                f"{min(row['accuracy_worst'] for row in formed):.1f} | "
                f"{sum(row['kept'] for row in formed)} of {len(own)} |"
            )
    return "\n".join(lines) + "\n"


def _range(values: list[Any]) -> str:
    low, high = min(values), max(values)
    return f"{low}" if low == high else f"{low}–{high}"


def attacks_table(rows: list[dict[str, Any]]) -> str:
    """Return a line for every grouping under every attack."""
    lines = [
        "| grouping | attack | m | G | types in a group | honest types exact | groups unchanged | "
        "CA(m) promised | CA(m) under attack | accuracy left | kept |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        head = f"| {row['grouping']} | {row['attack']} | {row['m']} |"
        if row.get("broken"):
            lines.append(f"{head} none | | | | | | | |")
            continue
        covered, exact = row["types_covered"], row.get("types_exact")
        lines.append(
            f"{head} {row['num_groups']} | {'' if covered is None else f'{covered:.0%}'} | "
            f"{'' if exact is None else _yes(exact)} | {row['groups_unchanged']} | "
            f"{row['ca_promised']:.1f} | {row['ca']:.1f} | "
            f"{row['accuracy_worst']:.1f} | {_yes(row['kept'])} |"
        )
    return "\n".join(lines) + "\n"


def _yes(fact: bool) -> str:
    return "yes" if fact else "no"


def _certified_panels(records: dict[str, dict[str, Any]]) -> list[Panel]:
    """Show E2E-CA(m) of every data set, a panel each."""
    panels = []
    for name, record in records.items():
        curves = []
        for curve, title in CURVES.items():
            found, style = record[curve], method_style(curve.split(",")[0])
            if curve == "slots, by chance":
                style = replace(style, dash="")
            values = (found["ca"], found["low"], found["high"])
            curves.append(Curve(title, range(len(found["ca"])), *values, style))
        panels.append(Panel(_title(name), M, "certified end to end, %", curves))
    return panels


def _attack_maps(records: dict[str, dict[str, Any]]) -> list[HeatMap]:
    """Show the accuracy that every attack leaves to every grouping, beside what was promised."""
    panels = []
    columns = list(GROUPINGS)
    for name, record in records.items():
        rows = [row for row in record["rows"] if row["m"]]
        attacks = list(dict.fromkeys((row["attack"], row["m"]) for row in rows))
        left = np.full((len(attacks), len(columns)), np.nan)
        texts = [[""] * len(columns) for _ in attacks]
        for row in rows:
            if row.get("broken"):
                continue
            i, k = attacks.index((row["attack"], row["m"])), columns.index(row["grouping"])
            left[i, k] = row["accuracy_worst"]
            numbers = f"{left[i, k]:.0f} {{}} {row['ca_promised']:.0f}"
            texts[i][k] = numbers.format("≥") if row["kept"] else f"✗ {numbers.format('<')}"
        names = [f"{attack}, m = {m}" for attack, m in attacks]
        panels.append(HeatMap(_title(name), "accuracy left, %", names, columns, left, texts))
    return panels


def _title(name: str) -> str:
    dataset, _, samples = name.rpartition("-")
    return f"{dataset}, {samples} samples a client"
