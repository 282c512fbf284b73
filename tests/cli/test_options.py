"""The command line says the library's parameters in its own words."""

from __future__ import annotations

import pytest
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


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0-3", [0, 1, 2, 3]), ("5, 1,2-4,3", [1, 2, 3, 4, 5]), ("10", [10]), ("3,3", [3])],
)
def test_ranges_of_numbers(text: str, numbers: list[int]) -> None:
    assert whole_numbers(text, "-m", 10) == numbers
