"""End to end: draw and tabulate what was measured. Nothing is trained."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from carvyfl.core.errors import CarvyError
from carvyfl.core.files import write_text
from carvyfl.paper.markdown import markdown
from carvyfl.paper.studies.attacks import NAMES
from carvyfl.plots.draw import draw, save
from carvyfl.plots.figure import Curve, HeatMap, Panel
from carvyfl.plots.style import M, method_style

Rows = list[dict[str, Any]]

CURVES = {
    "honest only, by chance": ("random slots, without the malicious, by chance", "slots"),
    "honest only": ("random slots, without the malicious (Δ ≥ 2m)", "slots"),
    "all honest, by chance": ("random slots, all honest, by chance", "wrap"),
    "all honest": ("random slots, all honest (Δ ≥ 4m)", "wrap"),
    "flcert": ("FLCert", "flcert"),
    "balanced": ("balanced random", "balanced"),
}
"""What the figure of E2E-CA may show: its name there, and the method whose style it has."""


def run(args: Namespace) -> None:
    """Draw and tabulate everything that a folder holds, a panel for each data set and size."""
    folder: Path = args.out
    panels, maps = [], []
    for path in sorted(folder.glob("*.json")):
        part, _, name = path.stem.partition("-")
        record, (dataset, _, samples) = json.loads(path.read_text()), name.rpartition("-")
        title = f"{dataset}, {samples} samples per client"
        if part == "certified":
            write_text(path.with_suffix(".md"), certified_table(record))
            panels.append(certified_panel(title, record))
        elif part == "attacks":
            write_text(path.with_suffix(".md"), attacks_table(record["rows"]))
            write_text(folder / f"attacks-summary-{name}.md", attacks_summary(record["rows"]))
            maps.append(attacks_map(title, record["rows"]))
    if panels:
        save(draw(panels, columns=2), folder / "certified.svg")
    if maps:
        save(draw(maps, columns=2, inches=(7.1, 6.2)), folder / "attacks.svg")
    if not panels and not maps:
        raise CarvyError(f"{folder} holds no results; run 'certified' or 'attacks' first")


def certified_table(record: dict[str, Any]) -> str:
    """Return E2E-CA(m) as mean (interval; quantile), a column for each reading and grouping."""
    names, parts = [name for name in CURVES if name in record], ("ca", "low", "high", "quantile")
    columns = [zip(*(record[name][part] for part in parts), strict=True) for name in names]
    body = [
        [f"{m}", *(f"{ca:.1f} ({low:.1f}–{high:.1f}; {least:.1f})" for ca, low, high, least in row)]
        for m, row in enumerate(zip(*columns, strict=True))
    ]
    return markdown(["m", *names], body)


def certified_panel(title: str, record: dict[str, Any]) -> Panel:
    """Return the figure of E2E-CA(m)."""
    curves = []
    for name, (legend, method) in CURVES.items():
        if name in record:
            found, style = record[name], method_style(method)
            values = (found["ca"], found["low"], found["high"])
            curves.append(
                Curve(
                    legend,
                    range(len(found["ca"])),
                    *values,
                    style.dotted() if "by chance" in name else style,
                )
            )
    return Panel(title, M, "certified end to end, %", curves)


def attacks_summary(rows: Rows) -> str:
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
            found = {key: [row[key] for row in formed] for key in formed[0]}
            exact = found.get("types_exact", [])
            body.append(
                [
                    name,
                    f"{m}",
                    _range(found["num_groups"]),
                    f"{min(found['types_covered']):.0%}",
                    f"{sum(exact)} of {len(own)}" if exact else "",
                    f"{min(found['groups_unchanged'])}",
                    _range([round(ca, 1) for ca in found["ca_promised"]]),
                    f"{min(found['ca']):.1f}",
                    f"{min(found['accuracy_worst']):.1f}",
                    f"{sum(found['kept'])} of {len(own)}",
                ]
            )
    return markdown(head, body)


def _range(values: list[Any]) -> str:
    low, high = min(values), max(values)
    return f"{low}" if low == high else f"{low}–{high}"


def attacks_table(rows: Rows) -> str:
    """Return a line for every grouping under every attack."""
    columns: dict[str, tuple[str, Callable[[Any], str]]] = {
        "grouping": ("grouping", str),
        "attack": ("attack", str),
        "m": ("m", str),
        "G": ("num_groups", str),
        "types in a group": ("types_covered", "{:.0%}".format),
        "honest types exact": ("types_exact", _yes),
        "groups unchanged": ("groups_unchanged", str),
        "CA(m) promised": ("ca_promised", "{:.1f}".format),
        "CA(m) under attack": ("ca", "{:.1f}".format),
        "accuracy left": ("accuracy_worst", "{:.1f}".format),
        "kept": ("kept", _yes),
    }
    body = [
        ["" if row.get(key) is None else text(row[key]) for key, text in columns.values()]
        for row in ({"num_groups": "none"} | row for row in rows)  # groups that were impossible
    ]
    return markdown(list(columns), body)


def _yes(fact: bool) -> str:
    return "yes" if fact else "no"


def attacks_map(title: str, rows: Rows) -> HeatMap:
    """Return the accuracy that every attack leaves to every grouping, beside what was promised."""
    attacks = list(dict.fromkeys((row["attack"], row["m"]) for row in rows if row["m"]))
    left = np.full((len(attacks), len(NAMES)), np.nan)
    texts = [[""] * len(NAMES) for _ in attacks]
    for row in rows:
        if row["m"] and not row.get("broken"):
            i, k = attacks.index((row["attack"], row["m"])), NAMES.index(row["grouping"])
            left[i, k] = row["accuracy_worst"]
            # Numbers and a cross, so that nothing is said by colour alone.
            numbers = f"{left[i, k]:.0f} {{}} {row['ca_promised']:.0f}"
            texts[i][k] = numbers.format("≥") if row["kept"] else f"✗ {numbers.format('<')}"
    names = [f"{attack}, m = {m}" for attack, m in attacks]
    return HeatMap(title, "accuracy left, %", names, list(NAMES), left, texts)
