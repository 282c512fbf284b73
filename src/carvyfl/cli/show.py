"""`carvy show`: what a run found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import UNSET
from msgspec.structs import asdict

from carvyfl.cli import options
from carvyfl.cli.output import (
    print_columns,
    print_curves,
    print_items,
    print_json,
    screen,
    stopping_cleanly,
    warn,
)
from carvyfl.core.errors import CarvyError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from carvyfl.group_count import GroupCount
    from carvyfl.groups.basis import Reading
    from carvyfl.runs.folder import RunFolder
    from carvyfl.runs.record import MethodResult, Types

BENCHED = 0.1  # of all clients: where more than that sit out, somebody should know
FAULTS_SHOWN = 5  # clients named on the screen; a run that diverged would name all of them


@stopping_cleanly()
def show(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders that 'carvy run' wrote, of one or more seeds.")
    ],
    json: options.Json = False,
) -> None:
    """Print what a finished run found: CA(m), rounds, groups, and what it rests on.

    The same text, or object, that 'carvy run' printed at its end. Runs that differ
    in the seed alone are shown together: mean and standard deviation of CA(m).

    [bold]Examples[/bold]

      carvy show runs/demo

      carvy show runs/demo --json

      carvy show runs/demo runs/demo-1
    """
    from carvyfl.runs.folder import RunFolder
    from carvyfl.runs.seeds import run_folders, seed_sets

    folders = [RunFolder(path) for path in run_folders(runs)]
    sets = seed_sets([(folder, folder.record()) for folder in folders])
    if json and len(sets) > 1:
        raise CarvyError("these runs differ in more than the seed; print one at a time with --json")
    for position, own in enumerate(sets):
        if position:
            screen.print()
        if len(own) == 1:
            print_run(own[0][0], as_json=json)
        else:
            print_seeds([folder for folder, _ in own], as_json=json)


def print_run(folder: RunFolder, *, as_json: bool) -> None:
    """Print a finished run, for people or for machines."""
    from carvyfl.plots.style import method_style

    record = folder.record()
    if as_json:
        from carvyfl.cli.answers import Run

        print_json(Run(run=str(folder.path), **asdict(record)))
        return
    config, methods = record.config, record.methods
    columns = certified_columns(methods)
    print_curves(
        f"Certified accuracy CA(m) in %: {record.data.name}, "
        f"{config.clients} clients with {config.samples} samples",
        {title: certified(methods[method], reading) for title, method, reading in columns},
    )
    _explain(
        [reading for *_, reading in columns if reading is not None],
        nameless=any(title == method_style(name).label for title, name, _ in columns),
    )
    for name, entry in methods.items():
        screen.print(f"{method_style(name).label}: {_summary(entry)}", soft_wrap=True)
        print_items([entry.certificate.because])
    without_type = 0
    if record.group_count is not UNSET:
        print_group_count(record.group_count)
    if record.types is not None:
        _print_types(record.types)
        without_type = len(record.types.set_aside)
    for name, entry in methods.items():
        benched = len(entry.benched) - without_type
        if benched > BENCHED * config.clients:
            warn(
                f"{name}: {benched} of {config.clients} clients sit out, since some types have "
                "more clients than there are groups; raise --groups, or try the method wrap"
            )
        _warn_of_faults(f"{name}: ", entry.set_aside, "")
        if len(entry.set_aside) > config.clients / 2:
            warn(
                f"{name}: if most of these clients are honest, training diverged; "
                "try a smaller --lr"
            )


def _warn_of_faults(name: str, set_aside: dict[str, str], where: str) -> None:
    """Name the first clients whose reports could not be used, and count the others."""
    for client, reason in list(set_aside.items())[:FAULTS_SHOWN]:
        warn(f"{name}client {client} was set aside{where} ({reason})")
    more = len(set_aside) - FAULTS_SHOWN
    if more > 0:
        warn(f"{name}{more} more were set aside{where}; carvy report lists them all")


def certified_columns(methods: dict[str, MethodResult]) -> list[tuple[str, str, Reading | None]]:
    """Return the columns of a table of CA(m): title, method, and reading or None for none.

    Readings with the same curve share a column, under the name of the strictest.
    """
    from carvyfl.groups.basis import READINGS
    from carvyfl.plots.style import method_style

    columns: list[tuple[str, str, Reading | None]] = []
    for name, entry in methods.items():
        label = method_style(name).label
        found = {r: own for r in READINGS if (own := getattr(entry.readings, r)) is not None}
        distinct = {own.groups_per_client: reading for reading, own in found.items()}
        if not found:
            columns.append((f"{label}, not certified", name, None))
        for reading in distinct.values():
            everything = len(distinct) == 1 and len(found) == len(READINGS)
            title = label if everything else f"{label}, {READINGS[reading].label}"
            columns.append((title, name, reading))
    return columns


def certified(entry: MethodResult, reading: Reading | None) -> Sequence[float]:
    """Return CA(m) of a method in percent; without a reading, the mere accuracy."""
    curve: Sequence[float] = entry.ca if reading is None else getattr(entry.readings, reading).ca
    return curve


def print_seeds(folders: Sequence[RunFolder], *, as_json: bool) -> None:
    """Print runs that differ in the seed alone: mean and standard deviation of CA(m)."""
    from carvyfl.plots.style import method_style
    from carvyfl.runs.seeds import spreads
    from carvyfl.voting.spread import Spread, mean_sd

    records = [folder.record() for folder in folders]
    first, seeds = records[0], tuple(record.config.seed for record in records)
    if as_json:
        from carvyfl.cli.answers import MeanCurve, Seeds

        found = spreads(records)
        print_json(
            Seeds(
                runs=tuple(str(folder.path) for folder in folders),
                seeds=seeds,
                methods={
                    method: {str(reading): MeanCurve.of(own) for reading, own in by.items()}
                    for method, by in found.items()
                },
            )
        )
        return
    columns, used = {}, []
    shown = certified_columns(first.methods)
    for title, method, reading in shown:
        curves = Spread.of(certified(record.methods[method], reading) for record in records)
        columns[title] = [mean_sd(at_m) for at_m in curves.curves.T]
        used += [reading] if reading is not None and reading not in used else []
    print_columns(
        f"Certified accuracy CA(m) in %: {first.data.name}, {first.config.clients} clients with "
        f"{first.config.samples} samples; mean ± standard deviation over {len(seeds)} seeds",
        columns,
    )
    _explain(used, nameless=any(title == method_style(m).label for title, m, _ in shown))
    for method in first.methods:
        areas = mean_sd([record.methods[method].auc for record in records])
        screen.print(f"{method_style(method).label}: AUC {areas}", soft_wrap=True)
    screen.print(f"Seeds {', '.join(map(str, seeds))}; carvy show {folders[0].path} shows one.")


def _explain(used: Collection[Reading], *, nameless: bool) -> None:
    """Say what the columns compare with, and which one to use."""
    from carvyfl.groups.basis import READINGS

    screen.print("Row m: answered correctly with up to m malicious clients, and")
    print_items(f"{READINGS[r].label}: {READINGS[r].same_as};" for r in READINGS if r in used)
    if "all_honest" in used and "honest_only" in used:
        screen.print(
            "If malicious clients are fake, use 'honest only'. If they may be real clients that "
            "were taken over, be cautious and use 'all honest'."
        )
    if nameless and len(used) > 1:
        screen.print("A column without a name holds in every reading.")
    screen.print()


def _summary(entry: MethodResult) -> str:
    from carvyfl.learning.recipe import UNUSABLE

    low, high = min(entry.rounds), max(entry.rounds)
    groups = "1 group" if entry.num_groups == 1 else f"{entry.num_groups} groups"
    rounds = f"{low} rounds" if low == high else f"{low}-{high} rounds"
    if high == 0:
        rounds = "heads in closed form"
    lost = sum(why in UNUSABLE for why in entry.stopped)
    return (
        f"{groups}, {rounds}, AUC {entry.auc:.1f}, "
        f"95 % interval of CA(0) {entry.ca_low[0]:.1f}-{entry.ca_high[0]:.1f}"
        + (f", {lost} groups cast no vote" if lost else "")
    )


def print_group_count(count: GroupCount) -> None:
    """Show how G was chosen: the curve, and what balanced random groups would do."""
    from rich.table import Table

    level = "60" if count.aim == "auc" else count.aim[1:]
    table = Table(
        "G",
        "AUC",
        "CA(0)",
        f"largest m at {level} %",
        title="How many groups: estimated on held-out samples",
        title_justify="left",
    )
    rows = [(each, f"{each.groups}") for each in count.candidates]
    rows.append((count.balanced, f"{count.balanced.groups}, random"))
    for each, name in rows:
        style = "bold" if each is count.chosen else ""
        m = "none" if each.largest_m < 0 else str(each.largest_m)
        table.add_row(name, f"{each.auc:.0f}", f"{each.accuracy:.1f}", m, style=style)
    screen.print(table)
    screen.print(
        f"G = {count.groups} was chosen for {_aims(count)}. It depends on all clients' data, so "
        "the certificate compares with these groups only. For one that compares with whole runs, "
        "set --groups beforehand and use the method slots."
    )
    for warning in count.warnings:
        warn(warning)


def _aims(count: GroupCount) -> str:
    aim = (
        "the largest area under CA(m)"
        if count.aim == "auc"
        else f"the largest m at {count.aim[1:]} %"
    )
    least = count.least_accuracy
    return f"{aim}, with an accuracy of at least {least:g} %" if least else aim


def _print_types(types: Types) -> None:
    sizes = ", ".join(str(size) for size in types.sizes[:12])
    more = ", …" if len(types.sizes) > 12 else ""
    screen.print(f"Types ({types.method}): {types.num_types} found, of {sizes}{more} clients")
    for warning in types.warnings:
        warn(warning)
    _warn_of_faults("", types.set_aside, " in Step 1")
