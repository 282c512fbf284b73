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
from carvyfl.groups.basis import BLIND
from carvyfl.groups.methods import GROUPINGS, GroupingMethod

def halves(given):
    groups = np.arange(given.num_clients) % 2
    return given.grouping(groups, 2, BLIND)

GROUPINGS.add(GroupingMethod("two-halves", "halves", "in two", halves, needs_groups=False))
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
def test_a_grouping_from_a_file_is_run_and_listed() -> None:
    file = write("tool_halves.py", GROUPING)
    assert "two-halves" in carvy("run", "--plugin", file, "--help").out
    run = ("run", *QUICK, "--rounds", 1, "--methods", "two-halves", "--out", "run")
    assert carvy(*run, "--plugin", file).code == 0
    groups = carvy("groups", *QUICK, "--plugin", file, "--method", "two-halves", "--json")
    assert groups.json["groups"] == [client % 2 for client in range(10)]


@pytest.mark.slow
def test_an_attack_from_a_file_works_in_worker_processes_and_names_the_right_field() -> None:
    file = write("tool_attack.py", ATTACK)
    run = ("--rounds", 1, "--methods", "balanced", "--groups", 3, "--out", "run")
    assert carvy("run", *QUICK, *run).code == 0
    attack = ("attack", "run", "--plugin", file, "-a", "wrong-field", "-m", "2", "--workers", 2)
    assert_refused(carvy(*attack), "RoundView has no 'weight'; did you mean 'weights'?")


BAD = {
    "missing": (None, "there is no such Python file"),
    "syntax": ("x = 1\ndef f(:\n", "line 2: SyntaxError"),
    "failing": ("x = 1\n\nx / 0\n", "line 3: ZeroDivisionError: division by zero"),
    "nothing": ("x = 1\n", "registers nothing; call GROUPINGS.add"),
    "taken": (GROUPING.replace("two-halves", "carvy"), "there is a grouping method 'carvy'"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused(name: str) -> None:
    code, words = BAD[name]
    file = f"tool_{name}.py"
    if code is not None:
        write(file, code)
    for _ in range(2):  # a failed import leaves nothing behind
        assert_refused(carvy("groups", "--plugin", file), f"--plugin {file}", words)


@pytest.mark.parametrize(
    ("file", "words"), [("json.py", "rename the file"), ("a-b.py", "letters, digits and _")]
)
def test_a_name_that_cannot_be_imported_is_refused(file: str, words: str) -> None:
    assert_refused(carvy("groups", "--plugin", write(file, GROUPING)), words)
