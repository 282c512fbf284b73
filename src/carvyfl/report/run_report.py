"""The report of one or several finished runs, as one HTML page."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from msgspec import UNSET

from carvyfl.core.schema import plain
from carvyfl.core.yaml_text import to_yaml
from carvyfl.report import certificates as certified
from carvyfl.report.attacks import attacks
from carvyfl.report.clients import client_map, group_count, training
from carvyfl.report.finished_run import FinishedRun, read_runs
from carvyfl.report.images import extreme_images
from carvyfl.report.page import Cell, Html, Section, element, join, page, paragraph, table
from carvyfl.runs.seeds import seed_sets
from carvyfl.voting.spread import mean_sd


def run_report(paths: Sequence[Path], *, data_dir: Path | None = None) -> str:
    """Return the report of finished runs as one self-contained HTML document.

    Several runs come one after another, below a chart that compares them. Test images are shown
    from registered data sets in ``data_dir``, by default where the run looked; without the data
    the report says so and shows the rest.
    """
    runs = read_runs(paths)
    explained = Section("Three readings", certified.readings())
    if len(runs) == 1:
        (run,) = runs
        first, *others = _sections(run, data_dir)
        title = f"CARVY-FL run {run.name}"
        return page(title, [first, explained, *others], subtitle=_subtitle(run))
    parts = [
        Section(f"Run {run.name}", paragraph(_subtitle(run)), tuple(_sections(run, data_dir)))
        for run in runs
    ]
    compared = Section("All runs", _comparison(runs))
    return page(f"{len(runs)} CARVY-FL runs", [compared, explained, *parts])


def _subtitle(run: FinishedRun) -> str:
    methods = ", ".join(method.title for method in run.methods)
    return f"{run.record.data.name}, {run.config.clients} clients: {methods}"


def _sections(run: FinishedRun, data_dir: Path | None) -> list[Section]:
    count = run.record.group_count
    chosen = []
    if count is not UNSET:
        found = group_count(count, count.warnings + run.record.missed_estimate)
        chosen = [Section("How many groups", found)]
    return [
        Section("Summary", certified.summary(run)),
        Section("Certified accuracy", certified.ca_chart(run)),
        Section("Certified against whole runs", certified.whole_runs_chart(run)),
        Section("Attacks", attacks(run)),
        *chosen,
        Section("Client map", client_map(run)),
        Section("Vote margins", certified.margins(run)),
        Section("Certified accuracy by class", certified.per_class(run)),
        Section("Smallest and largest margins", extreme_images(run, data_dir)),
        Section("Training", training(run)),
        Section("What the certificate assumes", certified.certificates(run)),
        Section("Configuration", _configuration(run)),
        Section("Provenance", _provenance(run)),
    ]


def _comparison(runs: Sequence[FinishedRun]) -> Html:
    """Compare runs; of those that differ in the seed alone also the mean, ± standard deviation."""
    sets = [[run for run, _ in own] for own in seed_sets([(run, run.record) for run in runs])]
    several = [own for own in sets if len(own) > 1]
    note = (
        "Runs that differ in the seed alone are drawn as their mean, with a band of one sample "
        "standard deviation over the seeds."
    )
    rows: list[list[Cell]] = []
    for own in [*several, *([run] for each in sets for run in each)]:
        for position, method in enumerate(own[0].methods):
            same = [run.methods[position] for run in own]
            groups = [method.entry.num_groups for method in same]
            rows.append(
                [
                    f"{certified.name_of(own)}: {method.title}",
                    own[0].record.data.name,
                    ", ".join(str(run.config.seed) for run in own),
                    " to ".join(map(str, sorted({min(groups), max(groups)}))),
                    mean_sd([method.entry.ca[0] for method in same]),
                    mean_sd([method.entry.auc for method in same])
                    if all(method.proved for method in same)
                    else None,
                ]
            )
    area = f"AUC of CA, {certified.GIVEN}"
    head = ["run and method", "data", "seed", "groups", "CA(0) in %", area]
    spread = paragraph(note) if several else ""
    return join(spread, certified.combined_chart(sets), table(head, rows))


def _configuration(run: FinishedRun) -> Html:
    settings = run.config.to_dict() if run.deployment is None else run.deployment.settings
    return element("pre", to_yaml(settings), tabindex=0)


def _provenance(run: FinishedRun) -> Html:
    again = ["carvy", "run", "--config", str(run.folder.config_file), "--out", "again"]
    repeat: str = element("code", shlex.join(again))
    if run.deployment is not None:
        repeat = "cannot be repeated here: the clients keep their data"
    rows = [
        ["folder", str(run.folder.path)],
        ["repeat it with", repeat],
        ["seed", str(run.config.seed)],
        ["time (h:mm:ss)", str(timedelta(seconds=round(run.record.seconds)))],
    ]
    for name, value in plain(run.record.environment).items():
        rows.append([name, "none" if value is None else str(value)])
    return table(["what", "value"], rows)
