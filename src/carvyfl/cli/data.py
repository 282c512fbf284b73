"""`carvy data` and `carvy flower`: data sets, and a federation of your own."""

from __future__ import annotations

import shutil
from pathlib import Path

import typer

import carvyfl
from carvyfl.cli import options
from carvyfl.cli.answers import DataFiles, DataSets
from carvyfl.cli.output import errors, print_json, print_table, screen, stopping_cleanly
from carvyfl.core.errors import CarvyError
from carvyfl.data.fetch import available, verify
from carvyfl.data.fetch import fetch as download

NAME = typer.Argument(help="{datasets}.")


def list_data(data_dir: Path | None = options.DATA_DIR, json: bool = options.JSON) -> None:
    """List the registered data sets and where they are found.

    Searched are --data-dir, the folder named by CARVYFL_DATA, and your cache.

    [bold]Examples[/bold]

      carvy data list

      carvy data list --data-dir /data --json
    """
    datasets = available(data_dir=data_dir)
    if json:
        print_json(DataSets(tuple(datasets)))
    else:
        fetch = "nowhere yet: carvy data fetch "
        print_table(["name", "found in"], [(d.name, d.where or fetch + d.name) for d in datasets])


def verify_data(
    name: str = NAME, data_dir: Path | None = options.DATA_DIR, json: bool = options.JSON
) -> None:
    """Check a data set's files against their published checksums; exit code 2 if one fails.

    What counts is the content: files may be packed (.gz) or not.

    [bold]Example[/bold]

      carvy data verify mnist --data-dir /data
    """
    checks = verify(name, data_dir)
    if json:
        print_json(DataFiles(name, tuple(checks)))
    else:
        print_table(["file", "state", "where"], [(c.file, c.state, c.where or "") for c in checks])
    if bad := [check for check in checks if check.state != "ok"]:
        raise CarvyError(
            f"{name}: {bad[0].file} is {bad[0].state} ({len(bad)} of {len(checks)} files are not "
            f"right); get fresh copies with `carvy data fetch {name}`"
        )


@stopping_cleanly("files that arrived whole are kept: run the same command to go on")
def fetch(
    name: str = NAME,
    directory: Path | None = options.option("Where to put it; default your cache."),
) -> None:
    """Download a data set, check every file's sum, and keep it.

    Files that are there already, and whole, are not downloaded again.

    [bold]Example[/bold]

      carvy data fetch mnist
    """
    folder = download(name, directory=directory, progress=errors.is_terminal)
    screen.print(f"{name} is in {folder}", soft_wrap=True)


def init(folder: Path = typer.Argument(help="The folder to write; it must not exist.")) -> None:
    """Write a small Flower app: a federation to run, and to change into your own.

    'flwr run' starts it in simulation and in deployment alike; it needs the extra
    carvyfl[[flower]]. Its folder operator holds nginx.conf, which lets SuperNodes alone reach the
    SuperLink, and systemd units; 'flwr run' does not send them anywhere.

    [bold]Example[/bold]

      carvy flower init federation
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CarvyError(f"{folder} exists already; choose another folder or remove it first")
    template = Path(carvyfl.__file__).parent / "flower" / "template"
    compiled = shutil.ignore_patterns("__pycache__")
    try:
        shutil.copytree(template, folder, dirs_exist_ok=True, ignore=compiled)
    except OSError as error:
        raise CarvyError(f"cannot write {folder}: {error.strerror or error}") from error
    screen.print(
        f"Wrote {folder}: put your data into {folder / 'carvy_app' / 'data.py'}, settings into "
        f"{folder / 'pyproject.toml'}; 'flwr run' starts it once a SuperLink is running: "
        f"{folder / 'README.md'} says how to start one",
        soft_wrap=True,
    )


def check(
    address: str = typer.Argument(help="What SuperNodes are given as --superlink: HOST:PORT."),
    ca: Path = typer.Option(help="The authority's certificate that SuperNodes have: ca.crt."),
) -> None:
    """Find out whether a stranger could control a federation; exit code 1 if so.

    Flower serves its operator's interface on the port of the clients, and it asks for no key. Run
    this where a stranger could be: on a client's machine. Asking changes nothing.

    [bold]Example[/bold]

      carvy flower check federation.example.org:9092 --ca certificates/ca.crt
    """
    from carvyfl.flower.door import knock

    door = knock(address, ca)
    reached = "reachable" if door.admits_clients else "NOT REACHABLE"
    rows = [("fleet", "clients", reached, str(door.fleet))]
    for name, status in door.others.items():
        said = "REACHABLE" if name in door.open else "refused"
        rows.append((name, "the operator alone", said, str(status)))
    print_table(["interface", "for", "from here", "HTTP"], rows)
    if door.open:
        screen.print("Whoever reaches this address controls the federation.", soft_wrap=True)
    if door.open or not door.admits_clients:
        raise typer.Exit(1)
