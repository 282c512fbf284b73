"""The command line says the library's parameters in its own words."""

from __future__ import annotations

import typer

from carvyfl.cli.commands import app
from carvyfl.cli.options import FLAGS, in_flags


def test_parameters_become_flags_and_nothing_else_does() -> None:
    message = "use `types='bias-profile'` or set `groups`; get it with `carvy data fetch mnist`"
    assert in_flags(message) == (
        "use --types bias-profile or set --groups; get it with `carvy data fetch mnist`"
    )
    assert in_flags("set `min_samples`") == "set min_samples"


def test_every_flag_exists() -> None:
    commands = typer.main.get_command(app).commands.values()  # type: ignore[attr-defined]
    known = {name for command in commands for own in command.params for name in own.opts}
    assert set(FLAGS.values()) <= known
