"""End to end: draw and tabulate what was measured. Nothing is trained."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from carvyfl.core.errors import CarvyError
from carvyfl.core.files import write_text
from carvyfl.paper.studies.attacks import NAMES
from carvyfl.paper.studies.common import markdown_table
from carvyfl.plots.draw import draw, save
from carvyfl.plots.figure import Curve, HeatMap, Panel
from carvyfl.plots.style import M, method_style

Records = dict[str, dict[str, Any]]
"""DATASET-SAMPLES → what was measured there."""

CURVES = {
    "slots, by chance": "random slots, by chance (Theorem 2)",
    "slots": "random slots, Δ ≥ 2m (Theorem 1)",
    "wrap": "random slots, wrapped",
    "flcert": "FLCert",
    "balanced": "balanced random",
}
"""What the figure of E2E-CA shows, and its name there."""


def options(parser: ArgumentParser) -> None:
    """Add the options of this part."""
    folder = Path("results/end_to_end")
    parser.add_argument("--out", type=Path, default=folder, help="default: %(default)s")


def run(args: Namespace) -> None:
    """Draw and tabulate everything that a folder holds."""
    folder: Path = args.out
    certified, attacks = (_records(folder, part) for part in ("certified", "attacks"))
    if not certified and not attacks:
        raise CarvyError(f"{folder} holds no results; run 'certified' or 'attacks' first")
    for name, record in certified.items():
        write_text(folder / f"certified-{name}.md", certified_table(record))
    for name, record in attacks.items():
        write_text(folder / f"attacks-{name}.md", attacks_table(record["rows"]))
        write_text(folder / f"attacks-summary-{name}.md", attacks_summary(record["rows"]))
    if certified:
        save(draw(_certified_panels(certified), columns=2), folder / "certified.svg")
    if attacks:
        maps = _attack_maps(attacks)
        save(draw(maps, columns=2, inches=(7.1, 6.2)), folder / "attacks.svg")


def _records(folder: Path, part: str) -> Records:
    return {
        path.stem.removeprefix(f"{part}-"): json.loads(path.read_text())
        for path in sorted(folder.glob(f"{part}-*.json"))
    }


def certified_table(record: dict[str, Any]) -> str:
    """Return E2E-CA(m) with its interval, a column for each grouping."""
    columns = [*CURVES, "flcert, by chance", "balanced, by chance"]
    body = (
        [
            f"{m}",
            *(
                f"{record[c]['ca'][m]:.1f} ({record[c]['low'][m]:.1f}–{record[c]['high'][m]:.1f})"
                for c in columns
            ),
        ]
        for m in range(len(record["slots"]["ca"]))
    )
    return markdown_table(["m", *columns], body)


def attacks_summary(rows: list[dict[str, Any]]) -> str:
    """Return a line for every grouping and m: the worst that any attack does to it."""
    head = (
        *("grouping", "m", "G", "least types in a group", "honest types exact"),
        *("fewest groups unchanged", "CA(m) promised", "least CA(m) under attack"),
        *("least accuracy left", "promise kept"),
    )
    body = []
    for name in NAMES:
        for m in sorted({row["m"] for row in rows if row["m"]}):
            own = [row for row in rows if (row["grouping"], row["m"]) == (name, m)]
            formed = [row for row in own if not row.get("broken")]
            exact = [row["types_exact"] for row in formed if "types_exact" in row]
            body.append(
                [
                    name,
                    f"{m}",
                    _range([row["num_groups"] for row in formed]),
                    f"{min(row['types_covered'] for row in formed):.0%}",
                    f"{sum(exact)} of {len(own)}" if exact else "",
                    f"{min(row['groups_unchanged'] for row in formed)}",
                    _range([round(row["ca_promised"], 1) for row in formed]),
                    f"{min(row['ca'] for row in formed):.1f}",
                    f"{min(row['accuracy_worst'] for row in formed):.1f}",
                    f"{sum(row['kept'] for row in formed)} of {len(own)}",
                ]
            )
    return markdown_table(head, body)


def _range(values: list[Any]) -> str:
    low, high = min(values), max(values)
    return f"{low}" if low == high else f"{low}–{high}"


def attacks_table(rows: list[dict[str, Any]]) -> str:
    """Return a line for every grouping under every attack."""
    head = (
        *("grouping", "attack", "m", "G", "types in a group", "honest types exact"),
        *("groups unchanged", "CA(m) promised", "CA(m) under attack", "accuracy left", "kept"),
    )
    body = []
    for row in rows:
        line = [row["grouping"], row["attack"], f"{row['m']}"]
        if row.get("broken"):
            body.append([*line, "none", *[""] * 7])
            continue
        covered, exact = row["types_covered"], row.get("types_exact")
        line += [
            f"{row['num_groups']}",
            "" if covered is None else f"{covered:.0%}",
            "" if exact is None else _yes(exact),
            f"{row['groups_unchanged']}",
            f"{row['ca_promised']:.1f}",
            f"{row['ca']:.1f}",
            f"{row['accuracy_worst']:.1f}",
            _yes(row["kept"]),
        ]
        body.append(line)
    return markdown_table(head, body)


def _yes(fact: bool) -> str:
    return "yes" if fact else "no"


def _certified_panels(records: Records) -> list[Panel]:
    """Return E2E-CA(m), a panel for each data set."""
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


def _attack_maps(records: Records) -> list[HeatMap]:
    """Return the accuracy that every attack leaves to every grouping, beside what was promised."""
    panels = []
    for name, record in records.items():
        rows = [row for row in record["rows"] if row["m"]]
        attacks = list(dict.fromkeys((row["attack"], row["m"]) for row in rows))
        left = np.full((len(attacks), len(NAMES)), np.nan)
        texts = [[""] * len(NAMES) for _ in attacks]
        for row in rows:
            if row.get("broken"):
                continue
            i, k = attacks.index((row["attack"], row["m"])), NAMES.index(row["grouping"])
            left[i, k] = row["accuracy_worst"]
            # Numbers and a cross, so that nothing is said by colour alone.
            numbers = f"{left[i, k]:.0f} {{}} {row['ca_promised']:.0f}"
            texts[i][k] = numbers.format("≥") if row["kept"] else f"✗ {numbers.format('<')}"
        names = [f"{attack}, m = {m}" for attack, m in attacks]
        panels.append(HeatMap(_title(name), "accuracy left, %", names, list(NAMES), left, texts))
    return panels


def _title(name: str) -> str:
    dataset, _, samples = name.rpartition("-")
    return f"{dataset}, {samples} samples per client"
