"""`carvy data`: the data sets that can be had, checked and fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from carvyfl.cli import options
from carvyfl.cli.output import errors, print_json, screen, stopping_cleanly

data = typer.Typer(help="List, verify and fetch data sets.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="mnist, fashion-mnist or embedded.")]


@data.command("list")
def list_(data_dir: options.DataDir = None, json: options.Json = False) -> None:
    """List the registered data sets and where they are found."""
    from carvyfl.federation.fetch import available

    found = available(data_dir=data_dir)
    if json:
        print_json({"datasets": [{"name": entry.name, "where": entry.where} for entry in found]})
        return
    table = Table("name", "found in")
    for entry in found:
        table.add_row(entry.name, entry.where or f"nowhere yet: carvy data fetch {entry.name}")
    screen.print(table)


@data.command()
def verify(name: Name, data_dir: options.DataDir = None, json: options.Json = False) -> None:
    """Check a data set's files against their published checksums; exit code 2 if one fails."""
    from carvyfl.federation.fetch import verify as check

    checks = check(name, data_dir)
    if json:
        print_json(
            {
                "name": name,
                "files": [{"file": c.file, "state": c.state, "where": c.where} for c in checks],
            }
        )
    else:
        table = Table("file", "state", "where")
        for entry in checks:
            table.add_row(entry.file, entry.state, entry.where or "")
        screen.print(table)
    if any(entry.state != "ok" for entry in checks):
        raise typer.Exit(2)


@data.command()
def fetch(
    name: Name,
    directory: Annotated[
        Path | None, typer.Option(help="Where to put it; default your cache.")
    ] = None,
) -> None:
    """Download a data set, check every file's sum, and keep it."""
    from carvyfl.federation.fetch import fetch as download

    with stopping_cleanly():
        folder = download(name, directory=directory, progress=errors.is_terminal)
    screen.print(f"{name} is in {folder}", highlight=False, soft_wrap=True)
