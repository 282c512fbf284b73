"""`carvy data`: list, check and fetch data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table

from carvyfl.cli import options
from carvyfl.cli.help import Command
from carvyfl.cli.output import errors, print_json, screen, stopping_cleanly
from carvyfl.core.errors import CarvyError

data = typer.Typer(help="List, verify and fetch data sets.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="{datasets}.")]


@data.command("list")
@stopping_cleanly()
def list_(data_dir: options.DataDir = None, json: options.Json = False) -> None:
    """List the registered data sets and where they are found.

    Searched are --data-dir, the folder named by CARVYFL_DATA, and your cache.

    [bold]Examples[/bold]

      carvy data list

      carvy data list --data-dir /data --json
    """
    from carvyfl.cli.answers import DataSets
    from carvyfl.data.fetch import available

    found = available(data_dir=data_dir)
    if json:
        print_json(DataSets(tuple(found)))
        return
    table = Table("name", Column("found in", overflow="fold"))
    for entry in found:
        table.add_row(entry.name, entry.where or f"nowhere yet: carvy data fetch {entry.name}")
    screen.print(table)


@data.command(cls=Command)
@stopping_cleanly()
def verify(name: Name, data_dir: options.DataDir = None, json: options.Json = False) -> None:
    """Check a data set's files against their published checksums; exit code 2 if one fails.

    What counts is the content: files may be packed (.gz) or not.

    [bold]Example[/bold]

      carvy data verify mnist --data-dir /data
    """
    from carvyfl.cli.answers import DataFiles
    from carvyfl.data.fetch import verify as check

    checks = check(name, data_dir)
    if json:
        print_json(DataFiles(name, tuple(checks)))
    else:
        table = Table("file", "state", Column("where", overflow="fold"))
        for entry in checks:
            table.add_row(entry.file, entry.state, entry.where or "")
        screen.print(table)
    bad = [entry for entry in checks if entry.state != "ok"]
    if bad:
        raise CarvyError(
            f"{name}: {bad[0].file} is {bad[0].state} ({len(bad)} of {len(checks)} files are not "
            f"right); get fresh copies with `carvy data fetch {name}`"
        )


@data.command(cls=Command)
@stopping_cleanly("files that arrived whole are kept: run the same command to go on")
def fetch(
    name: Name,
    directory: Annotated[
        Path | None, typer.Option(help="Where to put it; default your cache.")
    ] = None,
) -> None:
    """Download a data set, check every file's sum, and keep it.

    Files that are there already, and whole, are not downloaded again.

    [bold]Example[/bold]

      carvy data fetch mnist
    """
    from carvyfl.data.fetch import fetch as download

    folder = download(name, directory=directory, progress=errors.is_terminal)
    screen.print(f"{name} is in {folder}", soft_wrap=True)
