"""`carvy show`: what a run found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET
from msgspec.structs import asdict

from carvyfl.cli import options
from carvyfl.cli.output import print_curves, print_items, print_json, screen, stopping_cleanly, warn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from carvyfl.group_count import GroupCount
    from carvyfl.groups.basis import Reading
    from carvyfl.runs.folder import RunFolder
    from carvyfl.runs.record import MethodResult, Types

BENCHED = 0.1  # of all clients: where more than that sit out, somebody should know
FAULTS_SHOWN = 5  # clients named on the screen; a run that diverged would name all of them


@stopping_cleanly()
def show(
    run: options.RunPath,
    json: options.Json = False,
) -> None:
    """Print what a finished run found: CA(m), rounds, groups, and what it rests on.

    The same text, or object, that 'carvy run' printed at its end.

    [bold]Examples[/bold]

      carvy show runs/demo

      carvy show runs/demo --json
    """
    from carvyfl.runs.folder import RunFolder

    print_run(RunFolder(run), as_json=json)


def print_run(folder: RunFolder, *, as_json: bool) -> None:
    """Print a finished run, for people or for machines."""
    from carvyfl.plots.style import method_style

    record = folder.record()
    if as_json:
        from carvyfl.cli.answers import Run

        print_json(Run(run=str(folder.path), **asdict(record)))
        return
    config, methods = record.config, record.methods
    curves, used = certified_curves(methods)
    print_curves(
        f"Certified accuracy CA(m) in %: {record.data.name}, "
        f"{config.clients} clients with {config.samples} samples",
        curves,
    )
    _explain(used, nameless=any(method_style(name).label in curves for name in methods))
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


def certified_curves(
    methods: dict[str, MethodResult],
) -> tuple[dict[str, Sequence[float]], list[Reading]]:
    """Return CA(m) by method and reading, and the readings that are named.

    Readings with the same curve share a column, under the name of the strictest.
    """
    from carvyfl.groups.basis import READINGS
    from carvyfl.plots.style import method_style

    curves: dict[str, Sequence[float]] = {}
    used: list[Reading] = []
    for name, entry in methods.items():
        label = method_style(name).label
        found = {r: own for r in READINGS if (own := getattr(entry.readings, r)) is not None}
        distinct = {own.groups_per_client: reading for reading, own in found.items()}
        if not found:
            curves[f"{label}, not certified"] = entry.ca
        for reading in distinct.values():
            everything = len(distinct) == 1 and len(found) == len(READINGS)
            title = f"{label}, {READINGS[reading].label}"
            curves[label if everything else title] = found[reading].ca
            used += [reading] if reading not in used else []
    return curves, [reading for reading in READINGS if reading in used]


def _explain(used: list[Reading], *, nameless: bool) -> None:
    """Say what the columns compare with, and which one to use."""
    from carvyfl.groups.basis import READINGS

    screen.print("Row m: answered correctly with up to m malicious clients, and")
    print_items(f"{READINGS[reading].label}: {READINGS[reading].same_as};" for reading in used)
    if "all_honest" in used and "honest_only" in used:
        screen.print(
            "If malicious clients are fake, use 'honest only'. If they may be real clients that "
            "were taken over, be cautious and use 'all honest'."
        )
    if nameless and len(used) > 1:
        screen.print("A column without a name holds in every reading.")
    screen.print()


def _summary(entry: MethodResult) -> str:
    from carvyfl.learning.job import UNUSABLE

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
