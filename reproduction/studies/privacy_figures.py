"""Draw and tabulate what the studies of privacy measured. Nothing is computed."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from carvyfl.core.errors import CarvyError
from carvyfl.core.files import write_text
from carvyfl.plots.draw import draw, paint, save
from carvyfl.plots.style import BLUE, VERMILLION
from reproduction.markdown import markdown
from reproduction.published import BEST_GROUPS, DATASETS, paper
from reproduction.studies.privacy import EPSILONS, FIXED, METHODS, NOTHING, SYNTHETIC, read
from reproduction.studies.privacy_audit import FAULTS, SHARES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK = "#8a3a00"  # vermillion, dark enough to read
TOP, INSIDE = 800, 560  # of the axis; the height of the numbers in bars
COLUMNS = ["no noise", *(f"ε = {epsilon:g}" for epsilon in EPSILONS)]
ORIGINS = {
    SYNTHETIC: "synthetic images (default)",
    "mnist": "MNIST, as public inputs",
    NOTHING: "nothing: features projected",
}
PICTURE = "fashion-mnist", 500, "class-disjoint"
FROZEN = "cifar-10"  # measured with a frozen network's features, in a table of its own
Records = Sequence[Mapping[str, Any]]


def privacy_figures(args: Namespace) -> None:
    """Privacy: draw and tabulate what was measured.

    Reads cells.json, audit.json and attacks.json; writes tables, and the picture.
    """
    folder: Path = args.out
    records = read(folder / "cells.json")
    if not records:
        raise CarvyError(f"{folder} holds no results; run 'privacy' first")
    for partition in dict.fromkeys(record["partition"] for record in records):
        name = partition.lower().replace(" ", "-").replace(".", "")
        write_text(folder / f"{name}.md", table(records, partition))
    write_text(folder / "maps.md", maps_table(records))
    write_text(folder / "once-per-group.md", once_table(records))
    write_text(folder / f"{FROZEN}.md", frozen_table(records))
    save(draw([trade_off(records)], inches=(7.2, 4.2)), args.picture)
    for name, tabulate in (("audit", audit_table), ("attacks", attacks_table)):
        if (path := folder / f"{name}.json").exists():
            write_text(path.with_suffix(".md"), tabulate(json.loads(path.read_text())))


def cell_text(record: Mapping[str, Any] | None) -> str:
    """Return AUC ± sd and CA(0) of a cell."""
    if record is None:
        return ""
    sd = "" if (value := record["auc_sd"]) is None else f" ± {value:.{int(value < 9.95)}f}"
    return f"{record['auc_mean']:.0f}{sd} ({record['ca'][0]:.1f})"


def by_epsilon(records: Records, **wanted: Any) -> list[Mapping[str, Any] | None]:
    """Return the records that fit: the one without noise, and those of each ε."""
    fitting = {}
    for record in records:
        free = {"noise"} if record["epsilon"] is None else set()  # it is none then
        if all(record[key] == value for key, value in wanted.items() if key not in free):
            fitting[record["epsilon"]] = record
    return [fitting.get(epsilon) for epsilon in (None, *EPSILONS)]


def table(records: Records, partition: str) -> str:
    """Return AUC and CA(0) with local noise, a line for each data set, size and method."""
    lines = []
    for name, at in settings(records, partition):
        found = {m: by_epsilon(records, **at, noise="local", method=m) for m in METHODS}
        for method, row in found.items():
            title = f"{name}; {seeds_text(row)}" if method == METHODS[0] else ""
            lines.append([title, method, *map(cell_text, row)])
        if partition not in FIXED:
            lines.append(["", "G chosen", *map(groups_text, found[METHODS[0]])])
    return markdown(["data, samples", "groups", *COLUMNS], lines)


def once_table(records: Records) -> str:
    """Return AUC and CA(0) of `carvy` with noise once per group."""
    lines = []
    for partition in dict.fromkeys(record["partition"] for record in records):
        for name, at in settings(records, partition):
            row = by_epsilon(records, **at, noise="group", method="carvy")
            lines.append([partition, f"{name}; {seeds_text(row)}", *map(cell_text, row)])
    return markdown(["clients", "data, samples", *COLUMNS], lines)


def settings(records: Records, partition: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what was measured on a partition: its name in print, and what records hold of it."""
    for dataset, name in DATASETS.items():
        for samples in sorted({record["samples"] for record in records}):
            at = {"dataset": dataset, "samples": samples, "partition": partition}
            if any(by_epsilon(records, **at)):
                yield f"{name}, {samples}", at | {"origin": SYNTHETIC}


def groups_text(record: Mapping[str, Any] | None) -> str:
    """Return the numbers of groups of a cell."""
    return "" if record is None else _range(record["groups"])


def seeds_text(row: Sequence[Mapping[str, Any] | None]) -> str:
    """Return on how many seeds the cells of a line were measured."""
    return f"{_range([len(record['seeds']) for record in row if record is not None])} seeds"


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low} to {high}"


def maps_table(records: Records) -> str:
    """Return AUC and CA(0) of `carvy` by what the map is made of."""
    at = dict(zip(("dataset", "samples", "partition"), PICTURE, strict=True))
    at |= {"noise": "local", "method": "carvy"}
    rows = {
        title: by_epsilon(records, **at, origin=origin)[1:] for origin, title in ORIGINS.items()
    }
    lines = [[title, *map(cell_text, row)] for title, row in rows.items() if any(row)]
    return markdown(["the map is made of", *COLUMNS[1:]], lines)


def frozen_table(records: Records) -> str:
    """Return AUC and CA(0) with a frozen network's features; of synthetic images, `carvy` only."""
    lines = []
    of_network = [record for record in records if record["dataset"] == FROZEN]
    for partition, origin in dict.fromkeys((r["partition"], r["origin"]) for r in of_network):
        title = [partition, ORIGINS[origin].removesuffix(" (default)")]
        for method in METHODS if origin == NOTHING else METHODS[:1]:
            at = {"partition": partition, "origin": origin, "method": method}
            lines.append([*title, method, *map(cell_text, by_epsilon(of_network, **at))])
            title = ["", ""]
        if partition not in FIXED:
            row = by_epsilon(of_network, partition=partition, origin=origin, method=METHODS[0])
            lines.append(["", "", "G chosen", *map(groups_text, row)])
    return markdown(["clients", "the map is made of", "groups", *COLUMNS], lines)


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
        levels["this learner"] = float(first["auc_mean"])
    printed = paper()["ca_auc_by_groups"]
    place = printed["groups"].index(BEST_GROUPS)
    for method, name in (("carvy", "the paper"), ("flcert", "FLCert")):
        levels[name] = float(printed[PICTURE[0]][method][place])
    return TradeOff(
        "Private and certified, from one message of 10 KB per client\n"
        f"({DATASETS[PICTURE[0]]}, 100 clients of {PICTURE[1]} samples)",
        [record["epsilon"] for record in drawn],
        [record["auc_mean"] for record in drawn],
        [record["auc_sd"] or 0.0 for record in drawn],
        levels,
    )


@paint.register(TradeOff)
def _paint_trade_off(panel: TradeOff, axes: Axes) -> None:
    places, right = range(len(panel.epsilons)), len(panel.epsilons) - 0.5
    error: dict[str, Any] = {"ecolor": "black", "elinewidth": 1, "capsize": 3}
    axes.bar(places, panel.areas, 0.72, yerr=panel.sds, color=BLUE, error_kw=error)
    for place, area in zip(places, panel.areas, strict=True):
        inside: dict[str, Any] = {"ha": "center", "va": "center", "color": "white"}
        axes.text(place, INSIDE, f"{area:.0f}", **inside, fontsize=15, weight="bold")
    beside: dict[str, Any] = {"xytext": (5, 0), "textcoords": "offset points", "va": "center"}
    beside |= {"color": INK, "fontsize": 11}
    axes.annotate("without privacy:", (right, TOP), **beside, weight="bold")
    for name, level in panel.levels.items():
        axes.hlines(level, -0.5, right, color=VERMILLION, linewidth=1.6, linestyle=(0, (5, 2)))
        axes.annotate(f"{level:.0f}  {name}", (right, level), **beside)
    axes.set_xticks(places, [f"ε = {epsilon:g}" for epsilon in panel.epsilons], fontsize=12)
    axes.set(xlim=(-0.5, right), ylim=(0, TOP), ylabel="certified: area under CA(m)")
    axes.set_xlabel("more private →", fontsize=12)
    axes.tick_params(length=0)
    axes.spines[["top", "right"]].set_visible(False)
