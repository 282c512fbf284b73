"""The command line says the library's parameters in its own words."""

from __future__ import annotations

import typer

from carvyfl.cli.commands import app
from carvyfl.cli.options import FLAGS, in_flags, whole_numbers


def test_parameters_become_flags_and_nothing_else_does() -> None:
    message = "use `types='bias-profile'` or set `groups`; get it with `carvy data fetch mnist`"
    assert in_flags(message) == (
        "use --types bias-profile or set --groups; get it with `carvy data fetch mnist`"
    )
    assert in_flags("set `min_samples`") == "set min_samples"


def test_every_flag_exists() -> None:
    commands = typer.main.get_command(app).commands.values()  # type: ignore[attr-defined]
    known = {name for command in commands for option in command.params for name in option.opts}
    assert set(FLAGS.values()) <= known


def test_ranges_of_numbers() -> None:
    assert whole_numbers("5, 1,2-4,3", "-m", 10) == [1, 2, 3, 4, 5]
    assert whole_numbers("10", "-m", 10) == [10]
