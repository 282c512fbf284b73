"""The paper's tables beside ours, from the trials of one preset.

A cell holds a number of the paper, ours, and the difference. People read a table wide (three
columns for each column of the table), programs read it long (a CSV line for each cell).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import nan

import pandas as pd

from carvyfl.paper.markdown import markdown
from carvyfl.paper.published import (
    BEST_GROUPS,
    DATASETS,
    HIT_M,
    LEVELS,
    METHODS,
    PRESETS,
    REDUCTION_M,
    SAMPLES,
    SWEEP_SAMPLES,
    group_counts,
    paper,
)
from carvyfl.paper.records import Record
from carvyfl.paper.summaries import (
    NOT_FOUND,
    READINGS,
    asr_reduction,
    at,
    attack_note,
    attacked,
    by_outcome,
    label,
    largest_m,
    max_sd,
    mean_curve,
    methods_in,
    own_groups,
    paper_size,
    size_note,
    stats,
    swept,
    swept_areas,
    tolerated,
    where,
)
from carvyfl.paper.targets import PAPER_ATTACK

PROMISE_M = (0, 1, 2, 3, 4, 6, 8, 10, 12, 16, 20)
"""Where the accuracy under attack is tabulated; its figure has every m."""
HIT = f"groups hit at m = {HIT_M}, FLCert"
CA0 = "CA(0) in %"
OVERVIEW = (f"AUC, {SWEEP_SAMPLES} samples a client", "paper", *(f"preset {p}" for p in PRESETS))
"""The columns of :func:`overview`."""


@dataclass(frozen=True, eq=False)
class Table:
    """Numbers of the paper beside ours.

    Attributes
    ----------
    name
        What its files are called.
    title
        What it shows.
    corner
        What the rows are.
    cells
        By row and column, in order: paper, ours (the mean), sd, trials and difference; NaN is
        missing.
    used
        The trials it was computed from; none: there is nothing to show yet.
    note
        What a reader should know about it.
    digits
        Decimal places.
    parts
        What the two compared numbers and their difference are.
    """

    name: str
    title: str
    corner: str
    cells: pd.DataFrame
    used: pd.DataFrame
    note: str = ""
    digits: int = 1
    parts: tuple[str, str, str] = ("paper", "ours", "difference")

    @property
    def source(self) -> tuple[Record, ...]:
        """The records of these trials."""
        return tuple(self.used["record"])

    def row(self, name: str) -> pd.DataFrame:
        """Return the cells of a row, by column."""
        return self.cells.loc[[name]].droplevel("row")

    def column(self, name: str) -> pd.DataFrame:
        """Return the cells of a column, by row."""
        return self.cells.swaplevel().loc[[name]].droplevel("column")

    def texts(self) -> pd.DataFrame:
        """Return paper, ours as mean ± sd (trials) and difference, as people read them."""
        cells, digits = self.cells, self.digits
        sd = cells["sd"].map(lambda sd: "" if pd.isna(sd) else f" ± {sd:.{digits}f}")
        trials = cells["trials"].map(lambda n: "" if pd.isna(n) else f" ({n:.0f})")
        texts = cells[["paper", "ours"]].map(lambda value: _text(value, digits))
        difference = cells["difference"].map(lambda value: _text(value, digits, "+"))
        return texts.assign(ours=texts["ours"] + sd + trials, difference=difference)

    def wide(self) -> pd.DataFrame:
        """Return the wide form; without a number of the paper's, only ours is worth showing."""
        texts = self.texts().set_axis(list(self.parts), axis=1)
        wide = pd.DataFrame(texts.unstack("column", sort=False))
        compared = self.cells["paper"].notna().groupby("column", sort=False).any()
        shown = [
            (part, column)
            for column, both in compared.items()
            for part in (self.parts if both else self.parts[1:2])
        ]
        return wide[shown].set_axis([f"{column}: {part}" for part, column in shown], axis=1)

    def head(self) -> list[str]:
        """Return the names of the wide form's columns."""
        return [self.corner, *self.wide().columns]

    def body(self) -> list[list[str]]:
        """Return the wide form's lines."""
        return [list(line) for line in self.wide().itertuples()]

    def how_to_read(self) -> str:
        """Say what our numbers are."""
        any_sd = self.cells["sd"].notna().any()
        mean = "Mean ± sample standard deviation over seeds; in" if any_sd else "In"
        return f"{mean} brackets the number of trials."

    def markdown(self) -> str:
        """Return the wide form as a Markdown table."""
        return markdown(self.head(), self.body(), numbers=True)

    def csv(self) -> str:
        """Return the long form: row, column, paper, mean, sd, trials, difference."""
        first, ours, difference = self.parts
        plain = self.cells.map(lambda x: "" if pd.isna(x) else f"{x:.4f}".rstrip("0").rstrip("."))
        return plain.set_axis([first, ours, "sd", "trials", difference], axis=1).to_csv(
            index_label=[self.corner, "column"], lineterminator="\n"
        )


def _text(value: float, digits: int, sign: str = "") -> str:
    if pd.isna(value):
        return "–"
    text = f"{value:{sign}.{digits}f}"
    return text.lstrip("+-") if float(text) == 0 else text.replace("-", "−")


def _cells(
    rows: Iterable[object], columns: Iterable[str], ours: pd.DataFrame, printed: pd.DataFrame
) -> pd.DataFrame:
    """Return the cells of a table.

    Parameters
    ----------
    rows, columns
        Their names, in order.
    ours
        Mean, sd and trials by row and column.
    printed
        The paper's numbers, with rows and columns as far as it has any.
    """
    index = pd.MultiIndex.from_product([map(str, rows), columns], names=["row", "column"])
    ours = ours.set_axis(ours.index.map(lambda key: (str(key[0]), key[1])))
    cells = ours.dropna(subset="mean").reindex(index).rename(columns={"mean": "ours"})
    known = printed.set_axis(printed.index.map(str)).stack().to_dict()
    cells.insert(0, "paper", pd.Series([known.get(key) for key in index], index, dtype=float))
    return cells.assign(difference=cells["ours"] - cells["paper"])


def _labels(methods: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(map(label, methods)))


def _if_alike(used: pd.DataFrame, printed: pd.DataFrame) -> pd.DataFrame:
    """Return the paper's numbers unless our trials have fewer samples than its own."""
    return pd.DataFrame() if size_note(used) else printed


def groups_auc(trials: pd.DataFrame, dataset: str) -> Table:
    """AUC of CA for every G, 500 samples per client."""
    used = where(swept(trials, *METHODS), dataset=dataset)
    printed = _if_alike(used, swept_areas(dataset).rename(columns=label))
    ours = stats(used, "auc", "groups", "label")
    cells = _cells(group_counts(), _labels(METHODS), ours, printed)
    title = f"AUC of certified accuracy for each number of groups on {DATASETS[dataset]}"
    return Table(f"groups-{dataset}", title, "G", cells, used, size_note(used))


def asr_areas(trials: pd.DataFrame, attack: str = PAPER_ATTACK) -> Table:
    """AUC of 100 − ASR over m = 0 … 20, under both readings of a lost vote."""
    used = attacked(trials, attack)
    published = pd.DataFrame({name: paper()["asr_auc"][key] for key, name in DATASETS.items()})
    ours, printed = [], []
    for reading, addition in READINGS.items():
        named = used.assign(row=used["label"] + addition)
        ours.append(stats(named, f"area_{reading}", "row", "name"))
        printed.append(published.set_axis([label(method) + addition for method in published.index]))
    methods = _labels([*METHODS, *methods_in(used)])
    rows = [method + addition for method in methods for addition in READINGS.values()]
    beside = _if_alike(used, pd.concat(printed))
    cells = _cells(rows, DATASETS.values(), pd.concat(ours), beside)
    note = (
        "A group whose model an attack drives to NaN is lost: it casts no vote, or under the "
        f"second reading one for the attacker's target. {attack_note(used)}"
    )
    title = "AUC of 100 − ASR over m = 0 … 20"
    return Table(f"{attack_stem(attack)}-auc", title, "method", cells, used, note.rstrip())


def attack_stem(attack: str) -> str:
    """Return how the files of an attack's figures and tables begin: as its target is called."""
    return attack.replace(PAPER_ATTACK, "asr")


def asr_details(trials: pd.DataFrame, attack: str = PAPER_ATTACK) -> Table:
    """ASR at m = 6 and 8 against FLCert, and the groups that FLCert's hash exposes at m = 10."""
    used = attacked(trials, attack)
    used = used[used["method"].isin(["carvy", "flcert"])]
    ours, printed = {}, {}
    for m in REDUCTION_M:
        for reading, addition in READINGS.items():
            row = reduction(m) + addition
            ours[row] = asr_reduction(used, m, reading)
            printed[row] = {} if size_note(used) else paper()["asr_reduction_vs_flcert"][str(m)]
    ours[HIT] = stats(at(where(used, method="flcert"), "groups_hit", HIT_M), "at", "name")
    # The hash knows no data: this number does not depend on the samples.
    hit = paper()["flcert_groups_hit_at_m10"]
    printed[HIT] = dict.fromkeys(DATASETS, hit["mean"])
    beside = pd.DataFrame(printed).T.rename(columns=DATASETS)
    cells = _cells(ours, DATASETS.values(), pd.concat(ours), beside)
    note = (
        "The paper's reductions are approximate, read here as points of the mean ASR; its "
        f"groups hit are {hit['mean']} ± {hit['sd']}. Reductions are taken seed by seed."
    )
    title = "Points by which CARVY-FL's ASR is below FLCert's, and how many groups are hit"
    return Table(f"{attack_stem(attack)}-details", title, "quantity", cells, used, note)


def reduction(m: int) -> str:
    """Return the name of a row of :func:`asr_details`."""
    return f"ASR reduction at m = {m}"


def promise(trials: pd.DataFrame, dataset: str) -> Table:
    """CA(m) promised, and the accuracy that was left under attack."""
    used = where(attacked(trials), dataset=dataset)
    parts = {label(method): where(used, method=method) for method in methods_in(used)}
    real = {name: mean_curve(part, "accuracy") for name, part in parts.items()}
    promised = pd.DataFrame({name: mean_curve(part)["mean"] for name, part in parts.items()})
    rows = [m for m in PROMISE_M if any(m in curve.index for curve in real.values())]
    ours = pd.concat(real or {"": mean_curve(used)}).swaplevel()
    cells = _cells(rows, parts, ours, promised)
    title = f"Certified accuracy and accuracy under attack on {DATASETS[dataset]}, in %"
    note = f"{size_note(used)} The difference must never be negative.".lstrip()
    compared = ("CA(m)", "under attack", "difference")
    return Table(f"promise-{dataset}", title, "m", cells, used, note, parts=compared)


def mnist_50(trials: pd.DataFrame) -> Table:
    """MNIST with 50 samples: CA(0), and the largest m with CA over 80, 60, 40 and 20 %."""
    used = where(own_groups(trials), dataset="mnist", samples=50)
    published = paper()["ca_mnist_50"]
    ours, printed = {CA0: stats(used, "ca0", "label")}, {CA0: published["ca0"]}
    for level in LEVELS:
        ours[over(level)] = tolerated(used, level, "label")
        printed[over(level)] = published["largest_m_with_ca_over"][str(level)]
    for level in LEVELS:
        each = [float(largest_m(pd.Series(ca), level)) for ca in used["ca"]]
        ours[f"{over(level)}, by trial"] = stats(used.assign(each=each), "each", "label")
    columns = _labels([*METHODS, *methods_in(used)])
    cells = _cells(ours, columns, pd.concat(ours), pd.DataFrame(printed).T.rename(columns=label))
    note = (
        "m over 80 %: the largest m at which CA(m) is over 80 %, of the mean curve (the "
        "paper's whole numbers suggest this) and by trial; −1 where not even CA(0) is."
    )
    title = "Certified accuracy on MNIST with 50 training samples"
    return Table("ca-mnist-50", title, "quantity", cells, used, note)


def over(level: int) -> str:
    """Return the name of a row of :func:`mnist_50`."""
    return f"m over {level} %"


def ca_areas(trials: pd.DataFrame, dataset: str) -> Table:
    """AUC of CA of every method at its own G; the paper prints that of 500 samples, G = 20."""
    used = where(own_groups(trials), dataset=dataset)
    printed = swept_areas(dataset).loc[[BEST_GROUPS]].set_axis([SWEEP_SAMPLES])
    ours = stats(used, "auc", "samples", "label")
    columns = _labels([*METHODS, *methods_in(used)])
    cells = _cells(SAMPLES, columns, ours, printed.rename(columns=label))
    title = f"AUC of certified accuracy on {DATASETS[dataset]}"
    note = (
        f"The paper's number for {SWEEP_SAMPLES} samples is that of its sweep at G = {BEST_GROUPS}."
    )
    return Table(f"ca-auc-{dataset}", title, "samples a client", cells, used, note)


def largest_sd(trials: pd.DataFrame, dataset: str) -> Table:
    """Largest standard deviation of CA(m) over m, for every number of samples."""
    used = where(own_groups(trials), dataset=dataset)
    used = used[used["method"].isin(METHODS)]
    published = paper()["max_sd_of_ca_fashion_mnist"] if dataset == "fashion-mnist" else {}
    printed = pd.DataFrame(published).T.rename(columns=label)
    cells = _cells(SAMPLES, _labels(METHODS), max_sd(used, "samples", "label"), printed)
    title = f"Largest standard deviation of CA(m) on {DATASETS[dataset]}, in points"
    return Table(f"ca-sd-{dataset}", title, "samples a client", cells, used, digits=2)


def type_failures(trials: pd.DataFrame) -> Table:
    """How often Step 1 did not find exactly the true types, in ten trials."""
    used = where(trials, kind="types")
    failed = used.assign(failed=10.0 * ~used["exact"].astype(bool))
    ours = stats(failed, "failed", "samples", "name").assign(sd=nan)
    published = paper()["type_estimation_failures_of_10"]
    printed = pd.DataFrame({name: published[dataset] for dataset, name in DATASETS.items()})
    cells = _cells(SAMPLES, DATASETS.values(), ours, printed)
    title, note = "Failed type estimations in ten trials", "Our count is scaled to ten trials."
    return Table("types", title, "samples a client", cells, used, note)


def failed_types(trials: pd.DataFrame) -> Table:
    """CARVY-FL on Fashion-MNIST when Step 1 succeeds and when it fails; the largest size."""
    parts = by_outcome(trials)
    used = pd.concat([part.assign(outcome=name) for name, part in parts.items()])
    values = {"groups": "num_groups", CA0: "ca0", "AUC of CA": "auc"}
    ours = pd.concat({row: stats(used, value, "outcome") for row, value in values.items()})
    failed = paper()["type_estimation_failures_of_10"]["groups_when_failed"]
    printed = {"groups": dict.fromkeys(parts, BEST_GROUPS) | {NOT_FOUND: failed}}
    cells = _cells(values, parts, ours, pd.DataFrame(printed).T)
    title = "CARVY-FL on Fashion-MNIST by the outcome of type estimation"
    return Table("failed-types", title, "quantity", cells, used, size_note(used))


def overview(found: Mapping[str, pd.DataFrame]) -> list[list[str]]:
    """Return the headline areas, a line for every data set, measure and method.

    Parameters
    ----------
    found
        The trials of every preset.
    """
    lines = []
    alike = [paper_size(found[preset]) for preset in PRESETS]
    under_attack = [asr_areas(trials).texts() for trials in alike]
    for dataset, name in DATASETS.items():
        certified = [ca_areas(trials, dataset).texts() for trials in alike]
        rows = [(f"{name}, CA: {m}", certified, (str(SWEEP_SAMPLES), m)) for m in _labels(METHODS)]
        rows += [(f"{name}, 100 − ASR: {m}", under_attack, (m, name)) for m in _labels(METHODS)]
        for title, texts, cell in rows:
            printed = str(texts[0].loc[cell, "paper"])  # all presets share it
            lines.append([title, printed, *(str(text.loc[cell, "ours"]) for text in texts)])
    return lines
