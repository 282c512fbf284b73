"""Draw and tabulate what studies measured. Nothing is trained."""

from __future__ import annotations

import json
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from carvyfl.core.errors import CarvyError
from carvyfl.core.files import write_text
from carvyfl.groups.methods import GROUPINGS
from carvyfl.plots.draw import draw, save
from carvyfl.plots.figure import Curve, Panel
from carvyfl.plots.style import CA, M, Style, method_style, nth_style
from carvyfl.voting.spread import Spread, mean_sd
from reproduction import records
from reproduction.markdown import markdown
from reproduction.panels import HeatMap
from reproduction.published import DATASETS
from reproduction.studies.attacks import NAMES
from reproduction.studies.common import LEVEL, largest_m, write_record
from reproduction.studies.heterogeneity import CHOSEN, PARTITIONS, Cell, read_rows

if TYPE_CHECKING:
    import pandas as pd

    Summary = Callable[[pd.Series[Any], int], str]

Rows = Mapping[tuple[str, str, int], Sequence[Mapping[str, Any]]]
"""What was measured of every seed, by partition, method and the G that was asked for."""

CURVES = {
    "honest only, by chance": ("random slots, without the malicious, by chance", "slots"),
    "honest only": ("random slots, without the malicious (Δ ≥ 2m)", "slots"),
    "all honest, by chance": ("random slots, all honest, by chance", "cluster"),
    "all honest": ("random slots, all honest (Δ ≥ 4m)", "cluster"),
    "flcert": ("FLCert", "flcert"),
    "balanced": ("balanced random", "balanced"),
}
"""What the figure of E2E-CA may show: its name there, and the method whose style it has."""
COLUMNS = {
    "grouping": ("grouping", "{}"),
    "attack": ("attack", "{}"),
    "m": ("m", "{}"),
    "num_groups": ("G", "{:.0f}"),
    "types_covered": ("types in a group", "{:.0%}"),
    "types_exact": ("honest types exact", "{}"),
    "groups_unchanged": ("groups unchanged", "{:.0f}"),
    "ca_promised": ("CA(m) promised", "{:.1f}"),
    "ca": ("CA(m) under attack", "{:.1f}"),
    "accuracy_worst": ("accuracy left", "{:.1f}"),
    "kept": ("kept", "{}"),
}
"""What is tabulated of an attack: the column's name, and how it is written."""
LEARNERS = {"scaffold": "CNN, SCAFFOLD", "one-shot": "one-shot heads"}
"""The files of the figure of heterogeneity, and their titles."""
HEADS, SIZES = ("carvy", "flcert"), ("50", "500")
"""The groupings and the samples per client of the figure of one-shot learning."""


def _files(folder: Path, ending: str, study: str) -> list[Path]:
    """Return the files of a study, by name."""
    found = sorted(folder.glob(f"*.{ending}"))
    if not found:
        raise CarvyError(f"{folder} holds no results; run '{study}' first")
    return found


def _spread(values: Sequence[float], digits: int = 1) -> str:
    """Return mean ± sd; nothing of nothing."""
    return mean_sd(values, digits) if len(values) else ""


# End to end.


def present(args: Namespace) -> None:
    """End to end: draw and tabulate what was measured. Nothing is trained.

    There is a panel for each data set and size that the folder holds.
    """
    import pandas as pd  # of the extra `paper`

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
            rows = pd.DataFrame(record["rows"])
            rows = rows[rows["grouping"].isin(NAMES)]  # others have been taken out since
            write_text(path.with_suffix(".md"), attacks_table(rows))
            formed = rows[(rows["m"] > 0) & rows["num_groups"].notna()]
            write_text(folder / f"attacks-summary-{name}.md", attacks_summary(rows, formed))
            maps.append(attacks_map(title, formed))
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
            ca, low, high = (record[name][part] for part in ("ca", "low", "high"))
            style = method_style(method)
            drawn = style.dotted() if "by chance" in name else style
            curves.append(Curve(legend, range(len(ca)), ca, low, high, drawn))
    return Panel(title, M, "certified end to end, %", curves)


def attacks_table(rows: pd.DataFrame) -> str:
    """Return a line for every grouping under every attack."""
    words = {True: "yes", False: "no"}
    shown = rows.assign(kept=rows["kept"].map(words), types_exact=rows["types_exact"].map(words))
    heads, columns = [], []
    for name, (head, form) in COLUMNS.items():
        texts = shown[name].map(form.format, na_action="ignore")
        columns.append(texts.fillna("none" if head == "G" else ""))  # groups that were impossible
        heads.append(head)
    return markdown(heads, zip(*columns, strict=True))


def attacks_summary(rows: pd.DataFrame, formed: pd.DataFrame) -> str:
    """Return a line for every grouping and m: the worst that any attack does to it."""

    def least(form: str) -> Summary:
        return lambda own, tried: form.format(own.min())

    columns: dict[str, tuple[str, Summary]] = {
        "G": ("num_groups", lambda own, tried: _range(own.astype(int))),
        "least types in a group": ("types_covered", least("{:.0%}")),
        "honest types exact": ("types_exact", _count),
        "fewest groups unchanged": ("groups_unchanged", least("{:.0f}")),
        "CA(m) promised": ("ca_promised", lambda own, tried: _range(own.map(_tenth))),
        "least CA(m) under attack": ("ca", least("{:.1f}")),
        "least accuracy left": ("accuracy_worst", least("{:.1f}")),
        "promise kept": ("kept", _count),
    }
    tried: Any = rows.groupby(["grouping", "m"]).size()
    cells: dict[Any, pd.DataFrame] = dict(iter(formed.groupby(["grouping", "m"])))
    body = [
        [name, f"{m}", *(text(own[key].dropna(), tried[name, m]) for key, text in columns.values())]
        for (name, m), own in sorted(cells.items(), key=lambda cell: NAMES.index(cell[0][0]))
    ]
    return markdown(["grouping", "m", *columns], body)


def _tenth(percent: float) -> float:
    return round(percent, 1)  # as decimal numbers are rounded, which numpy does not do


def _range(values: pd.Series[Any]) -> str:
    low, high = values.min(), values.max()
    return f"{low}" if low == high else f"{low}–{high}"


def _count(facts: pd.Series[Any], tried: int) -> str:
    return f"{facts.sum()} of {tried}" if len(facts) else ""


def attacks_map(title: str, formed: pd.DataFrame) -> HeatMap:
    """Return the accuracy that every attack leaves to every grouping, beside what was promised."""

    def text(row: Any) -> str:
        # Numbers and a cross, so that nothing is said by colour alone.
        left, promised = f"{row.accuracy_worst:.0f}", f"{row.ca_promised:.0f}"
        return f"{left} ≥ {promised}" if row.kept else f"✗ {left} < {promised}"

    named = formed.assign(
        row=formed["attack"] + ", m = " + formed["m"].astype(str),
        text=[text(row) for row in formed.itertuples()],
    )
    cells = named.set_index(["row", "grouping"])
    names = list(named["row"].unique())
    left, texts = (
        cells[part].unstack().reindex(index=names, columns=NAMES)
        for part in ("accuracy_worst", "text")
    )
    shown = texts.fillna("").to_numpy().tolist()
    return HeatMap(title, "accuracy left, %", names, list(NAMES), left.to_numpy(), shown)


# Any heterogeneity.


def heterogeneity_figures(args: Namespace) -> None:
    """Any heterogeneity: tabulate and draw what was measured.

    Reads the LEARNER.jsonl files of the study; writes a table for each, the curves over G, and a
    summary of all of them, heterogeneity.json, one folder up.
    """
    folder: Path = args.out
    paths = _files(folder, "jsonl", "heterogeneity")
    files = {path.stem: by_cell(read_rows(path)) for path in paths}
    for name, rows in files.items():
        write_text(folder / f"{name}.md", heterogeneity_table(rows))
    panels = [groups_panel(title, files[n]) for n, title in LEARNERS.items() if n in files]
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


def heterogeneity_table(rows: Rows) -> str:
    """Return the AUC by partition: every method at the G that most have, and with G chosen."""
    asked = {(method, groups) for _, method, groups in rows if groups != CHOSEN}
    fixed = Counter(groups for _, groups in asked).most_common(1)[0][0]
    methods = [m for m in (*GROUPINGS, "flcert-p") if any(key[1:] == (m, fixed) for key in rows)]
    lines = []
    for name in PARTITIONS:
        if not any(key[0] == name for key in rows):
            continue
        cells = [_area(rows.get((name, method, fixed), [])) for method in methods]
        chosen = rows.get((name, "carvy", CHOSEN), [])
        cells.append(", ".join(map(str, sorted({row["groups"] for row in chosen}))))
        cells += [_area(rows.get((name, m, CHOSEN), [])) for m in ("carvy", "balanced")]
        cells.append(_spread([largest_m(row["ca"]) for row in chosen]))
        lines.append([name, *cells])
    head = ["clients' data", *(f"{method}, G = {fixed}" for method in methods)]
    head += ["G chosen", "carvy there", "balanced there", f"largest m at {LEVEL} %"]
    return markdown(head, lines)


def _area(rows: Sequence[Mapping[str, Any]]) -> str:
    return _spread([row["auc"] for row in rows], 0)


def groups_panel(title: str, rows: Rows) -> Panel:
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
    found = []
    for (partition, method, groups), own in rows.items():
        areas, machine = [row["auc"] for row in own], own[0]["environment"]
        found.append(
            {
                "partition": partition,
                "method": method,
                "groups": groups or "chosen",
                "groups_taken": [row["groups"] for row in own],
                "seeds": [row["cell"][1] for row in own],
                "auc": areas,
                "auc_mean": round(float(np.mean(areas)), 1),
                "auc_sd": round(float(np.std(areas, ddof=1)), 1) if len(own) > 1 else None,
                "accuracy": round(float(np.mean([row["ca"][0] for row in own])), 1),
                "largest_m": [largest_m(row["ca"]) for row in own],
                "commit": own[0]["commit"],
                "hardware": machine["gpu"] or machine["processor"],
            }
        )
    return found


# One-shot learning.


def one_shot_figures(args: Namespace) -> None:
    """One-shot learning: draw and tabulate what was measured, the CNN's records beside it.

    Writes a table for every file of a folder, and the figure of those that have a CNN's curves:
    those of the preset `default`, in default.jsonl one folder up.
    """
    from reproduction.summaries import frame, own_groups  # pandas, of the extra `paper`

    folder: Path = args.out
    files = {p.stem: json.loads(p.read_text()) for p in _files(folder, "json", "one-shot")}
    trials = own_groups(frame(records.load(folder.parent / "default.jsonl")))
    cnn: dict[Any, pd.DataFrame] = dict(iter(trials.groupby(["dataset", "samples", "method"])))
    panels = []
    for name, record in files.items():
        write_text(folder / f"{name}.md", one_shot_table(name, record["sizes"], cnn))
        for samples, found in record["sizes"].items():
            if name in DATASETS and samples in SIZES:
                curves = []
                for method in HEADS:
                    style, key = method_style(method), (name, int(samples), method)
                    curves.append(_curve(f"{style.label}, one-shot", found[method]["ca"], style))
                    if key in cnn:
                        own = cnn[key]["ca"]
                        curves.append(_curve(f"{style.label}, CNN", own, style.dotted()))
                title = f"{DATASETS[name]}, {samples} samples per client"
                panels.append(Panel(title, M, CA, curves))
    if panels:
        save(draw(panels, columns=2), folder / "ca.svg")


def _curve(name: str, trials: Iterable[Sequence[float]], style: Style) -> Curve:
    """Return the mean over the seeds, with a band of one standard deviation."""
    found = Spread.of(trials)
    mean = found.mean.tolist()
    low, high = map(np.ndarray.tolist, found.band or (found.mean, found.mean))
    return Curve(name, range(len(mean)), mean, low, high, style)


def one_shot_table(name: str, sizes: Mapping[str, Any], cnn: Mapping[Any, pd.DataFrame]) -> str:
    """Return a line for every size and grouping: the CNN's area, and what the heads reach.

    The CNN's trials are by data set, samples and method.
    """
    rows = []
    for samples, found in sizes.items():
        for method, own in found.items():
            if method == "seconds":
                continue
            key = name, int(samples), method
            areas = cnn[key]["auc"].to_list() if key in cnn else []
            clean, last = [curve[0] for curve in own["ca"]], own["largest_m"]
            reached = _spread(last) if min(last) >= 0 else "none"
            rows.append(
                [samples, method, _spread(areas), _spread(own["auc"]), _spread(clean), reached]
            )
    head = ["samples", "groups", "AUC, CNN", "AUC, one-shot", "CA(0), %", f"largest m at {LEVEL} %"]
    return markdown(head, rows)
