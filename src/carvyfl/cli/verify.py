"""`carvy verify`: a run folder as evidence."""

from __future__ import annotations

from pathlib import Path

import typer

from carvyfl.cli import options
from carvyfl.cli.answers import Audit
from carvyfl.cli.output import print_items, print_json, screen
from carvyfl.runs.folder import RunFolder
from carvyfl.runs.record import Verdict

EXIT_CODES: dict[Verdict, int] = {"all checked": 0, "mismatch": 1, "as far as checked": 3}
"""Of an audit; 2 is bad input, here as everywhere."""


def verify(
    run: Path = options.RUN,
    commitment: str | None = options.option(
        "The hash of the coins, as published before the reports."
    ),
    data_dir: Path | None = options.DATA_DIR,
    test_data: Path | None = options.option(
        "An npz file with x_test and y_test, if the data set is not at hand."
    ),
    strict: bool = options.option("Exit with 1 unless all was checked.", "--strict", default=False),
    workers: int | None = options.WORKERS,
    plugin: list[Path] | None = options.PLUGIN,
    json: bool = options.JSON,
) -> None:
    """Derive again, without training, every number that a run folder claims.

    Bytes against the recorded hashes, groups from types and coins, votes from
    models where the data is at hand, margins and CA(m) from votes; models, too,
    from the sums that a one-shot run kept (--keep-sums). Says what was
    checked, what was not, and what no audit can derive. Exit codes: 0 all checked,
    1 mismatch, 2 bad input, 3 holds as far as checked.

    [bold]Examples[/bold]

      carvy verify runs/demo

      carvy verify runs/demo --strict --json
    """
    from carvyfl.runs.audit import audit, verdict
    from carvyfl.runs.evidence import Evidence

    checks = []
    for check in audit(RunFolder(run), Evidence(commitment, data_dir, test_data, workers)):
        checks.append(check)
        if not json:
            print_items([options.in_flags(f"{check.what}: {check.state}. {check.detail}")])
    outcome = verdict(checks)
    if json:
        print_json(Audit(str(run), outcome, tuple(checks)))
    elif outcome == "mismatch":
        screen.print(f"MISMATCH in {checks[-1].what}")
    elif outcome == "as far as checked":
        remaining = ", ".join(check.what for check in checks if check.state == "not checked")
        screen.print(f"Holds as far as checked. Not checked: {remaining}")
    elif any(check.what == "training" for check in checks):
        screen.print(
            "All checked: the folder is consistent with itself, which is no proof of training."
        )
    else:
        source = "messages" if any(check.what == "messages" for check in checks) else "data"
        screen.print(f"All checked: the models follow from the {source}.")
    if outcome != "all checked":
        raise typer.Exit(EXIT_CODES["mismatch" if strict else outcome])
