"""The paper's figures as data: panels of curves, computed from records of one preset.

:mod:`carvyfl.plots.draw` makes pictures of them, the report hoverable charts.
A band is the mean ± one standard deviation over seeds, within 0 to 100 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from carvyfl.paper.published import BEST_GROUPS, DATASETS, METHODS, SAMPLES
from carvyfl.paper.quantities import (
    attack_note,
    attack_stem,
    failed_types_records,
    largest_size,
    paper_attack,
    size_note,
    sweep_records,
)
from carvyfl.paper.records import AsrRecord, CaRecord, Record, TypesRecord, select
from carvyfl.paper.summaries import MeanCurve, mean_attacked, mean_ca, methods_in, spread
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


def certified_accuracy(records: Sequence[Record], dataset: str) -> Picture:
    """CA(m) of all methods, a panel for every number of samples (2 × 2 in the paper)."""
    used = select(records, CaRecord, dataset=dataset, groups=None)
    panels = []
    for samples in SAMPLES:
        here = select(used, CaRecord, samples=samples)
        trials = {method: select(here, CaRecord, method=method) for method in methods_in(here)}
        curves = [
            _curve(mean_ca(found), method_style(method).label, method_style(method))
            for method, found in trials.items()
        ]
        panels.append(Panel(f"{samples} training samples", M, CA, _kept(curves)))
    title = f"Certified accuracy for different training data sizes on {DATASETS[dataset]}"
    return Picture(f"ca-{dataset}", title, tuple(panels), tuple(used))


def attack_success(
    records: Sequence[Record],
    attack: str = PAPER_ATTACK,
    reading: str = "asr",
    title: str = "Attack success rate under BadNets with model replacement",
) -> Picture:
    """ASR over m, a panel for each data set, stacked; ``reading`` is what a lost group votes."""
    used = largest_size(paper_attack(records, attack))
    panels = []
    for dataset, name in DATASETS.items():
        here = select(used, AsrRecord, dataset=dataset)
        trials = {method: select(here, AsrRecord, method=method) for method in methods_in(here)}
        curves = [
            _curve(mean_attacked(found, reading), method_style(method).label, method_style(method))
            for method, found in trials.items()
        ]
        panels.append(Panel(name, M, "attack success rate in %", _kept(curves)))
    name, note = attack_stem(attack), attack_note(used)
    return Picture(name, title, tuple(panels), tuple(used), note, columns=1)


def promise(records: Sequence[Record]) -> Picture:
    """Accuracy under attack (lines) beside what CA(m) promised (thin dashes)."""
    used = largest_size(paper_attack(records))
    panels = []
    for dataset, name in DATASETS.items():
        here = select(used, AsrRecord, dataset=dataset)
        curves = []
        for method in methods_in(here):
            trials = select(here, AsrRecord, method=method)
            own = method_style(method)
            curves.append(_curve(mean_attacked(trials, "accuracy"), own.label, own))
            promised = replace(own, dash="2 4")
            ca = mean_attacked(trials, "ca")
            curves.append(_curve(ca, f"{own.label}: CA(m)", promised, band=False))
        panels.append(Panel(name, M, "accuracy under attack in %", _kept(curves)))
    title = "Accuracy on clean inputs under attack, and the certified accuracy it must not go below"
    return Picture("promise", title, tuple(panels), tuple(used), attack_note(used))


def sweep(records: Sequence[Record], method: str) -> Picture:
    """CA(m) for every G of the sweep: G ≤ 20 left, G ≥ 20 right; means only, as printed.

    The paper's panels end, and begin, with its own G.
    """
    used = largest_size(sweep_records(records, method))
    panels = []
    for dataset, name in DATASETS.items():
        here = select(used, CaRecord, dataset=dataset)
        counts = sorted({r.groups for r in here if r.groups is not None})
        for low, high in ((1, BEST_GROUPS), (BEST_GROUPS, 100)):
            shown = [g for g in counts if low <= g <= high]
            curves = [
                _curve(
                    mean_ca(select(here, CaRecord, groups=groups)),
                    f"G = {groups}",
                    nth_style(position),
                    band=False,
                )
                for position, groups in enumerate(shown)
            ]
            title = f"{name}: {low} ≤ G ≤ {high}"
            panels.append(Panel(title, M, CA, _kept(curves)))
    title = f"Certified accuracy of {method_style(method).label} under varying numbers of groups"
    return Picture(f"groups-{method}", title, tuple(panels), tuple(used), size_note(used))


def auc_over_groups(records: Sequence[Record]) -> Picture:
    """AUC of CA over G, a panel for each data set: the two tables in one view."""
    used = largest_size(sweep_records(records, *METHODS))
    panels = []
    for dataset, name in DATASETS.items():
        curves = []
        for method in METHODS:
            trials = select(used, CaRecord, dataset=dataset, method=method)
            groups = sorted({r.groups for r in trials if r.groups is not None})
            means = [spread(r.auc for r in trials if r.groups == g) for g in groups]
            found = [(g, s) for g, s in zip(groups, means, strict=True) if s is not None]
            if found:
                sds = [s.sd or 0.0 for _, s in found]
                area = [s.mean for _, s in found]
                curves.append(
                    Curve(
                        _named(method_style(method).label, *sorted({s.n for _, s in found})),
                        [float(g) for g, _ in found],
                        area,
                        [max(0.0, a - sd) for a, sd in zip(area, sds, strict=True)],
                        [a + sd for a, sd in zip(area, sds, strict=True)],
                        method_style(method),
                    )
                )
        panels.append(Panel(name, "number of groups G", "AUC of CA(m)", tuple(curves), None))
    title = "AUC of certified accuracy over the number of groups"
    return Picture("groups-auc", title, tuple(panels), tuple(used), size_note(used))


def type_map(records: Sequence[Record], dataset: str, samples: int) -> Picture:
    """One-epoch updates on two principal components, by type found and true type.

    The first trial that found the types and the first that did not, as far as there are
    both: the paper shows some of each.
    """
    trials = select(records, TypesRecord, dataset=dataset, samples=samples)
    title = f"Type estimation on {DATASETS[dataset]}, {samples} training samples"
    name = f"types-{dataset}-{samples}"
    ordered = sorted(trials, key=lambda r: r.seed)
    failed = [r for r in ordered if not r.exact]
    shown = [*[r for r in ordered if r.exact][:1], *failed[:1]]
    clouds = []
    for trial in shown:
        outcome = "exactly the true ones" if trial.exact else "not the true ones"
        heading = f"seed {trial.seed}: {trial.num_types} types found, {outcome}"
        clouds.append(Cloud(heading, trial.points, trial.labels, trial.true))
    note = f"{len(failed)} of {len(trials)} trials failed; shown is the first of each kind."
    return Picture(name, title, tuple(clouds), tuple(shown), note)


def failed_types(records: Sequence[Record]) -> Picture:
    """CA(m) of CARVY-FL on Fashion-MNIST: types found, and not found; the largest size."""
    right, wrong, flcert = failed_types_records(records)
    carvy = method_style("carvy")
    curves = [
        _curve(mean_ca(right), "CARVY-FL, types found", carvy),
        _curve(mean_ca(wrong), "CARVY-FL, types not found", Style(PURPLE, "D", DASHES["D"])),
        _curve(mean_ca(flcert), method_style("flcert").label, method_style("flcert")),
    ]
    size = ", ".join(str(s) for s in sorted({r.samples for r in (*right, *wrong, *flcert)}))
    panel = Panel(f"Fashion-MNIST, {size} training samples", M, CA, _kept(curves))
    title = "Certified accuracy when type estimation succeeds and when it fails"
    note = "" if wrong or not right else "Type estimation failed in no trial."
    return Picture("failed-types", title, (panel,), (*right, *wrong, *flcert), note)


def _named(name: str, *trials: int) -> str:
    return f"{name} (n = {', '.join(map(str, trials))})"


def _curve(found: MeanCurve | None, name: str, own: Style, *, band: bool = True) -> Curve | None:
    if found is None:
        return None
    low = high = None
    if band and found.sd is not None:
        low = np.clip(found.mean - found.sd, 0, 100).tolist()
        high = np.clip(found.mean + found.sd, 0, 100).tolist()
    return Curve(_named(name, found.n), found.m.tolist(), found.mean.tolist(), low, high, own)


def _kept(curves: Sequence[Curve | None]) -> tuple[Curve, ...]:
    return tuple(curve for curve in curves if curve is not None)
