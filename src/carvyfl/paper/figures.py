"""The paper's figures as data: panels of curves, computed from trials of one preset.

:mod:`carvyfl.paper.draw` makes pictures of them, the report hoverable charts.
A band is the mean ± one standard deviation over seeds, within 0 to 100 %.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pandas as pd

from carvyfl.paper.published import BEST_GROUPS, DATASETS, METHODS, SAMPLES
from carvyfl.paper.records import Record
from carvyfl.paper.summaries import (
    FOUND,
    NOT_FOUND,
    attack_note,
    attacked,
    by_outcome,
    label,
    mean_curve,
    methods_in,
    own_groups,
    size_note,
    stats,
    swept,
    where,
)
from carvyfl.paper.tables import attack_stem
from carvyfl.paper.targets import PAPER_ATTACK
from carvyfl.plots.figure import Cloud, Curve, Panel
from carvyfl.plots.style import CA, DASHES, PURPLE, M, Style, method_style, nth_style


@dataclass(frozen=True)
class Picture:
    """A figure.

    Attributes
    ----------
    name
        What its files are called.
    title
        What it shows.
    panels
        In reading order.
    source
        The records it was computed from; none: there is nothing to show yet.
    note
        What a reader should know about it.
    columns
        Panels in a row.
    """

    name: str
    title: str
    panels: tuple[Panel, ...] | tuple[Cloud, ...]
    source: tuple[Record, ...]
    note: str = ""
    columns: int = 2


def certified_accuracy(trials: pd.DataFrame, dataset: str) -> Picture:
    """CA(m) of all methods, a panel for every number of samples (2 × 2 in the paper)."""
    used = where(own_groups(trials), dataset=dataset)
    panels = [
        Panel(f"{samples} training samples", M, CA, _by_method(where(used, samples=samples)))
        for samples in SAMPLES
    ]
    title = f"Certified accuracy for different training data sizes on {DATASETS[dataset]}"
    return Picture(f"ca-{dataset}", title, tuple(panels), tuple(used["record"]))


def attack_success(
    trials: pd.DataFrame,
    attack: str = PAPER_ATTACK,
    reading: str = "asr",
    title: str = "Attack success rate under BadNets with model replacement",
) -> Picture:
    """ASR over m, a panel for each data set, stacked; ``reading`` is what a lost group votes."""
    used = attacked(trials, attack)
    curves = {n: _by_method(where(used, name=n), reading) for n in DATASETS.values()}
    panels = [Panel(name, M, "attack success rate in %", found) for name, found in curves.items()]
    source, note = tuple(used["record"]), attack_note(used)
    return Picture(attack_stem(attack), title, tuple(panels), source, note, columns=1)


def promise(trials: pd.DataFrame) -> Picture:
    """Accuracy under attack (lines) beside what CA(m) promised (thin dashes)."""
    used = attacked(trials)
    panels = []
    for name in DATASETS.values():
        here = where(used, name=name)
        curves: list[Curve] = []
        for method in methods_in(here):
            own = where(here, method=method)
            drawn = method_style(method)
            curves += _curve(mean_curve(own, "accuracy"), label(method), drawn)
            thin = replace(drawn, dash="2 4")
            curves += _curve(mean_curve(own), f"{label(method)}: CA(m)", thin, band=False)
        panels.append(Panel(name, M, "accuracy under attack in %", tuple(curves)))
    title = "Accuracy on clean inputs under attack, and the certified accuracy it must not go below"
    return Picture("promise", title, tuple(panels), tuple(used["record"]), attack_note(used))


def sweep(trials: pd.DataFrame, method: str) -> Picture:
    """CA(m) for every G of the sweep: G ≤ 20 left, G ≥ 20 right; means only, as printed.

    The paper's panels end, and begin, with its own G.
    """
    used = swept(trials, method)
    panels = []
    for name in DATASETS.values():
        here = where(used, name=name)
        for low, high in ((1, BEST_GROUPS), (BEST_GROUPS, 100)):
            shown = here[here["groups"].between(low, high)].groupby("groups")
            curves: list[Curve] = []
            for position, (groups, part) in enumerate(shown):
                curves += _curve(mean_curve(part), f"G = {groups}", nth_style(position), band=False)
            panels.append(Panel(f"{name}: {low} ≤ G ≤ {high}", M, CA, tuple(curves)))
    title = f"Certified accuracy of {label(method)} under varying numbers of groups"
    source = tuple(used["record"])
    return Picture(f"groups-{method}", title, tuple(panels), source, size_note(used))


def auc_over_groups(trials: pd.DataFrame) -> Picture:
    """AUC of CA over G, a panel for each data set: the two tables in one view."""
    used = swept(trials, *METHODS)
    panels = []
    for name in DATASETS.values():
        curves: list[Curve] = []
        for method in METHODS:
            areas = stats(where(used, name=name, method=method), "auc", "groups")
            drawn = method_style(method)
            curves += _curve(areas.fillna({"sd": 0.0}), label(method), drawn, highest=None)
        panels.append(Panel(name, "number of groups G", "AUC of CA(m)", tuple(curves), None))
    title = "AUC of certified accuracy over the number of groups"
    return Picture("groups-auc", title, tuple(panels), tuple(used["record"]), size_note(used))


def type_map(trials: pd.DataFrame, dataset: str, samples: int) -> Picture:
    """One-epoch updates on two principal components, by type found and true type.

    The first trial that found the types and the first that did not, as far as there are
    both: the paper shows some of each.
    """
    here = where(trials, kind="types", dataset=dataset, samples=samples).sort_values("seed")
    title = f"Type estimation on {DATASETS[dataset]}, {samples} training samples"
    failed = where(here, exact=False)
    shown = [*where(here, exact=True)["record"][:1], *failed["record"][:1]]
    clouds = []
    for trial in shown:
        outcome = "exactly the true ones" if trial.exact else "not the true ones"
        heading = f"seed {trial.seed}: {trial.num_types} types found, {outcome}"
        clouds.append(Cloud(heading, trial.points, trial.labels, trial.true))
    note = f"{len(failed)} of {len(here)} trials failed; shown is the first of each kind."
    return Picture(f"types-{dataset}-{samples}", title, tuple(clouds), tuple(shown), note)


def failed_types(trials: pd.DataFrame) -> Picture:
    """CA(m) of CARVY-FL on Fashion-MNIST: types found, and not found; the largest size."""
    parts = by_outcome(trials)
    styles = [method_style("carvy"), Style(PURPLE, "D", DASHES["D"]), method_style("flcert")]
    curves: list[Curve] = []
    for (name, part), drawn in zip(parts.items(), styles, strict=True):
        curves += _curve(mean_curve(part), name, drawn)
    used = pd.concat(parts)
    size = ", ".join(map(str, used["samples"].unique()))
    panel = Panel(f"Fashion-MNIST, {size} training samples", M, CA, tuple(curves))
    title = "Certified accuracy when type estimation succeeds and when it fails"
    never = parts[NOT_FOUND].empty and not parts[FOUND].empty
    note = "Type estimation failed in no trial." if never else ""
    return Picture("failed-types", title, (panel,), tuple(used["record"]), note)


def _by_method(trials: pd.DataFrame, value: str = "ca") -> tuple[Curve, ...]:
    """Return the mean curve of every method that has trials."""
    curves: list[Curve] = []
    for method in methods_in(trials):
        found = mean_curve(where(trials, method=method), value)
        curves += _curve(found, label(method), method_style(method))
    return tuple(curves)


def _curve(
    found: pd.DataFrame, name: str, own: Style, *, band: bool = True, highest: float | None = 100
) -> list[Curve]:
    """Return a curve of means, with a band if there is a spread; none without points."""
    if found.empty:
        return []
    mean, sd = found["mean"], found["sd"]
    low = high = None
    if band and sd.notna().all():
        low, high = ((mean + way * sd).clip(0, highest).to_list() for way in (-1, 1))
    counted = f"{name} (n = {', '.join(map(str, sorted(set(found['trials']))))})"
    return [Curve(counted, found.index.astype(float).to_list(), mean.to_list(), low, high, own)]
