"""`carvy show` and `carvy report`: what runs found, on the screen and as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import UNSET
from msgspec.structs import asdict

from carvyfl.cli import options
from carvyfl.cli.answers import MeanCurve, Run, Seeds
from carvyfl.cli.output import print_curves, print_items, print_json, print_table, screen, warn
from carvyfl.core.errors import CarvyError
from carvyfl.core.files import write_text
from carvyfl.group_count import GroupCount
from carvyfl.groups.basis import READINGS, Reading
from carvyfl.learning.recipe import lost_groups
from carvyfl.plots.style import method_style
from carvyfl.runs.folder import RunFolder, run_folders
from carvyfl.runs.record import (
    MethodResult,
    RunRecord,
    guarantee_over,
    population,
    seed_sets,
    spreads,
)
from carvyfl.voting.spread import mean_sd

BENCHED = 0.1  # of all clients: where more than that sit out, somebody should know
FAULTS_SHOWN, SIZES_SHOWN = 5, 12  # clients named, and types: a run that diverged would name all

Column = tuple[str, str, Reading | None]
"""Of a table of CA(m): title, method, and reading, or None where nothing is certified."""


def show(runs: list[Path] = options.RUNS, json: bool = options.JSON) -> None:
    """Print what a finished run found: CA(m), rounds, groups, and what it rests on.

    The same text, or object, that 'carvy run' printed at its end. Runs that differ
    in the seed alone are shown together: mean and standard deviation of CA(m).

    [bold]Examples[/bold]

      carvy show runs/demo

      carvy show runs/demo --json

      carvy show runs/demo runs/demo-1
    """
    sets = seed_sets([(path, RunFolder(path).record()) for path in run_folders(runs)])
    if json and len(sets) > 1:
        raise CarvyError("these runs differ in more than the seed; print one at a time with --json")
    for position, alike in enumerate(sets):
        if position:
            screen.print()
        print_runs(dict(alike), as_json=json)


def report(
    runs: list[Path] = options.RUNS,
    out: Path = options.option(
        "The HTML file to write.", "--out", "-o", default=Path("report.html")
    ),
    data_dir: Path | None = options.DATA_DIR,
    plugin: list[Path] | None = options.PLUGIN,
) -> None:
    """Write finished runs as one HTML page that needs nothing else.

    What is certified and compared with what, warnings, certified accuracy, groups
    and types, images with their radius, attacks, privacy, and how to verify the run.
    The page works offline and on paper. Several runs are compared in one chart; of runs that
    differ in the seed alone it has the mean, and a band of one standard deviation.

    [bold]Examples[/bold]

      carvy report runs/demo

      carvy report runs/demo runs/demo-1 --out both.html
    """
    from carvyfl.report.run_report import run_report

    if out.suffix.lower() not in {".html", ".htm"}:
        raise CarvyError(f"{out} is not an HTML file; give a name that ends in .html with --out")
    write_text(out, run_report(run_folders(runs), data_dir=data_dir))
    screen.print(f"Wrote {out}", soft_wrap=True)


def print_runs(runs: Mapping[Path, RunRecord], *, as_json: bool) -> None:
    """Print a finished run, or several that differ in the seed alone: records by run folder."""
    records = list(runs.values())
    for record in records:
        for name, entry in record.methods.items():
            for warning in lost_groups(entry.stopped):
                warn(f"seed {record.config.seed}, {name}: {warning}")
    if as_json:
        print_json(_answer(runs))
        return
    first, several = records[0], len(records) > 1
    columns = _columns(first.methods)
    spread = f"; mean ± standard deviation over {len(records)} seeds" if several else ""
    print_curves(
        f"Certified accuracy CA(m) in %: {first.data.name}, "
        f"{population(first.config, first.deployment)}{spread}",
        {
            title: [
                (getattr(entry.readings, reading) if reading else entry).ca
                for entry in (record.methods[name] for record in records)
            ]
            for title, name, reading in columns
        },
    )
    _explain(columns)
    for method, entry in first.methods.items():
        areas = mean_sd([record.methods[method].auc for record in records])
        about = f"AUC {areas}" if entry.readings.given_groups else "nothing certified"
        about = about if several else _summary(entry, about)
        screen.print(f"{method_style(method).label}: {about}", soft_wrap=True)
        if not several:
            print_items([options.in_flags(entry.certificate.because)])
    _print_privacy(records)
    if several:
        seeds = ", ".join(str(record.config.seed) for record in records)
        screen.print(f"Seeds {seeds}; carvy show {next(iter(runs))} shows one.")
    else:
        _print_details(first)


def _print_privacy(records: Sequence[RunRecord]) -> None:
    """Say what ε covers where clients added noise, and how much the runs spend."""
    if private := guarantee_over(records):
        screen.print(private, soft_wrap=True)
    spent = [r.config.epsilon for r in records if r.types and r.types.method == "private-shares"]
    if spent:
        total = f": {sum(spent):g} for these {len(spent)}" if len(spent) > 1 else ""
        screen.print(
            f"ε = {spent[0]:g} covers what clients sent in Step 1, not training; it adds up over "
            f"runs with the same clients{total}.",
            soft_wrap=True,
        )


def _answer(runs: Mapping[Path, RunRecord]) -> object:
    paths, records = tuple(map(str, runs)), list(runs.values())
    if len(records) == 1:
        return Run(run=paths[0], **asdict(records[0]))
    curves = {
        method: {str(reading): MeanCurve.of(spread) for reading, spread in by.items()}
        for method, by in spreads(records).items()
    }
    seeds = tuple(record.config.seed for record in records)
    return Seeds(paths, seeds, curves, guarantee_over(records) or None)


def _columns(methods: dict[str, MethodResult]) -> list[Column]:
    """Return a table's columns: one for readings of the same curve, named by the strictest."""
    columns: list[Column] = []
    for name, entry in methods.items():
        label = method_style(name).label
        proved = {r: curve for r in READINGS if (curve := getattr(entry.readings, r)) is not None}
        distinct = {curve.groups_per_client: reading for reading, curve in proved.items()}
        if not proved:
            columns.append((f"{label}, not certified", name, None))
        for reading in distinct.values():
            everything = len(distinct) == 1 and len(proved) == len(READINGS)
            title = label if everything else f"{label}, {READINGS[reading].label}"
            columns.append((title, name, reading))
    return columns


def _explain(columns: Sequence[Column]) -> None:
    nameless = any(title == method_style(method).label for title, method, _ in columns)
    named = {reading for *_, reading in columns}
    used = [READINGS[reading] for reading in READINGS if nameless or reading in named]
    if not used:
        screen.print("Nothing is certified for any malicious client: row 0 is the accuracy.\n")
        return
    screen.print("Row m: answered correctly with up to m malicious clients, and")
    print_items(f"{words.label}: {words.same_as}." for words in used)
    if {"all_honest", "honest_only"} <= named:
        screen.print(
            "If malicious clients are fake, use 'honest only'. If they may be real clients that "
            "were taken over, be cautious and use 'all honest'."
        )
    if nameless:
        screen.print("A column that names none of these holds in all of them.")
    screen.print()


def _summary(entry: MethodResult, area: str) -> str:
    low, high = min(entry.rounds), max(entry.rounds)
    groups = "1 group" if entry.num_groups == 1 else f"{entry.num_groups} groups"
    rounds = f"{low} rounds" if low == high else f"{low}-{high} rounds"
    return (
        f"{groups}, {rounds if high else 'heads in closed form'}, {area}, "
        f"95 % interval of CA(0) {entry.ca_low[0]:.1f}-{entry.ca_high[0]:.1f}"
    )


def _print_details(record: RunRecord) -> None:
    """Print how G was chosen, what Step 1 found, and warn of clients that take no part."""
    clients, types = record.config.clients, record.types
    if record.group_count is not UNSET:
        print_group_count(record.group_count)
        for warning in record.missed_estimate:
            warn(warning)
    if types is not None:
        sizes = ", ".join(map(str, types.sizes[:SIZES_SHOWN]))
        more = ", …" if len(types.sizes) > SIZES_SHOWN else ""
        screen.print(f"Types ({types.method}): {types.num_types} found, of {sizes}{more} clients")
        for warning in types.warnings:
            warn(warning)
        _warn_of_faults("", types.set_aside, " in Step 1")
    for name, entry in record.methods.items():
        benched = len(entry.benched) - (len(types.set_aside) if types else 0)
        if benched > BENCHED * clients:
            many = "since some types have more clients than there are groups; raise --groups"
            warn(f"{name}: {benched} of {clients} clients sit out, {many}")
        _warn_of_faults(f"{name}: ", entry.set_aside, "")
        if len(entry.set_aside) > clients / 2:
            honest = "if most of these clients are honest, training diverged"
            warn(f"{name}: {honest}; try a smaller --lr")


def _warn_of_faults(name: str, set_aside: dict[str, str], where: str) -> None:
    for client, reason in list(set_aside.items())[:FAULTS_SHOWN]:
        warn(f"{name}client {client} was set aside{where} ({reason})")
    if (more := len(set_aside) - FAULTS_SHOWN) > 0:
        warn(f"{name}{more} more were set aside{where}; carvy report lists them all")


def print_group_count(count: GroupCount) -> None:
    """Show how G was chosen: the curve, and what balanced random groups would do."""
    level = "60" if count.aim == "auc" else count.aim[1:]
    tried = [(f"{each.groups}", each) for each in count.candidates]
    rows = [
        (name, f"{each.auc:.0f}", each.accuracy, "none" if each.largest_m < 0 else each.largest_m)
        for name, each in [*tried, (f"{count.balanced.groups}, random", count.balanced)]
    ]
    inputs = "inputs made up from the messages" if count.made_up else "held-out samples"
    title = f"How many groups: closed-form heads, tried on {inputs}"
    print_table(["G", "AUC", "CA(0)", f"largest m at {level} %"], rows, title)
    aim = "area under CA(m)" if count.aim == "auc" else f"m at {level} %"
    reached = 0 < count.least_accuracy <= count.chosen.accuracy
    also = f", with an accuracy of at least {count.least_accuracy:g} %" if reached else ""
    screen.print(
        f"G = {count.groups} was chosen for the largest {aim}{also}. It depends on all clients' "
        "data, so the certificate compares with these groups only. For one that compares with "
        "whole runs, set --groups beforehand and use the method slots."
    )
    for warning in count.warnings:
        warn(warning)
