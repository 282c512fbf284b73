"""All commands as one application, and how it is called."""

from __future__ import annotations

import difflib
import itertools
import sys
from dataclasses import fields

import click
import typer

from carvyfl.cli.attack import attack
from carvyfl.cli.certify import certify
from carvyfl.cli.data import check, fetch, init, list_data, verify_data
from carvyfl.cli.groups import coins, groups
from carvyfl.cli.output import Command, show_warnings_as_lines
from carvyfl.cli.predict import predict
from carvyfl.cli.run import run
from carvyfl.cli.show import report, show
from carvyfl.cli.variants import PLUGINS, plugin_fault
from carvyfl.cli.verify import verify
from carvyfl.core.errors import CarvyError
from carvyfl.data.partitions import PARTITIONS

app = typer.Typer(
    name="carvy",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
data = typer.Typer(help="List, verify and fetch data sets.", no_args_is_help=True)
flower = typer.Typer(help="Start a real federation, on Flower.", no_args_is_help=True)
finished = (attack, show, report, verify, predict)  # commands on finished runs
for command in (run, *finished, certify, groups, coins):
    app.command(cls=Command)(command)
data.command("list", cls=Command)(list_data)
data.command("verify", cls=Command)(verify_data)
data.command(cls=Command)(fetch)
flower.command(cls=Command)(init)
flower.command(cls=Command)(check)
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


def call(app: typer.Typer) -> int:
    """Run the command of an application that was typed and return its exit code."""
    show_warnings_as_lines()
    try:
        return app(standalone_mode=False) or 0
    except click.ClickException as error:
        message = error.format_message()
        if not message:  # no command was named: its help is on the screen already
            return error.exit_code
        raise CarvyError(_one_line(message, error)) from None
    except CarvyError:
        raise
    except Exception as error:  # a plugin may fail in any way
        fault = plugin_fault(error) if PLUGINS else None
        if fault is None:
            raise
        raise fault from error


def _one_line(message: str, error: click.ClickException) -> str:
    """Say what could not be understood, what may have been meant, and where to look it up."""
    if isinstance(error, click.NoSuchOption):
        message = error.message + _meant(error)
    message = message.replace(". Did you mean", "; did you mean").rstrip(".")
    context = getattr(error, "ctx", None)
    place = context.command_path if context else "carvy"
    end = " " if message.endswith("?") else "; "
    return f"{message[0].lower()}{message[1:]}{end}see '{place} --help'"


def _meant(error: click.NoSuchOption) -> str:
    """Say what an unknown flag may be: a variant's own option, or another flag, mistyped."""
    flag, name = error.option_name, error.option_name.lstrip("-").replace("-", "_")
    options = {option.name for option in error.ctx.command.params} if error.ctx else set()
    words = " ".join(sys.argv[1:]).replace("=", " ").split()
    value = next((after for word, after in itertools.pairwise(words) if word == flag), "VALUE")
    takers = [rule.name for rule in PARTITIONS.values() if name in rule.parameters]
    if takers and "partition_options" in options:
        return f"; it is an option of partition {', '.join(takers)}: write -p {name}={value}"
    if not difflib.get_close_matches(flag, error.possibilities or [], cutoff=0.8):
        from carvyfl.attacks.registry import ATTACKS  # takes seconds to load

        takers = [kind.name for kind in ATTACKS.values() if name in {f.name for f in fields(kind)}]
        if takers:
            write = f"{'' if 'option' in options else 'carvy attack RUN '}--option {name}={value}"
            return f"; it is an option of attack {', '.join(takers)}: write {write}"
    return f"; did you mean {error.possibilities[0]}?" if error.possibilities else ""
