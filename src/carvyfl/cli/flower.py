"""`carvy flower`: real federations, on Flower."""

from __future__ import annotations

import importlib.resources
import shutil
from pathlib import Path
from typing import Annotated

import typer

from carvyfl.cli.output import screen, stopping_cleanly
from carvyfl.core.errors import CarvyError

flower = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")


@flower.callback()
def _flower() -> None:
    """Start a real federation, on Flower."""


@flower.command()
@stopping_cleanly()
def init(
    folder: Annotated[Path, typer.Argument(help="The folder to write; it must not exist.")],
) -> None:
    """Write a small Flower app: a federation to run, and to change into your own.

    'flwr run' starts it in simulation and in deployment alike; it needs the extra
    carvyfl[[flower]].

    [bold]Example[/bold]

      carvy flower init federation
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CarvyError(f"{folder} exists already; choose another folder or remove it first")
    template = importlib.resources.files("carvyfl.flower").joinpath("template")
    try:
        with importlib.resources.as_file(template) as source:
            shutil.copytree(
                source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
            )
    except OSError as error:
        raise CarvyError(f"cannot write {folder}: {error.strerror or error}") from error
    screen.print(
        f"Wrote {folder}: put your data into {folder / 'carvy_app' / 'data.py'}, settings into "
        f"{folder / 'pyproject.toml'}; 'flwr run' starts it once a SuperLink is running: "
        f"{folder / 'README.md'} says how to start one",
        soft_wrap=True,
    )
