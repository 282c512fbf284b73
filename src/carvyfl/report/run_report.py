"""The report of one or several finished runs, as one HTML page."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from msgspec import UNSET

from carvyfl.core.schema import plain
from carvyfl.report.attacks import attacks
from carvyfl.report.certificates import (
    ca_chart,
    certificates,
    combined_chart,
    margins,
    name_of,
    per_class,
    readings,
    summary,
    whole_runs_chart,
)
from carvyfl.report.clients import client_map, group_count
from carvyfl.report.finished_run import FinishedRun, read_runs
from carvyfl.report.images import extreme_images
from carvyfl.report.page import Cell, Html, Section, escape, join, page, paragraph, table
from carvyfl.report.training import training
from carvyfl.runs.config import to_yaml
from carvyfl.runs.seeds import seed_sets
from carvyfl.voting.spread import mean_sd


def run_report(paths: Sequence[Path], *, data_dir: Path | None = None) -> str:
    """Return the report of finished runs as one self-contained HTML document.

    Parameters
    ----------
    paths
        Run folders, at least one. Several runs come one after another, below a chart
        that compares them.
    data_dir
        Where to look for registered data sets, whose test images are shown; None looks
        where the run did. Without the data the report says so and shows the rest.
    """
    runs = read_runs(paths)
    if len(runs) == 1:
        (run,) = runs
        first, *others = _sections(run, data_dir)
        sections = [first, Section("Three readings", readings()), *others]
        return page(f"CARVY-FL run {run.name}", sections, subtitle=_subtitle(run))
    parts = [
        Section(f"Run {run.name}", paragraph(_subtitle(run)), tuple(_sections(run, data_dir)))
        for run in runs
    ]
    sets = [[run for run, _ in own] for own in seed_sets([(run, run.record) for run in runs])]
    compared = Section("All runs", _comparison(sets))
    explained = Section("Three readings", readings())
    return page(f"{len(runs)} CARVY-FL runs", [compared, explained, *parts])


def _subtitle(run: FinishedRun) -> str:
    methods = ", ".join(method.title for method in run.methods)
    return f"{run.record.data.name}, {run.config.clients} clients: {methods}"


def _sections(run: FinishedRun, data_dir: Path | None) -> list[Section]:
    count = run.record.group_count
    chosen = [] if count is UNSET else [Section("How many groups", group_count(count))]
    return [
        Section("Summary", summary(run)),
        Section("Certified accuracy", ca_chart(run)),
        Section("Certified against whole runs", whole_runs_chart(run)),
        Section("Attacks", attacks(run)),
        *chosen,
        Section("Client map", client_map(run)),
        Section("Vote margins", margins(run)),
        Section("Certified accuracy by class", per_class(run)),
        Section("Smallest and largest margins", extreme_images(run, data_dir)),
        Section("Training", training(run)),
        Section("What the certificate assumes", certificates(run)),
        Section("Configuration", _configuration(run)),
        Section("Provenance", _provenance(run)),
    ]


def _comparison(sets: Sequence[Sequence[FinishedRun]]) -> Html:
    """Compare runs; of those that differ in the seed alone also the mean, ± one standard deviation.

    ``sets`` holds the runs, those that differ in the seed alone together.
    """
    means: list[list[Cell]] = [
        [
            f"{name_of(runs)}: {method.title}",
            runs[0].record.data.name,
            ", ".join(str(run.config.seed) for run in runs),
            _groups([run.methods[position].certificate.num_groups for run in runs]),
            mean_sd([run.methods[position].entry.ca[0] for run in runs]),
            mean_sd([run.methods[position].entry.auc for run in runs]),
        ]
        for runs in sets
        if len(runs) > 1
        for position, method in enumerate(runs[0].methods)
    ]
    rows: list[list[Cell]] = [
        [
            f"{run.name}: {method.title}",
            run.record.data.name,
            str(run.config.seed),
            method.certificate.num_groups,
            method.entry.ca[0],
            method.entry.auc,
        ]
        for runs in sets
        for run in runs
        for method in run.methods
    ]
    spread = ""
    if means:
        spread = paragraph(
            "Runs that differ in the seed alone are drawn as their mean, with a band of one sample "
            "standard deviation over the seeds."
        )
    head = ["run and method", "data", "seed", "groups", "CA(0) in %", "AUC of CA"]
    return join(spread, combined_chart(sets), table(head, [*means, *rows]))


def _groups(numbers: Sequence[int]) -> str:
    """Return the number of groups, or the range of several."""
    return " to ".join(str(number) for number in sorted({min(numbers), max(numbers)}))


def _configuration(run: FinishedRun) -> Html:
    settings = run.config.to_dict() if run.deployment is None else run.deployment.settings
    return Html(f'<pre tabindex="0">{escape(to_yaml(settings))}</pre>')


def _provenance(run: FinishedRun) -> Html:
    again = ["carvy", "run", "--config", str(run.folder.config_file), "--out", "again"]
    repeat = Html(f"<code>{escape(shlex.join(again))}</code>")
    if run.deployment is not None:
        repeat = Html("cannot be repeated here: the clients keep their data")
    environment = [
        [name, "none" if value is None else str(value)]
        for name, value in plain(run.record.environment).items()
    ]
    rows = [
        ["folder", str(run.folder.path)],
        ["repeat it with", repeat],
        ["seed", str(run.config.seed)],
        ["time (h:mm:ss)", str(timedelta(seconds=round(run.record.seconds)))],
        *environment,
    ]
    return table(["what", "value"], rows)
