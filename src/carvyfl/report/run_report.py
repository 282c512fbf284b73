"""The report of one or several finished runs, as one HTML page."""

from __future__ import annotations

import itertools
import shlex
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from operator import attrgetter
from pathlib import Path

import numpy as np
from msgspec import UNSET

from carvyfl.core.schema import plain
from carvyfl.core.yaml_text import to_yaml
from carvyfl.groups.basis import READINGS, Reading
from carvyfl.learning.recipe import lost_groups
from carvyfl.plots.figure import Curve, ca_panel
from carvyfl.plots.style import DASHES
from carvyfl.report.finished_run import FinishedRun, read_runs
from carvyfl.report.page import Html, Section, page, paragraph, render
from carvyfl.report.sections import attacks, broken_promises, extreme_images, groups
from carvyfl.runs.record import MethodResult, guarantee_over, seed_sets
from carvyfl.runs.save import described
from carvyfl.voting.spread import Spread, mean_sd

_COLUMNS = 12  # of a table by m, so that it fits on paper


def run_report(paths: Sequence[Path], *, data_dir: Path | None = None) -> str:
    """Return the report of finished runs as one self-contained HTML document.

    Several runs come one after another, below a chart that compares them. Test images are shown
    from registered data sets in ``data_dir``, by default where the run looked; without the data
    the report says so and shows the rest.
    """
    runs = read_runs(paths)
    if len(runs) == 1:
        sections = _sections(runs[0], data_dir, alone=True)
        return page(f"CARVY-FL run {runs[0].name}", sections, subtitle=_subtitle(runs[0]))
    parts = [
        Section(f"Run {run.name}", paragraph(_subtitle(run)), tuple(_sections(run, data_dir)))
        for run in runs
    ]
    return page(f"{len(runs)} CARVY-FL runs", [Section("All runs", _comparison(runs)), *parts])


def _subtitle(run: FinishedRun) -> str:
    more = f"seed {run.config.seed}\n{run.record.data.test_inputs} test inputs"
    return f"{described(run.record)}\n{more}".replace("\n", "; ")


def _sections(run: FinishedRun, data_dir: Path | None, *, alone: bool = False) -> list[Section]:
    return [
        Section("Summary", _summary(run, alone=alone)),
        Section("Certified accuracy", _certified(run)),
        Section("Groups and types", groups(run)),
        Section("Images and their radius", extreme_images(run, data_dir)),
        Section("Attacks and privacy", attacks(run)),
        Section("Provenance", _provenance(run)),
    ]


def _summary(run: FinishedRun, *, alone: bool) -> Html:
    reasons = [method.certificate.assumptions for method in run.methods]
    ranked = {}
    for reading in READINGS:
        proved = [method for method in run.methods if reading in method.proved]
        area = attrgetter(f"entry.readings.{reading}.auc")
        ranked[reading] = sorted(proved, key=area, reverse=True)
    return render(
        "summary.html",
        run=run,
        warnings=_warnings(run),
        ranked=ranked,
        best=(ranked["given_groups"] or run.methods)[0],
        readings=READINGS,
        explained=alone,
        shared=[text for text in reasons[0] if all(text in texts for texts in reasons)],
    )


def _warnings(run: FinishedRun) -> list[str]:
    texts = list(run.types.warnings) if run.types else []
    if run.types and run.types.set_aside:
        texts.append(f"clients set aside in Step 1: {len(run.types.set_aside)}")
    if run.record.group_count is not UNSET:
        texts += [*run.record.group_count.warnings, *run.record.missed_estimate]
    for method in run.methods:
        notes = [*lost_groups(method.entry.stopped), *method.certificate.warnings]
        if aside := len(method.entry.set_aside):
            notes.append(f"clients whose reports could not be used: {aside}")
        texts += [f"{method.style.label}: {note}" for note in notes]
    if broken_promises(run.folder.attacks()):
        texts.append("accuracy under attack fell below CA(m), see the section on attacks")
    return texts


def _certified(run: FinishedRun) -> Html:
    given, whole = [], []
    rows: list[tuple[str, str, tuple[float, ...]]] = []
    for method in run.methods:
        entry, label = method.entry, method.style.label
        if not method.proved:
            rows.append((label, "not certified", entry.ca[:1]))
            continue
        ends = entry.ca_low, entry.ca_high
        given.append(Curve(label, range(len(entry.ca)), entry.ca, *ends, method.style))
        for ca, names in _alike(entry, method.proved).items():
            rows.append((label, ", ".join(names), ca))
        for second, (ca, names) in enumerate(_alike(entry, method.proved[1:]).items()):
            style = method.style.dotted() if second else method.style
            name = f"{label}, {' and '.join(names)}"
            whole.append(Curve(name, range(len(ca)), ca, style=style))
    return render(
        "certified.html",
        run=run,
        given=ca_panel("Certified accuracy, given these groups", given) if given else None,
        whole=ca_panel("Certified against whole runs", whole) if whole else None,
        rows=rows,
        columns=_columns,
    )


def _alike(entry: MethodResult, readings: list[Reading]) -> dict[tuple[float, ...], list[str]]:
    """Return the names of readings by their curve; several may have the same one."""
    alike = defaultdict(list)
    for reading in readings:
        alike[getattr(entry.readings, reading).ca].append(READINGS[reading].label)
    return alike


def _columns(curves: list[tuple[float, ...]]) -> list[int]:
    """Return the values of m that a table of these curves has columns for."""
    places = np.linspace(0, max(map(len, curves)) - 1, _COLUMNS).round()
    return sorted(set(places.astype(int).tolist()))


def _comparison(runs: Sequence[FinishedRun]) -> Html:
    """Compare runs; of those that differ in the seed alone also the mean, ± standard deviation."""
    sets = [[run for run, _ in alike] for alike in seed_sets([(run, run.record) for run in runs])]
    several = [alike for alike in sets if len(alike) > 1]
    curves = []
    for alike, dash in zip(sets, itertools.cycle(DASHES.values()), strict=False):
        for methods in zip(*(run.methods for run in alike), strict=True):
            if all(method.proved for method in methods):
                spread = Spread.of([method.entry.ca for method in methods])
                low, high = map(list, spread.band) if spread.band else (None, None)
                name = f"{_name(alike)}: {methods[0].title}"
                mean, dashed = spread.mean.tolist(), replace(methods[0].style, dash=dash)
                style = dashed if len(sets) <= len(DASHES) else None  # a run has its own dashes
                curves.append(Curve(name, range(len(mean)), mean, low, high, style))
    return render(
        "comparison.html",
        averaged=bool(several),
        private=_private(sets),
        panel=ca_panel("Certified accuracy, given these groups", curves) if curves else None,
        sets=[*several, *([run] for alike in sets for run in alike)],
        name=_name,
        mean_sd=mean_sd,
        readings=READINGS,
        explained=True,
    )


def _private(sets: Sequence[Sequence[FinishedRun]]) -> list[str]:
    """Say what ε covers in runs that differ in the seed alone, taken together, each text once."""
    texts = (guarantee_over([run.record for run in alike]) for alike in sets)
    return [text for text in dict.fromkeys(texts) if text]


def _name(runs: Sequence[FinishedRun]) -> str:
    return runs[0].name if len(runs) == 1 else f"mean of {len(runs)} seeds"


def _provenance(run: FinishedRun) -> Html:
    settings = run.config.to_dict() if run.deployment is None else run.deployment.settings
    return render(
        "provenance.html",
        run=run,
        quote=shlex.quote,
        time=timedelta(seconds=round(run.record.seconds)),
        environment=plain(run.record.environment),
        settings=to_yaml(settings),
    )
