"""The paper's figures and tables, from raw data to the finished picture: python -m reproduction."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer

from carvyfl.cli import main, options
from carvyfl.cli.output import (
    Command,
    note,
    print_json,
    print_table,
    screen,
    stopping_cleanly,
    warn,
)
from carvyfl.core.errors import CarvyError
from reproduction.published import PRESETS
from reproduction.runner import missing_trials, run_trials
from reproduction.targets import Only, chosen, named, without_effect

COMMAND = "python -m reproduction"
LOCATION_OPTIONS = frozenset({"-o", "--out", "--store", "--data-dir", "--commit", "--workers"})
"""Options that say where files are and who computes: they change no result."""
app = typer.Typer(
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command(cls=Command)
@stopping_cleanly("finished trials and groups are kept: run the same command to go on")
def reproduce(
    targets: list[str] | None = typer.Argument(
        None, help="Targets, or all; without any, the targets are listed."
    ),
    out: Path = options.option(
        "The folder for records, pictures and the report.",
        "--out",
        "-o",
        default=Path("runs/reproduction"),
    ),
    preset: str = options.option("paper (as published), default (ours) or both.", default="paper"),
    seeds: int | None = options.option("Fewer trials than the paper's, seeds 0, 1, …", min=1),
    samples: list[int] | None = options.option("Only these numbers of samples per client."),
    dataset: list[str] | None = options.option("Only these data sets: mnist, fashion-mnist."),
    method: list[str] | None = options.option(
        "Only these methods: carvy, flcert, cluster, single."
    ),
    data_dir: Path | None = options.DATA_DIR,
    engine: str = options.ENGINE,
    precision: str | None = options.PRECISION,
    cluster: str | None = options.CLUSTER,
    workers: int | None = options.WORKERS,
    store: Path | None = options.STORE,
    commit: str | None = options.option("The commit to note, where git cannot tell it."),
    records_only: bool = options.option(
        "Measure, and leave drawing to a later command.", "--records-only", default=False
    ),
    plugin: list[Path] | None = options.PLUGIN,
    json: bool = options.JSON,
) -> None:
    """Reproduce the paper: train, measure and draw its figures and tables.

    Without a target this lists them, with the number of trials and what is there
    already. Every trial is a line in OUT/PRESET.jsonl; OUT/reproduction holds
    pictures, tables with the paper's numbers and ours, and one HTML report.

    Interrupted? Run the same command again: finished trials are not repeated.

    [bold]Examples[/bold]

      python -m reproduction

      python -m reproduction ca-mnist --seeds 3 --samples 50

      python -m reproduction all --preset both --engine batched
    """
    presets = PRESETS if preset == "both" else (preset,)
    if preset not in {*PRESETS, "both"}:
        raise CarvyError(f"no preset '{preset}' to reproduce with; use paper, default or both")
    only = Only(
        seeds,
        tuple(samples) if samples else None,
        tuple(dataset) if dataset else None,
        tuple(method) if method else None,
    )
    wanted = named(targets or ["all"])
    trials = chosen(wanted, only)
    for sentence in without_effect(wanted, only):
        warn(sentence)
    if not targets:
        rows: dict[str, dict[str, Any]] = {}
        for name, target in wanted.items():
            trials = target.expand(only)
            done = {p: len(trials) - len(missing_trials(trials, p, out)) for p in presets}
            rows[name] = {"title": target.title, "trials": len(trials), "done": done}
        if json:
            print_json({"targets": rows})
        else:
            head = ["target", "what it is", "trials", *(f"done ({p})" for p in presets)]
            cells = [
                [name, row["title"], row["trials"], *row["done"].values()]
                for name, row in rows.items()
            ]
            print_table(head, cells)
            screen.print(f"{COMMAND} TARGET… runs them; {COMMAND} all runs everything.")
        return
    if not records_only:  # before hours of training, not after them
        try:
            from reproduction.present import present
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
            command=without_locations([*COMMAND.split(), *sys.argv[1:]]),
            commit=commit,
        )
    report = None if records_only else str(present(out))
    if json:
        print_json({"trials": len(trials), "presets": presets, "report": report})
    else:
        screen.print(f"{len(trials)} trials of {' and '.join(presets)} in {out}")
        if report is not None:
            screen.print(f"report: {report}", soft_wrap=True)
    if report is None:
        note("The same command without --records-only draws pictures and tables.")
    else:
        note("Pictures and tables are in the same folder.")


def without_locations(words: Iterable[str]) -> str:
    """Return a command line without the options that change no result."""
    remaining: list[str] = []
    parts = iter(words)
    for part in parts:
        if part in LOCATION_OPTIONS:
            next(parts, None)
        elif part.partition("=")[0] not in LOCATION_OPTIONS:
            remaining.append(part)
    return shlex.join(remaining)


if __name__ == "__main__":
    main(app)
