"""`carvy report`: runs as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from carvyfl.cli import options
from carvyfl.cli.output import screen, stopping_cleanly
from carvyfl.core.errors import CarvyError


@stopping_cleanly()
def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders that 'carvy run' wrote, of one or more seeds.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path(
        "report.html"
    ),
    data_dir: options.DataDir = None,
    plugin: options.Plugin = None,
) -> None:
    """Write finished runs as one HTML page that needs nothing else.

    Certified accuracy, attacks, clients and groups, margins, classes, images,
    training, settings and assumptions, with the values at the pointer. The page
    works offline and on paper. Several runs are compared in one chart; of runs that
    differ in the seed alone it has the mean, and a band of one standard deviation.

    [bold]Examples[/bold]

      carvy report runs/demo

      carvy report runs/demo runs/demo-1 --out both.html
    """
    from carvyfl.core.files import write_text
    from carvyfl.report.run_report import run_report
    from carvyfl.runs.seeds import run_folders

    if out.suffix.lower() not in {".html", ".htm"}:
        raise CarvyError(f"{out} is not an HTML file; give a name that ends in .html with --out")
    write_text(out, run_report(run_folders(runs), data_dir=data_dir))
    screen.print(f"Wrote {out}", soft_wrap=True)
