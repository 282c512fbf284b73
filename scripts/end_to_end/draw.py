"""Figures and tables of what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from attacks import GROUPINGS
from carvyfl.core.errors import CarvyError
from carvyfl.core.files import replacing, write_text
from carvyfl.report.plots import M, style

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
        _certified_figure(records["certified"], folder / "certified.svg")
    if records["attacks"]:
        _attacks_figure(records["attacks"], folder / "attacks.svg")


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


def _certified_figure(records: dict[str, dict[str, Any]], path: Path) -> None:
    """Draw E2E-CA(m) of every data set, a panel each."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    columns = min(2, len(records))
    rows = -(-len(records) // columns)
    picture = Figure(figsize=(5.2 * columns, 3.6 * rows + 0.6), layout="constrained")
    panels = picture.subplots(rows, columns, squeeze=False).ravel()
    for axes, (name, record) in zip(panels, records.items(), strict=False):
        for curve, title in CURVES.items():
            _, colour, marker = style(curve.split(",")[0])
            values = record[curve]
            line = "--" if curve == "slots" else "-"
            axes.plot(values["ca"], line, marker=marker, color=colour, label=title, clip_on=False)
            axes.fill_between(
                range(len(values["ca"])), values["low"], values["high"], color=colour, alpha=0.2
            )
        axes.set(title=_title(name), xlabel=M, ylabel="certified end to end, %", ylim=(0, 100))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
    for axes in panels[len(records) :]:
        axes.set_axis_off()
    picture.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    _write(picture, path)


def _attacks_figure(records: dict[str, dict[str, Any]], path: Path) -> None:
    """Draw the accuracy that every attack leaves to every grouping, beside what was promised."""
    from matplotlib.figure import Figure

    columns = min(2, len(records))
    lines = -(-len(records) // columns)
    picture = Figure(figsize=(6.6 * columns + 1, 6.2 * lines), layout="constrained")
    panels = picture.subplots(lines, columns, squeeze=False)
    for axes, (name, record) in zip(panels.ravel(), records.items(), strict=False):
        rows = [row for row in record["rows"] if row["m"]]
        attacks = list(dict.fromkeys((row["attack"], row["m"]) for row in rows))
        left = np.full((len(attacks), len(GROUPINGS)), np.nan)
        for row in rows:
            i, k = attacks.index((row["attack"], row["m"])), list(GROUPINGS).index(row["grouping"])
            if row.get("broken"):
                continue
            left[i, k] = row["accuracy_worst"]
            # Numbers and a cross, so that nothing is said by colour alone.
            text = f"{left[i, k]:.0f} ≥ {row['ca_promised']:.0f}"
            text = text if row["kept"] else f"✗ {text.replace('≥', '<')}"
            colour = "white" if left[i, k] < 50 else "black"
            axes.text(k, i, text, ha="center", va="center", fontsize=6.5, color=colour)
        image = axes.imshow(left, cmap="cividis", vmin=0, vmax=100, aspect="auto")
        axes.set_xticks(range(len(GROUPINGS)), list(GROUPINGS), rotation=40, ha="right")
        axes.set_yticks(range(len(attacks)), [f"{attack}, m = {m}" for attack, m in attacks])
        axes.set_title(_title(name))
    for axes in panels.ravel()[len(records) :]:
        axes.set_axis_off()
    picture.colorbar(image, ax=panels, label="accuracy left, %", shrink=0.6)
    _write(picture, path)


def _title(name: str) -> str:
    dataset, _, samples = name.rpartition("-")
    return f"{dataset}, {samples} samples a client"


def _write(picture: Any, path: Path) -> None:
    """Write a picture as SVG, without the time, so that it can be compared."""
    import matplotlib as mpl

    with (
        mpl.rc_context({"svg.hashsalt": "carvyfl", "svg.fonttype": "none"}),
        replacing(path) as file,
    ):
        picture.savefig(file, format="svg", metadata={"Date": None})
