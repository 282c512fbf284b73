"""Draw and tabulate what the studies of privacy measured. Nothing is computed."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from carvyfl.core.errors import CarvyError
from carvyfl.core.files import write_text
from carvyfl.plots.draw import draw, paint, save
from carvyfl.plots.style import BLUE
from reproduction.markdown import markdown
from reproduction.published import BEST_GROUPS, DATASETS, paper
from reproduction.studies.privacy import EPSILONS, METHODS, NOTHING, SYNTHETIC, read
from reproduction.studies.privacy_audit import FAULTS, SHARES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GREY = "#5a6675"
NOISES = {"local": "every client", "group": "once per group"}
ORIGINS = {
    SYNTHETIC: "synthetic images (default)",
    "mnist": "MNIST, as public inputs",
    NOTHING: "nothing: features projected",
}
PICTURE = "fashion-mnist", 500, "class-disjoint"
Records = Sequence[Mapping[str, Any]]


def privacy_figures(args: Namespace) -> None:
    """Privacy: draw and tabulate what was measured.

    Reads cells.json, audit.json and attacks.json; writes tables, and the picture tradeoff.png.
    """
    folder: Path = args.out
    records = read(folder / "cells.json")
    if not records:
        raise CarvyError(f"{folder} holds no results; run 'privacy' first")
    for partition in dict.fromkeys(record["partition"] for record in records):
        name = partition.lower().replace(" ", "-").replace(".", "")
        write_text(folder / f"{name}.md", table(records, partition))
    write_text(folder / "maps.md", maps_table(records))
    save(draw([trade_off(records)], inches=(7.2, 4.4)), folder / "tradeoff.png")
    for name, tabulate in (("audit", audit_table), ("attacks", attacks_table)):
        if (path := folder / f"{name}.json").exists():
            write_text(path.with_suffix(".md"), tabulate(json.loads(path.read_text())))


def cell_text(record: Mapping[str, Any] | None) -> str:
    """Return AUC ± sd and CA(0) of a cell."""
    if record is None:
        return ""
    sd = "" if record["auc_sd"] is None else f" ± {record['auc_sd']:.0f}"
    return f"{record['auc_mean']:.0f}{sd} ({record['ca'][0]:.1f})"


def by_epsilon(records: Records, **wanted: Any) -> list[Mapping[str, Any] | None]:
    """Return the records that fit, without privacy first and then by ε."""
    fitting = {
        record["epsilon"]: record
        for record in records
        if all(record[key] == value for key, value in wanted.items())
        or (record["epsilon"] is None and _fits_without(record, wanted))
    }
    return [fitting.get(epsilon) for epsilon in (None, *EPSILONS)]


def _fits_without(record: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Say whether a record is what others without noise would be."""
    return all(record[key] == value for key, value in wanted.items() if key != "noise")


def table(records: Records, partition: str) -> str:
    """Return AUC and CA(0) against ε, a line for each size, data set, noise and method."""
    lines = []
    for dataset, name in DATASETS.items():
        for samples in sorted({record["samples"] for record in records}):
            at = {"dataset": dataset, "samples": samples, "partition": partition}
            at |= {"origin": SYNTHETIC}
            for noise, title in NOISES.items():
                found = [by_epsilon(records, **at, noise=noise, method=m) for m in METHODS]
                if not any(any(row[1:]) for row in found):
                    continue
                head = f"{name}, {samples}"
                for method, row in zip(METHODS, found, strict=True):
                    lines.append([head, title, method, *map(cell_text, row)])
                    head = title = ""
                lines.append(["", "", "G", *map(groups_text, found[0])])
    head_row = ["samples per client", "noise", "groups", "no noise"]
    return markdown([*head_row, *(f"ε = {epsilon:g}" for epsilon in EPSILONS)], lines)


def groups_text(record: Mapping[str, Any] | None) -> str:
    """Return the numbers of groups of a cell."""
    if record is None:
        return ""
    low, high = min(record["groups"]), max(record["groups"])
    return f"{low}" if low == high else f"{low} to {high}"


def maps_table(records: Records) -> str:
    """Return AUC and CA(0) of `carvy` by what the map is made of."""
    at = dict(zip(("dataset", "samples", "partition"), PICTURE, strict=True))
    at |= {"noise": "local", "method": "carvy"}
    rows = {
        title: by_epsilon(records, **at, origin=origin)[1:] for origin, title in ORIGINS.items()
    }
    lines = [[title, *map(cell_text, row)] for title, row in rows.items() if any(row)]
    return markdown(["the map is made of", *(f"ε = {e:g}" for e in EPSILONS)], lines)


def audit_table(record: Mapping[str, Any]) -> str:
    """Return lower bounds on ε; those that refute the claim in bold."""
    head, columns = ["the message"], []
    for audit in record["audits"]:
        for key, title in (("epsilon", "any noise"), ("gaussian_epsilon", "Gaussian noise")):
            head.append(f"claim ε = {audit['claim']:g}: {title}")
            bounds = {what: each[key] for what, each in audit["bounds"].items()}
            columns.append({what: _bound(value, audit["claim"]) for what, value in bounds.items()})
    names = {"as it is": "as it is"} | {what: f"broken: {what}" for what in FAULTS}
    return markdown(head, [[names[w], *(column[w] for column in columns)] for w in names])


def _bound(value: float, claim: float) -> str:
    return f"**{value:.2f}**" if value > claim else f"{value:.2f}"


def attacks_table(record: Mapping[str, Any]) -> str:
    """Return what two attacks reach, a column for every ε."""
    rows = record["rows"]
    titles = {1: "images: the client has one sample of the class", 5: "images: five samples of it"}
    lines = [[titles[n], *(_percent(row["images"][str(n)]) for row in rows)] for n in SHARES]
    for what in rows[0]["membership"]:
        told = (_percent(row["membership"][what]) for row in rows)
        lines.append([f"membership: the attacker {what}", *told])
    limits = (_percent(row["proved"]) for row in rows)
    lines.append(["membership: proved limit, Φ(Δ/(√2 σ))", *limits])
    names = ["no noise" if row["epsilon"] is None else f"ε = {row['epsilon']:g}" for row in rows]
    return markdown(["", *names], lines)


def _percent(part: float) -> str:
    return f"{100 * part:.0f} %"


# The picture.


@dataclass(frozen=True)
class TradeOff:
    """A curve over ε, of which less stands on the right, and levels to compare it with."""

    title: str
    epsilons: Sequence[float]
    areas: Sequence[float]
    sds: Sequence[float]
    levels: Mapping[str, float]
    """What stands on a line of this height."""


def trade_off(records: Records) -> TradeOff:
    """Return the picture's values: `carvy` with local noise, and what others reach without."""
    at = dict(zip(("dataset", "samples", "partition"), PICTURE, strict=True))
    at |= {"origin": SYNTHETIC, "noise": "local", "method": "carvy"}
    first, *private = by_epsilon(records, **at)
    drawn = [record for record in private if record is not None]
    levels = {}
    if first is not None:
        levels["the same without privacy"] = float(first["auc_mean"])
    printed = paper()["ca_auc_by_groups"]
    place = printed["groups"].index(BEST_GROUPS)
    for method, name in (("carvy", "the paper, no privacy"), ("flcert", "FLCert, no privacy")):
        levels[name] = float(printed[PICTURE[0]][method][place])
    return TradeOff(
        "Private and certified, from one message of 10 KB per client",
        [record["epsilon"] for record in drawn],
        [record["auc_mean"] for record in drawn],
        [record["auc_sd"] or 0.0 for record in drawn],
        levels,
    )


@paint.register(TradeOff)
def _paint_trade_off(panel: TradeOff, axes: Axes) -> None:
    places = range(len(panel.epsilons))
    right = len(panel.epsilons) - 0.6
    for name, level in panel.levels.items():
        axes.axhline(level, color=GREY, linewidth=1.2, linestyle=(0, (5, 3)), zorder=1)
        above: dict[str, Any] = {"xytext": (0, 4), "textcoords": "offset points", "ha": "right"}
        axes.annotate(f"{name}: {level:.0f}", (right, level), **above, color=GREY, fontsize=10)
    bars: dict[str, Any] = {"color": BLUE, "linewidth": 2.6, "markersize": 8, "capsize": 3}
    axes.errorbar(places, panel.areas, yerr=panel.sds, marker="o", zorder=3, **bars)
    for place, area in zip(places, panel.areas, strict=True):
        below: dict[str, Any] = {"xytext": (0, -18), "textcoords": "offset points"}
        axes.annotate(f"{area:.0f}", (place, area), **below, ha="center", color=BLUE, weight="bold")
    axes.set_xticks(places, [f"ε = {epsilon:g}" for epsilon in panel.epsilons])
    axes.set(xlim=(-0.4, right), ylim=(0, 1.12 * max([*panel.areas, *panel.levels.values()])))
    axes.set(xlabel="more private →", ylabel="certified: area under CA(m)")
    axes.spines[["top", "right"]].set_visible(False)
