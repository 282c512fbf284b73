"""`carvy reproduce`: the paper's figures and tables, from raw data to the finished picture."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table

from carvyfl.cli import options
from carvyfl.cli.output import note, print_json, screen, stopping_cleanly, warn
from carvyfl.core.errors import CarvyError

if TYPE_CHECKING:
    from carvyfl.cli.answers import Target


@stopping_cleanly("finished trials and groups are kept: run the same command to go on")
def reproduce(
    targets: Annotated[
        list[str] | None,
        typer.Argument(help="Targets, or all; without any, the targets are listed."),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The folder for records, pictures and the report.")
    ] = Path("reproduction"),
    preset: Annotated[
        str, typer.Option(help="paper (as published), default (ours) or both.")
    ] = "paper",
    seeds: Annotated[
        int | None, typer.Option(help="Fewer trials than the paper's, seeds 0, 1, …", min=1)
    ] = None,
    samples: Annotated[
        list[int] | None, typer.Option(help="Only these numbers of samples per client.")
    ] = None,
    dataset: Annotated[
        list[str] | None, typer.Option(help="Only these data sets: mnist, fashion-mnist.")
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="Only these methods: carvy, flcert, cluster, single."),
    ] = None,
    data_dir: options.DataDir = None,
    engine: options.Engine = "auto",
    precision: options.Precision = None,
    cluster: options.Cluster = None,
    workers: options.Workers = None,
    store: options.Store = None,
    commit: Annotated[
        str | None, typer.Option(help="The commit to note, where git cannot tell it.")
    ] = None,
    records_only: Annotated[
        bool,
        typer.Option("--records-only", help="Measure, and leave drawing to a later command."),
    ] = False,
    plugin: options.Plugin = None,
    json: options.Json = False,
) -> None:
    """Reproduce the paper: train, measure and draw its figures and tables.

    Without a target this lists them, with the number of trials and what is there
    already. Every trial is a line in OUT/PRESET.jsonl; OUT/reproduction holds
    pictures, tables with the paper's numbers and ours, and one HTML report.

    Interrupted? Run the same command again: finished trials are not repeated.

    [bold]Examples[/bold]

      carvy reproduce

      carvy reproduce ca-mnist --seeds 3 --samples 50

      carvy reproduce all --preset both --engine batched
    """
    from carvyfl.cli.answers import Reproduced, Target, Targets
    from carvyfl.core.environment import without_locations
    from carvyfl.paper.published import PRESETS
    from carvyfl.paper.runner import missing_trials, run_trials
    from carvyfl.paper.targets import Only, chosen, named, without_effect

    presets = PRESETS if preset == "both" else (preset,)
    if preset not in {*PRESETS, "both"}:
        raise CarvyError(f"no preset '{preset}' to reproduce with; use paper, default or both")
    only = Only(
        seeds,
        None if samples is None else tuple(samples),
        None if dataset is None else tuple(dataset),
        None if method is None else tuple(method),
    )
    wanted = named(targets or ["all"])
    trials = chosen(wanted, only)
    for sentence in without_effect(wanted, only):
        warn(sentence)
    if not targets:
        rows: dict[str, Target] = {}
        for name, target in wanted.items():
            trials = target.expand(only)
            done = {p: len(trials) - len(missing_trials(trials, p, out)) for p in presets}
            rows[name] = Target(target.title, len(trials), done)
        if json:
            print_json(Targets(rows))
        else:
            _print_targets(rows, presets)
        return
    if not records_only:  # before hours of training, not after them
        try:
            from carvyfl.paper.present import present
        except ModuleNotFoundError as error:
            if error.name != "pandas":
                raise
            raise CarvyError(
                "pictures and tables need pandas; install carvyfl[paper], or use --records-only"
            ) from error
    compute = options.compute(engine, precision, workers, store, cluster)
    for name in presets:
        run_trials(
            trials,
            name,
            out,
            compute,
            data_dir=None if data_dir is None else str(data_dir),
            command=without_locations(["carvy", *sys.argv[1:]]),
            commit=commit,
        )
    report = None if records_only else str(present(out))
    if json:
        print_json(Reproduced(len(trials), tuple(presets), report))
    else:
        screen.print(f"{len(trials)} trials of {' and '.join(presets)} in {out}")
    if report is None:
        note("The same command without --records-only draws pictures and tables.")
        return
    if not json:
        screen.print(f"report: {report}", soft_wrap=True)
    note("Pictures and tables are in the same folder.")


def _print_targets(rows: dict[str, Target], presets: tuple[str, ...]) -> None:
    right = ("trials", *(f"done ({preset})" for preset in presets))
    table = Table("target", "what it is", *(Column(name, justify="right") for name in right))
    for name, row in rows.items():
        done = (str(row.done[preset]) for preset in presets)
        table.add_row(name, row.title, str(row.trials), *done)
    screen.print(table)
    screen.print("carvy reproduce TARGET… runs them; carvy reproduce all runs everything.")
