"""The command `carvy`."""

from __future__ import annotations

import os
import sys
from concurrent.futures import BrokenExecutor
from pickle import PicklingError
from typing import NoReturn

import typer

from carvyfl.cli.attack import attack
from carvyfl.cli.bench import bench
from carvyfl.cli.certify import certify
from carvyfl.cli.data import data
from carvyfl.cli.flower import flower
from carvyfl.cli.groups import groups
from carvyfl.cli.output import show_warnings_as_lines
from carvyfl.cli.predict import predict
from carvyfl.cli.report import report
from carvyfl.cli.reproduce import reproduce
from carvyfl.cli.run import run
from carvyfl.cli.show import show
from carvyfl.cli.verify import sign, verify
from carvyfl.errors import CarvyError

app = typer.Typer(
    name="carvy",
    help="Federated learning that stays provably right when some clients are malicious.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS = (
    run,
    attack,
    show,
    report,
    verify,
    sign,
    predict,
    certify,
    groups,
    reproduce,
    bench,
)
for command in COMMANDS:
    app.command()(command)
app.add_typer(data, name="data")
app.add_typer(flower, name="flower")


def _version(value: bool) -> None:
    if value:
        from carvyfl import __version__

        typer.echo(f"carvy {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Federated learning that stays provably right when some clients are malicious."""


def main() -> None:
    """Run the command line: one line and exit code 2 for a user's mistake, never a traceback."""
    show_warnings_as_lines()
    try:
        app()
    except CarvyError as error:
        _fail(str(error))
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:  # a disk that filled up where no message of our own stands
        where = f" ({error.filename})" if error.filename else ""
        _fail(f"{error.strerror or error}{where}; free some space or check the folder, try again")
    except PicklingError:  # joblib hands large arrays over through files
        _fail(
            "cannot hand work to the worker processes; free some space in /dev/shm and /tmp, or "
            "run the same command with --workers 1: finished groups are kept"
        )
    except BrokenExecutor:
        _fail(
            "a worker process was killed, most likely for want of memory; finished groups are "
            "kept: run the same command with fewer --workers"
        )


def _fail(message: str) -> NoReturn:
    """Say what is wrong in one line, whatever the message holds, and exit with code 2."""
    sys.stderr.write(f"carvy: {' '.join(message.split())}\n")
    sys.exit(2)
