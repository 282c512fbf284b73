"""End to end: draw and tabulate what was measured. Nothing is trained."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from carvyfl.core.errors import CarvyError
from carvyfl.core.files import write_text
from carvyfl.paper.markdown import markdown
from carvyfl.paper.studies.attacks import NAMES
from carvyfl.plots.draw import draw, save
from carvyfl.plots.figure import Curve, HeatMap, Panel
from carvyfl.plots.style import M, method_style

if TYPE_CHECKING:
    import pandas as pd

    Summary = Callable[[pd.Series[Any], int], str]

CURVES = {
    "honest only, by chance": ("random slots, without the malicious, by chance", "slots"),
    "honest only": ("random slots, without the malicious (Δ ≥ 2m)", "slots"),
    "all honest, by chance": ("random slots, all honest, by chance", "wrap"),
    "all honest": ("random slots, all honest (Δ ≥ 4m)", "wrap"),
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
