"""The paper's figures and tables beside ours, and which of them each target shows.

All are computed from the trials of one preset. A band in a figure is the mean ± one standard
deviation over seeds, within 0 to 100 %. A cell of a table holds a number of the paper, ours, and
the difference; people read a table wide (three columns for each column of the table), programs
read it long (a CSV line for each cell).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import Any

import pandas as pd

from carvyfl.plots.figure import Curve, Panel
from carvyfl.plots.style import CA, DASHES, PURPLE, M, Style, method_style, nth_style
from reproduction.markdown import markdown
from reproduction.panels import Cloud
from reproduction.published import (
    BEST_GROUPS,
    DATASETS,
    LEVELS,
    METHODS,
    PRESETS,
    SAMPLES,
    SWEEP_SAMPLES,
    group_counts,
    paper,
)
from reproduction.summaries import (
    FOUND,
    NOT_FOUND,
    READINGS,
    asr_reduction,
    at,
    attacked,
    by_outcome,
    label,
    largest_m,
    max_sd,
    mean_curve,
    methods_in,
    own_groups,
    paper_size,
    stats,
    swept,
    swept_areas,
    tolerated,
    where,
)
from reproduction.targets import PAPER_ATTACK, SCALED_ATTACK

REDUCTION_M = tuple(int(m) for m in paper()["asr_reduction_vs_flcert"] if m != "note")
"""Where the paper compares the ASR of CARVY-FL and FLCert."""
HIT_M = 10
"""The paper counts the groups that FLCert's hash exposes to ten malicious clients."""
PROMISE_M = (0, 1, 2, 3, 4, 6, 8, 10, 12, 16, 20)
"""Where the accuracy under attack is tabulated; its figure has every m."""
HIT, REDUCTION = f"groups hit at m = {HIT_M}, FLCert", "ASR reduction at m = {}"
CA0, OVER, BY_TRIAL = "CA(0) in %", "m over {} %", "m over {} %, by trial"
"""The names of rows."""
OVERVIEW = (f"AUC, {SWEEP_SAMPLES} samples a client", "paper", *(f"preset {p}" for p in PRESETS))
"""The columns of :func:`overview`."""
STEMS = {PAPER_ATTACK: "asr", SCALED_ATTACK: "asr-scaled"}
"""How the files of an attack's figures and tables begin: as its target is called."""


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure: what its files are called, what it shows, and the trials it was computed from.

    Without trials there is nothing to show yet. ``columns`` are the panels in a row.
    """

    name: str
    title: str
    panels: Sequence[Panel] | Sequence[Cloud]
    used: pd.DataFrame
    note: str = ""
    columns: int = 2

    @property
    def caption(self) -> str:
        """What stands below it."""
        return " ".join(filter(None, [self.note, provenance(self.used)]))


@dataclass(frozen=True, eq=False)
class Table:
    """Numbers of the paper beside ours.

    ``cells`` have, by row and column in order: paper, ours (the mean), sd, trials and difference;
    NaN is missing. ``corner`` says what the rows are, ``parts`` what the two compared numbers and
    their difference are; ``digits`` are decimal places.
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
    def caption(self) -> str:
        """What stands below it."""
        any_sd = self.cells["sd"].notna().any()
        mean = "Mean ± sample standard deviation over seeds; in" if any_sd else "In"
        how = f"{mean} brackets the number of trials."
        return " ".join(filter(None, [self.note, how, provenance(self.used)]))

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
        wide = wide[shown].set_axis([f"{column}: {part}" for part, column in shown], axis=1)
        return wide.reset_index(names=self.corner)

    def markdown(self) -> str:
        """Return the wide form as a Markdown table."""
        wide = self.wide()
        return markdown(list(wide.columns), wide.to_numpy().tolist(), numbers=True)

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


# What a reader should know.


def provenance(trials: pd.DataFrame) -> str:
    """Say what computed these trials: command, commit, hardware, seeds, number, time."""

    def all_of(name: str) -> str:
        found = {str(own[name]) for own in trials["environment"] if own.get(name)}
        return ", ".join(sorted(found)) or "unknown"

    taken = trials["seconds"].dropna()
    time = f"{duration(sum(taken))} of training" if len(taken) else "time not taken"
    if 0 < len(taken) < len(trials):  # an interrupted trial does not know its time
        time += f" for {len(taken)} of them, not taken for the rest"
    return (
        f"Command: {all_of('command')}; commit {all_of('commit')}; "
        f"{all_of('hardware')}, torch {all_of('torch')}, "
        f"{all_of('engine')} engine, {all_of('precision')}; "
        f"seeds {seeds_text(trials['seed'])}; "
        f"{len(trials)} {'trial' if len(trials) == 1 else 'trials'}; "
        f"{time}."
    )


def seeds_text(seeds: Iterable[int]) -> str:
    """Write seeds shortly: ``0–2, 5``."""
    found = pd.Series(sorted(set(seeds)))
    runs = found.groupby(found.diff().ne(1).cumsum())  # a gap begins a new run
    return ", ".join(
        str(a) if a == b else f"{a}–{b}" for a, b in runs.agg(["min", "max"]).to_numpy()
    )


def duration(seconds: float) -> str:
    """Write a time as people say it."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def size_note(trials: pd.DataFrame) -> str:
    """Say so if there are only trials smaller than the paper's."""
    if trials.empty or not paper_size(trials).empty:
        return ""
    return (
        f"{trials['samples'].iloc[0]} samples a client; the paper's numbers are for "
        f"{SWEEP_SAMPLES} and left out."
    )


def attack_note(trials: pd.DataFrame) -> str:
    """Say where the malicious clients sat, method by method, and if trials are small."""
    parts = [
        f"{label(method)} {', '.join(sorted(set(where(trials, method=method)['placement'])))}"
        for method in methods_in(trials)
    ]
    placed = f"Placement of the malicious clients: {'; '.join(parts)}." if parts else ""
    return f"{size_note(trials)} {placed}".strip()


# Figures.

Line = tuple[str, pd.DataFrame, Style]
"""A curve to be drawn: its name, mean, sd and trials by x (without an sd it has no band)."""


def _panel(
    title: str,
    lines: Iterable[Line],
    y: str = CA,
    x: str = M,
    y_range: tuple[float, float] | None = (0.0, 100.0),
) -> Panel:
    """Return a panel of means with bands; lines without points are left out."""
    curves = []
    for name, found, style in lines:
        if found.empty:
            continue
        mean, sd = found["mean"], found["sd"]
        highest = y_range[1] if y_range else None
        bands = [(mean + way * sd).clip(0, highest).to_list() for way in (-1, 1)]
        low, high = bands if sd.notna().all() else (None, None)
        counted = f"{name} (n = {', '.join(map(str, sorted(set(found['trials']))))})"
        points = found.index.astype(float).to_list()
        curves.append(Curve(counted, points, mean.to_list(), low, high, style))
    return Panel(title, x, y, curves, y_range)


def _by_method(trials: pd.DataFrame, value: str = "ca") -> list[Line]:
    """Return the mean curve of every method that has trials."""
    return [
        (label(method), mean_curve(where(trials, method=method), value), method_style(method))
        for method in methods_in(trials)
    ]


def certified_accuracy(trials: pd.DataFrame, dataset: str) -> Picture:
    """CA(m) of all methods, a panel for every number of samples (2 × 2 in the paper)."""
    used = own_groups(trials, dataset=dataset)
    panels = [
        _panel(f"{samples} training samples", _by_method(where(used, samples=samples)))
        for samples in SAMPLES
    ]
    title = f"Certified accuracy for different training data sizes on {DATASETS[dataset]}"
    return Picture(f"ca-{dataset}", title, panels, used)


def attack_success(trials: pd.DataFrame, attack: str = PAPER_ATTACK) -> Picture:
    """ASR over m, a panel for each data set; groups lost to the scaled attack vote for its end."""
    used, reading = attacked(trials, attack), "asr"
    title = "Attack success rate under BadNets with model replacement"
    if attack == SCALED_ATTACK:
        reading = "asr_if_lost_votes_target"
        title = (
            "Attack success rate if attackers report the control variate of their scaled model, "
            "and groups lost to NaN vote for the target"
        )
    panels = [
        _panel(name, _by_method(where(used, name=name), reading), "attack success rate in %")
        for name in DATASETS.values()
    ]
    return Picture(STEMS[attack], title, panels, used, attack_note(used), columns=1)


def promise(trials: pd.DataFrame) -> Picture:
    """Accuracy under attack (lines) beside what CA(m) promised (thin dashes)."""
    used = attacked(trials)
    panels = []
    for name in DATASETS.values():
        here = where(used, name=name)
        lines: list[Line] = []
        for left, (method, ca, style) in zip(
            _by_method(here, "accuracy"), _by_method(here), strict=True
        ):
            thin = replace(style, dash="2 4")
            lines += [left, (f"{method}: CA(m)", ca.assign(sd=nan), thin)]
        panels.append(_panel(name, lines, "accuracy under attack in %"))
    title = "Accuracy on clean inputs under attack, and the certified accuracy it must not go below"
    return Picture("promise", title, panels, used, attack_note(used))


def sweep(trials: pd.DataFrame, method: str) -> Picture:
    """CA(m) for every G of the sweep: G ≤ 20 left, G ≥ 20 right; means only, as printed.

    The paper's panels end, and begin, with its own G.
    """
    used = swept(trials, method)
    panels = []
    for name in DATASETS.values():
        for low, high in ((1, BEST_GROUPS), (BEST_GROUPS, 100)):
            shown = where(used[used["groups"].between(low, high)], name=name).groupby("groups")
            lines = [
                (f"G = {groups}", mean_curve(part).assign(sd=nan), nth_style(position))
                for position, (groups, part) in enumerate(shown)
            ]
            panels.append(_panel(f"{name}: {low} ≤ G ≤ {high}", lines))
    title = f"Certified accuracy of {label(method)} under varying numbers of groups"
    return Picture(f"groups-{method}", title, panels, used, size_note(used))


def auc_over_groups(trials: pd.DataFrame) -> Picture:
    """AUC of CA over G, a panel for each data set: the two tables in one view."""
    used = swept(trials, *METHODS)
    panels = []
    for name in DATASETS.values():
        areas = [
            stats(where(used, name=name, method=method), "auc", "groups") for method in METHODS
        ]
        lines = [
            (label(method), own.fillna({"sd": 0.0}), method_style(method))
            for method, own in zip(METHODS, areas, strict=True)
        ]
        panels.append(_panel(name, lines, "AUC of CA(m)", "number of groups G", None))
    title = "AUC of certified accuracy over the number of groups"
    return Picture("groups-auc", title, panels, used, size_note(used))


def type_map(trials: pd.DataFrame, dataset: str, samples: int) -> Picture:
    """One-epoch updates on two principal components, by type found and true type.

    The first trial that found the types and the first that did not, as far as there are
    both: the paper shows some of each.
    """
    here = where(trials, kind="types", dataset=dataset, samples=samples).sort_values("seed")
    failed = where(here, exact=False)
    shown = pd.concat([where(here, exact=True)[:1], failed[:1]])
    clouds = []
    for _, trial in shown.iterrows():
        outcome = "exactly the true ones" if trial["exact"] else "not the true ones"
        heading = f"seed {trial['seed']}: {trial['num_types']:.0f} types found, {outcome}"
        clouds.append(Cloud(heading, trial["points"], trial["labels"], trial["true"]))
    title = f"Type estimation on {DATASETS[dataset]}, {samples} training samples"
    note = f"{len(failed)} of {len(here)} trials failed; shown is the first of each kind."
    return Picture(f"types-{dataset}-{samples}", title, clouds, shown, note)


def failed_types(trials: pd.DataFrame) -> Picture:
    """CA(m) of CARVY-FL on Fashion-MNIST: types found, and not found; the largest size."""
    parts = by_outcome(trials)
    styles = [method_style("carvy"), Style(PURPLE, "D", DASHES["D"]), method_style("flcert")]
    used = pd.concat(parts)
    size = ", ".join(map(str, used["samples"].unique()))
    curves = map(mean_curve, parts.values())
    lines = zip(parts, curves, styles, strict=True)
    title = "Certified accuracy when type estimation succeeds and when it fails"
    never = parts[NOT_FOUND].empty and not parts[FOUND].empty
    note = "Type estimation failed in no trial." if never else ""
    panel = _panel(f"Fashion-MNIST, {size} training samples", lines)
    return Picture("failed-types", title, [panel], used, note)


# Tables.


def _cells(
    rows: Iterable[object], columns: Iterable[str], ours: pd.DataFrame, printed: pd.DataFrame
) -> pd.DataFrame:
    """Return the cells of a table.

    Ours are mean, sd and trials by row and column; printed are the paper's numbers, with rows and
    columns as far as it has any, by method or data set.
    """
    index = pd.MultiIndex.from_product([map(str, rows), columns], names=["row", "column"])
    ours = ours.set_axis(ours.index.map(lambda key: (str(key[0]), key[1])))
    cells = ours.dropna(subset="mean").reindex(index).rename(columns={"mean": "ours"})
    printed = printed.rename(columns=DATASETS).rename(columns=label, index=str)
    known = printed.stack().to_dict()
    cells.insert(0, "paper", pd.Series([known.get(key) for key in index], index, dtype=float))
    return cells.assign(difference=cells["ours"] - cells["paper"])


def _labels(used: pd.DataFrame | None = None) -> list[str]:
    """Return the methods of the paper's tables, and those that have trials besides, in print."""
    others = [] if used is None else methods_in(used)
    return list(dict.fromkeys(map(label, [*METHODS, *others])))


def _if_alike(used: pd.DataFrame, printed: pd.DataFrame) -> pd.DataFrame:
    """Return the paper's numbers unless our trials have fewer samples than its own."""
    return pd.DataFrame() if size_note(used) else printed


def groups_auc(trials: pd.DataFrame, dataset: str) -> Table:
    """AUC of CA for every G, 500 samples per client."""
    used = where(swept(trials, *METHODS), dataset=dataset)
    ours, printed = stats(used, "auc", "groups", "label"), _if_alike(used, swept_areas(dataset))
    cells = _cells(group_counts(), _labels(), ours, printed)
    title = f"AUC of certified accuracy for each number of groups on {DATASETS[dataset]}"
    return Table(f"groups-{dataset}", title, "G", cells, used, size_note(used))


def asr_areas(trials: pd.DataFrame, attack: str = PAPER_ATTACK) -> Table:
    """AUC of 100 − ASR over m = 0 … 20, under both readings of a lost vote."""
    used = attacked(trials, attack)
    published = pd.DataFrame({dataset: paper()["asr_auc"][dataset] for dataset in DATASETS})
    ours, printed = [], []
    for reading, addition in READINGS.items():
        named = used.assign(row=used["label"] + addition)
        ours.append(stats(named, f"area_{reading}", "row", "name"))
        printed.append(published.set_axis([label(method) + addition for method in published.index]))
    rows = [method + addition for method in _labels(used) for addition in READINGS.values()]
    beside = _if_alike(used, pd.concat(printed))
    cells = _cells(rows, DATASETS.values(), pd.concat(ours), beside)
    note = (
        "A group whose model an attack drives to NaN is lost: it casts no vote, or under the "
        f"second reading one for the attacker's target. {attack_note(used)}"
    )
    title = "AUC of 100 − ASR over m = 0 … 20"
    return Table(f"{STEMS[attack]}-auc", title, "method", cells, used, note.rstrip())


def asr_details(trials: pd.DataFrame, attack: str = PAPER_ATTACK) -> Table:
    """ASR at m = 6 and 8 against FLCert, and the groups that FLCert's hash exposes at m = 10."""
    used = attacked(trials, attack)
    used = used[used["method"].isin(["carvy", "flcert"])]
    ours, printed = {}, {}
    for m in REDUCTION_M:
        for reading, addition in READINGS.items():
            row = REDUCTION.format(m) + addition
            ours[row] = asr_reduction(used, m, reading)
            printed[row] = {} if size_note(used) else paper()["asr_reduction_vs_flcert"][str(m)]
    ours[HIT] = stats(at(where(used, method="flcert"), "groups_hit", HIT_M), "at", "name")
    # The hash knows no data: this number does not depend on the samples.
    hit = paper()["flcert_groups_hit_at_m10"]
    printed[HIT] = dict.fromkeys(DATASETS, hit["mean"])
    cells = _cells(ours, DATASETS.values(), pd.concat(ours), pd.DataFrame(printed).T)
    note = (
        "The paper's reductions are approximate, read here as points of the mean ASR; its "
        f"groups hit are {hit['mean']} ± {hit['sd']}. Reductions are taken seed by seed."
    )
    title = "Points by which CARVY-FL's ASR is below FLCert's, and how many groups are hit"
    return Table(f"{STEMS[attack]}-details", title, "quantity", cells, used, note)


def promised(trials: pd.DataFrame, dataset: str) -> Table:
    """CA(m) promised, and the accuracy that was left under attack."""
    used = where(attacked(trials), dataset=dataset)
    parts = {label(method): where(used, method=method) for method in methods_in(used)}
    real = {name: mean_curve(part, "accuracy") for name, part in parts.items()}
    beside = pd.DataFrame({name: mean_curve(part)["mean"] for name, part in parts.items()})
    rows = [m for m in PROMISE_M if any(m in curve.index for curve in real.values())]
    cells = _cells(rows, parts, pd.concat(real or {"": mean_curve(used)}).swaplevel(), beside)
    title = f"Certified accuracy and accuracy under attack on {DATASETS[dataset]}, in %"
    note = f"{size_note(used)} The difference must never be negative.".lstrip()
    compared = ("CA(m)", "under attack", "difference")
    return Table(f"promise-{dataset}", title, "m", cells, used, note, parts=compared)


def mnist_50(trials: pd.DataFrame) -> Table:
    """MNIST with 50 samples: CA(0), and the largest m with CA over 80, 60, 40 and 20 %."""
    used = own_groups(trials, dataset="mnist", samples=50)
    published = paper()["ca_mnist_50"]
    ours, printed = {CA0: stats(used, "ca0", "label")}, {CA0: published["ca0"]}
    for level in LEVELS:
        ours[OVER.format(level)] = tolerated(used, level, "label")
        printed[OVER.format(level)] = published["largest_m_with_ca_over"][str(level)]
    for level in LEVELS:
        each = [float(largest_m(pd.Series(ca), level)) for ca in used["ca"]]
        ours[BY_TRIAL.format(level)] = stats(used.assign(each=each), "each", "label")
    cells = _cells(ours, _labels(used), pd.concat(ours), pd.DataFrame(printed).T)
    note = (
        "m over 80 %: the largest m at which CA(m) is over 80 %, of the mean curve (the "
        "paper's whole numbers suggest this) and by trial; −1 where not even CA(0) is."
    )
    title = "Certified accuracy on MNIST with 50 training samples"
    return Table("ca-mnist-50", title, "quantity", cells, used, note)


def ca_areas(trials: pd.DataFrame, dataset: str) -> Table:
    """AUC of CA of every method at its own G; the paper prints that of 500 samples, G = 20."""
    used = own_groups(trials, dataset=dataset)
    printed = swept_areas(dataset).loc[[BEST_GROUPS]].set_axis([SWEEP_SAMPLES])
    cells = _cells(SAMPLES, _labels(used), stats(used, "auc", "samples", "label"), printed)
    title = f"AUC of certified accuracy on {DATASETS[dataset]}"
    note = (
        f"The paper's number for {SWEEP_SAMPLES} samples is that of its sweep at G = {BEST_GROUPS}."
    )
    return Table(f"ca-auc-{dataset}", title, "samples a client", cells, used, note)


def largest_sd(trials: pd.DataFrame, dataset: str) -> Table:
    """Largest standard deviation of CA(m) over m, for every number of samples."""
    used = own_groups(trials, dataset=dataset)
    used = used[used["method"].isin(METHODS)]
    published = paper()["max_sd_of_ca_fashion_mnist"] if dataset == "fashion-mnist" else {}
    ours = max_sd(used, "samples", "label")
    cells = _cells(SAMPLES, _labels(), ours, pd.DataFrame(published).T)
    title = f"Largest standard deviation of CA(m) on {DATASETS[dataset]}, in points"
    return Table(f"ca-sd-{dataset}", title, "samples a client", cells, used, digits=2)


def type_failures(trials: pd.DataFrame) -> Table:
    """How often Step 1 did not find exactly the true types, in ten trials."""
    used = where(trials, kind="types")
    failed = used.assign(failed=10.0 * ~used["exact"].astype(bool))
    ours = stats(failed, "failed", "samples", "name").assign(sd=nan)
    published = paper()["type_estimation_failures_of_10"]
    printed = pd.DataFrame({dataset: published[dataset] for dataset in DATASETS})
    cells = _cells(SAMPLES, DATASETS.values(), ours, printed)
    title, note = "Failed type estimations in ten trials", "Our count is scaled to ten trials."
    return Table("types", title, "samples a client", cells, used, note)


def by_types(trials: pd.DataFrame) -> Table:
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
    """Return the headline areas of every preset, a line for each data set, measure and method."""
    lines = []
    alike = [paper_size(found[preset]) for preset in PRESETS]
    under_attack = [asr_areas(trials).texts() for trials in alike]
    for dataset, name in DATASETS.items():
        certified = [ca_areas(trials, dataset).texts() for trials in alike]
        rows = [(f"{name}, CA: {m}", certified, (str(SWEEP_SAMPLES), m)) for m in _labels()]
        rows += [(f"{name}, 100 − ASR: {m}", under_attack, (m, name)) for m in _labels()]
        for title, texts, cell in rows:
            printed = str(texts[0].loc[cell, "paper"])  # all presets share it
            lines.append([title, printed, *(str(text.loc[cell, "ours"]) for text in texts)])
    return lines


# What each target shows.


Exhibit = tuple[Callable[..., Picture | Table], *tuple[Any, ...]]
"""A function of trials and what else it takes."""

EXHIBITS: Mapping[str, tuple[str, Sequence[Exhibit]]] = {
    "ca-mnist": (
        "Certified accuracy on MNIST",
        [(certified_accuracy, "mnist"), (mnist_50,), (ca_areas, "mnist"), (largest_sd, "mnist")],
    ),
    "ca-fashion-mnist": (
        "Certified accuracy on Fashion-MNIST",
        [(show, "fashion-mnist") for show in (certified_accuracy, ca_areas, largest_sd)],
    ),
    "types": (
        "Type estimation",
        [
            *((type_map, "mnist", samples) for samples in (50, 500)),
            (type_map, "fashion-mnist", 500),
            (type_failures,),
        ],
    ),
    "asr": (
        "Attack success rate",
        [
            *((show,) for show in (attack_success, promise, asr_areas, asr_details)),
            *((promised, dataset) for dataset in DATASETS),
        ],
    ),
    "asr-scaled": (
        "Attack success rate, control variates from the scaled model",
        [(show, SCALED_ATTACK) for show in (attack_success, asr_areas, asr_details)],
    ),
    "failed-types": ("When type estimation fails", [(failed_types,), (by_types,)]),
    "groups": (
        "The number of groups",
        [
            (auc_over_groups,),
            *((sweep, method) for method in METHODS),
            *((groups_auc, dataset) for dataset in DATASETS),
        ],
    ),
}
"""Target → its title in print and what it shows, in the order of the paper."""


def shown(target: str, trials: pd.DataFrame) -> list[Picture | Table]:
    """Return what there is to show of a target."""
    parts = [show(trials, *more) for show, *more in EXHIBITS[target][1]]
    return [part for part in parts if len(part.used)]
