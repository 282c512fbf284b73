"""End to end: draw and tabulate what was measured. Nothing is trained."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from carvyfl.core.errors import CarvyError
from carvyfl.core.files import replacing, write_text
from carvyfl.groups.methods import GROUPINGS
from carvyfl.paper.studies.attacks import NAMES
from carvyfl.paper.studies.common import markdown_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
        _write(_certified_figure(certified), folder / "certified.svg")
    if attacks:
        _write(_attacks_figure(attacks), folder / "attacks.svg")


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


def _panels(
    records: Records, inches: tuple[float, float], extra: tuple[float, float]
) -> tuple[Figure, list[Axes]]:
    """Return a figure with a titled panel for every data set, in two columns.

    Parameters
    ----------
    records
        What is drawn.
    inches, extra
        Width and height of a panel, and of what stands beside all of them.
    """
    from matplotlib.figure import Figure

    columns = min(2, len(records))
    rows = -(-len(records) // columns)
    size = (inches[0] * columns + extra[0], inches[1] * rows + extra[1])
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for axes, name in zip(panels, records, strict=False):
        dataset, _, samples = name.rpartition("-")
        axes.set_title(f"{dataset}, {samples} samples a client")
    for axes in panels[len(records) :]:
        axes.set_axis_off()
    return figure, panels


def _certified_figure(records: Records) -> Figure:
    """Draw E2E-CA(m)."""
    from matplotlib.ticker import MaxNLocator

    figure, panels = _panels(records, (5.2, 3.6), (0, 0.6))
    for axes, record in zip(panels, records.values(), strict=False):
        for curve, title in CURVES.items():
            method, values = GROUPINGS[curve.split(",")[0]], record[curve]
            axes.plot(
                values["ca"],
                "--" if curve == "slots" else "-",
                marker=method.marker,
                color=method.colour,
                label=title,
                clip_on=False,
            )
            m = range(len(values["ca"]))
            axes.fill_between(m, values["low"], values["high"], color=method.colour, alpha=0.2)
        axes.set(xlabel="malicious clients m", ylabel="certified end to end, %", ylim=(0, 100))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def _attacks_figure(records: Records) -> Figure:
    """Draw the accuracy that every attack leaves to every grouping, beside what was promised."""
    figure, panels = _panels(records, (6.6, 6.2), (1, 0))
    for axes, record in zip(panels, records.values(), strict=False):
        rows = [row for row in record["rows"] if row["m"]]
        attacks = list(dict.fromkeys((row["attack"], row["m"]) for row in rows))
        left = np.full((len(attacks), len(NAMES)), np.nan)
        for row in rows:
            if row.get("broken"):
                continue
            i, k = attacks.index((row["attack"], row["m"])), NAMES.index(row["grouping"])
            left[i, k] = row["accuracy_worst"]
            # Numbers and a cross, so that nothing is said by colour alone.
            text = f"{left[i, k]:.0f} ≥ {row['ca_promised']:.0f}"
            text = text if row["kept"] else f"✗ {text.replace('≥', '<')}"
            colour = "white" if left[i, k] < 50 else "black"
            axes.text(k, i, text, ha="center", va="center", fontsize=6.5, color=colour)
        image = axes.imshow(left, cmap="cividis", vmin=0, vmax=100, aspect="auto")
        axes.set_xticks(range(len(NAMES)), NAMES, rotation=40, ha="right")
        axes.set_yticks(range(len(attacks)), [f"{attack}, m = {m}" for attack, m in attacks])
    figure.colorbar(image, ax=panels, label="accuracy left, %", shrink=0.6)
    return figure


def _write(figure: Figure, path: Path) -> None:
    """Write a figure as SVG, without the time, so that it can be compared."""
    import matplotlib as mpl

    with (
        mpl.rc_context({"svg.hashsalt": "carvyfl", "svg.fonttype": "none"}),
        replacing(path) as file,
    ):
        figure.savefig(file, format="svg", metadata={"Date": None})
