"""Figures and tables of what was measured."""

from __future__ import annotations

import json
from pathlib import Path

from carvyfl.errors import CarvyError
from carvyfl.files import replacing, write_text
from carvyfl.report.plots import style


def figure(folder: Path) -> None:
    """Draw E2E-CA(m) of every data set that is there."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    found = sorted(folder.glob("certified-*.json"))
    if not found:
        raise CarvyError(f"{folder} holds no certified-*.json; run the part 'certified' first")
    picture = Figure(figsize=(5.5 * len(found), 4.2), layout="constrained")
    for axes, path in zip(picture.subplots(1, len(found), squeeze=False)[0], found, strict=True):
        record = json.loads(path.read_text())
        for method in ("slots", "wrap", "flcert", "balanced"):
            name, colour, marker = style(method)
            curve = record[method]
            axes.plot(curve["ca"], marker=marker, color=colour, label=name, clip_on=False)
            axes.fill_between(
                range(len(curve["ca"])), curve["low"], curve["high"], color=colour, alpha=0.2
            )
        axes.set(
            title=path.stem.removeprefix("certified-"),
            xlabel="malicious clients m",
            ylabel="certified end to end, %",
            ylim=(0, 100),
        )
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
    axes.legend()
    with replacing(folder / "certified.png") as file:
        picture.savefig(file, format="png", dpi=150)


def tables(folder: Path) -> None:
    """Write a table of every study of attacks that is there."""
    for path in folder.glob("attacks-*.json"):
        lines = [
            "| grouping | attack | m | G | types in a group | groups unchanged | CA(m) promised | "
            "CA(m) under attack | accuracy left | kept |",
            "|---|---|---|---|---|---|---|---|---|---|",
        ]
        for row in json.loads(path.read_text())["rows"]:
            head = f"| {row['grouping']} | {row['attack']} | {row['m']} |"
            if row.get("broken"):
                lines.append(f"{head} none | | | | | | |")
                continue
            covered = row["types_covered"]
            lines.append(
                f"{head} {row['num_groups']} | {'' if covered is None else f'{covered:.0%}'} | "
                f"{row['groups_unchanged']} | {row['ca_promised']:.1f} | {row['ca']:.1f} | "
                f"{row['accuracy_worst']:.1f} | {'yes' if row['kept'] else 'no'} |"
            )
        write_text(path.with_suffix(".md"), "\n".join(lines) + "\n")
