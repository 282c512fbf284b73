"""A user's own file: loaded once, and refused with the reason."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from carvyfl.attacks.registry import ATTACKS
from carvyfl.groups.methods import GROUPINGS
from support.cli import QUICK, assert_refused, carvy
from support.registries import restored

GROUPING = """
import numpy as np
from carvyfl.groups.methods import GROUPINGS, GroupingMethod
def helper(given):
    return np.arange(given.num_clients) % 2
def form(given):
    return helper(given)
GROUPINGS.add(GroupingMethod("odd", "odd", "odd", form, needs_groups=False))
"""
ATTACK = """
from dataclasses import dataclass
from typing import ClassVar
from carvyfl.attacks.attack import Malicious
from carvyfl.attacks.registry import ATTACKS

@ATTACKS.add
@dataclass(frozen=True)
class Wrong(Malicious):
    name: ClassVar[str] = "wrong-field"
    help: ClassVar[str] = "asks for a field that is not there"

    def forge(self, view):
        return view.weight, view.controls
"""


@pytest.fixture(autouse=True)
def nothing_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    modules = set(sys.modules)
    with restored(ATTACKS, GROUPINGS):
        yield
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def write(name: str, code: str) -> str:
    Path(name).write_text(code)
    return name


@pytest.mark.slow
def test_a_grouping_from_a_file_is_run_and_listed_and_needed_where_code_is_called() -> None:
    file = write("tool_odd.py", GROUPING)
    run = ("run", *QUICK, "--rounds", 1, "--methods", "odd", "--out", "run")
    with restored(GROUPINGS):
        assert ", odd" in carvy("run", "--plugin", file, "--help").out
        assert carvy(*run, "--plugin", file).code == 0
        groups = carvy("groups", *QUICK, "--plugin", file, "--method", "odd", "--json")
        assert groups.json["groups"] == [client % 2 for client in range(10)]
    words = ("run: unknown grouping method 'odd', which the run used", "--plugin")
    assert_refused(carvy("attack", "run", "-m", "0"), *words)
    assert carvy("report", "run").code == carvy("show", "run").code == 0


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            "return [1, 2][7]",
            "--plugin tool_odd.py, line 5 (grouping method 'odd'): IndexError: list index",
        ),
        ("open('nothing')", "line 5 (grouping method 'odd'): FileNotFoundError: "),
        ("return np.zeros(10)", "grouping 'odd' must be a flat list of whole numbers, not float64"),
        ("return given.vector.rows", "GroupingInputs has no 'vector'; did you mean 'vectors'?"),
    ],
)
def test_a_grouping_that_fails_is_refused_and_leaves_no_folder(body: str, words: str) -> None:
    file = write("tool_odd.py", GROUPING.replace("return np.arange(given.num_clients) % 2", body))
    run = ("run", *QUICK, "--plugin", file, "--methods", "odd", "--out", "new/run")
    assert_refused(carvy(*run), words)
    assert not Path("new", "run").exists()
    assert_refused(carvy("groups", *QUICK, "--plugin", file, "--method", "odd"), words)


def test_an_error_that_is_not_the_plugins_stays_what_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bug of the package must not be blamed on the file."""
    file = write("tool_odd.py", GROUPING)
    monkeypatch.setattr("carvyfl.groups.methods.claim", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        carvy("groups", *QUICK, "--plugin", file, "--method", "odd")


@pytest.mark.slow
def test_an_attack_that_fails_is_named_and_so_is_the_right_field() -> None:
    """In worker processes, too."""
    write("tool_attack.py", ATTACK)
    write("tool_zero.py", ATTACK.replace("view.weight, view.controls", "1 / 0"))
    write("tool_single.py", ATTACK.replace(", view.controls", "s"))
    run = ("--rounds", 1, "--methods", "balanced", "--groups", 3, "--out", "run")
    assert carvy("run", *QUICK, *run).code == 0
    for plugin, workers, words in (
        ("attack", 2, "RoundView has no 'weight'; did you mean 'weights'?"),
        ("zero", 2, "line 14 (attack 'wrong-field'): ZeroDivisionError: division"),
        ("single", 1, "attack 'wrong-field': forge must return models and control"),
    ):
        attack = ("attack", "run", "-a", "wrong-field", "-m", "2", "--workers", workers)
        with restored(ATTACKS):
            assert_refused(carvy(*attack, "--plugin", f"tool_{plugin}.py"), words)


BAD = {
    "tool_missing.py": (None, "there is no such Python file"),
    "tool_syntax.py": ("x = 1\ndef f(:\n", "line 2: SyntaxError"),
    "tool_failing.py": ("x = 1\n\nx / 0\n", "line 3: ZeroDivisionError: division by zero"),
    "tool_nothing.py": ("x = 1\n", "registers nothing; call GROUPINGS.add"),
    "tool_taken.py": (
        GROUPING.replace('"odd", "odd"', '"carvy", "odd"'),
        "is a grouping method 'carvy'",
    ),
    "json.py": (GROUPING, "rename the file"),
    "a-b.py": (GROUPING, "letters, digits and _"),
}


@pytest.mark.parametrize("file", BAD)
def test_a_bad_file_is_refused(file: str) -> None:
    code, words = BAD[file]
    if code is not None:
        write(file, code)
    for _ in range(2):  # a failed import leaves nothing behind
        assert_refused(carvy("groups", "--plugin", file), f"--plugin {file}", words)
