"""Variants by name: what is refused, and what installed packages bring along."""

from __future__ import annotations

import copy
import json
import os
import pickle
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from carvyfl.core.errors import CarvyError
from carvyfl.core.registry import NamedFields, PlugInWarning, Registry
from carvyfl.runs.folder import RunFolder
from support.cli import process
from support.pages import DOCS, blocks, commands


@dataclass(frozen=True)
class Fruit:
    name: str
    help: str = "grows"


def fruits() -> Registry[Any]:
    return Registry("fruit", "carvyfl.tests.fruits", [Fruit("apple"), Fruit("pear")])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("aple", r"unknown fruit 'aple'; did you mean 'apple'\? known:"),
        ("zzz", "unknown fruit 'zzz'; known: apple, pear"),
        (3, "fruit must be a name, not 3"),
    ],
)
def test_an_unknown_name_suggests_the_nearest(name: object, words: str):
    with pytest.raises(CarvyError, match=words):
        fruits().pick(name)


def test_what_is_added_is_there_once_beside_the_others():
    registry, plum = fruits(), Fruit("plum")
    assert registry.add(plum) is plum
    assert registry.pick("plum") is registry["plum"] is plum
    assert list(registry) == ["apple", "pear", "plum"]
    assert "cherry" not in registry
    with pytest.raises(CarvyError, match="there is a fruit 'pear' already"):
        registry.add(Fruit("pear", "another"))
    assert registry["pear"].help == "grows"


@pytest.mark.parametrize("entry", [Fruit(""), Fruit("fig", None), Fruit(7), object()])  # type: ignore[arg-type]
def test_an_entry_needs_a_name_and_a_line_of_help(entry: Any):
    registry = fruits()
    with pytest.raises(CarvyError, match="a fruit needs a name and a line of help"):
        registry.add(entry)
    assert list(registry) == ["apple", "pear"]


# A wrong field is answered with the right one; Python's own questions are not.


@dataclass(frozen=True)
class Seen(NamedFields):
    weights: int
    controls: int

    @property
    def size(self) -> int:
        return self.weights + self.controls


def test_the_nearest_name_is_suggested_and_all_are_listed():
    seen: Any = Seen(1, 2)
    assert (seen.weights, seen.size) == (1, 3)
    with pytest.raises(CarvyError, match="Seen has no 'wieghts'; did you mean 'weights'") as caught:
        seen.wieghts  # noqa: B018
    assert str(caught.value).endswith("it has: weights, controls, size")
    assert copy.deepcopy(seen) == seen
    assert pickle.dumps(seen)  # as it is sent to worker processes
    assert getattr(seen, "nothing", 7) == 7


# Installed packages ----------------------------------------------------------------------------


def install(folder: Path, name: str, code: str, entry_points: dict[str, dict[str, str]]) -> None:
    """Write a module and what ``pip install`` leaves of a package's entry points."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(code, encoding="utf-8")
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = []
    for group, points in entry_points.items():
        lines += [f"[{group}]", *(f"{key} = {value}" for key, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


BROKEN = """
from carvyfl.core.registry import Registry


class Nameless:
    help = "has no name"


class Pear:
    name, help = "pear", "another"


class Fig:
    name, help = "fig", "grows"
"""


def test_a_broken_plug_in_only_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    points = {
        "first": ("broken_fruits:Nameless", "needs a name"),
        "fourth": ("broken_fruits:Pear", "'pear' already"),
        "second": ("broken_fruits:Missing", "Missing"),
        "third": ("no_such_module:Anything", "no_such_module"),
    }
    places = {name: place for name, (place, _) in points.items()} | {"fifth": "broken_fruits:Fig"}
    install(tmp_path, "broken_fruits", BROKEN, {"carvyfl.tests.fruits": places})
    monkeypatch.syspath_prepend(tmp_path)
    registry = fruits()
    with pytest.warns(PlugInWarning) as warned:
        assert list(registry) == ["apple", "pear", "fig"]
    texts = sorted(str(warning.message) for warning in warned)
    for text, (name, (_, reason)) in zip(texts, points.items(), strict=True):
        assert text.startswith(f"plug-in '{name}' of package broken_fruits (carvyfl.tests.fruits)")
        assert reason in text
    assert registry["pear"].help == "grows"
    assert len(registry) == 3  # and this does not warn again


PAGE = DOCS / "howto" / "extend.md"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of installed packages: the one on the page, and one that cannot be loaded."""
    folder = tmp_path_factory.mktemp("site")
    code = "".join(block.text for block in blocks(PAGE) if block.title == "my_variants.py")
    (project,) = (block.text for block in blocks(PAGE) if block.title == "pyproject.toml")
    points = tomllib.loads(project)["project"]["entry-points"]
    install(folder, "my_variants", code, points)
    install(
        folder,
        "spoilt",
        "raise RuntimeError('spoilt, sadly')",
        {"carvyfl.partitions": {"spoilt": "spoilt:rule"}},
    )
    return folder


@pytest.mark.slow
def test_the_package_on_the_page_works_from_the_command_line(site: Path, tmp_path: Path):
    (console,) = (block for block in blocks(PAGE) if block.language == "console" and block.skip)
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    env = os.environ | {"PYTHONPATH": path, "XDG_CACHE_HOME": str(tmp_path), "COLUMNS": "200"}
    asked = [arguments for arguments, _ in commands(console.text)]
    assert [arguments[0] for arguments in asked] == ["run", "attack", "verify"]
    for arguments in (*asked, ["run", "--help"]):
        answer = process(*arguments, cwd=tmp_path, env=env)
        assert answer.code == 0, answer.err
        # A package that cannot be loaded is named in a line, and stops nothing.
        assert "Traceback" not in answer.err
        if arguments[0] == "run":
            assert "'spoilt' of package spoilt" in answer.err
            assert "spoilt, sadly" in answer.err
    assert "one-rare-class" in answer.out

    folder = RunFolder(tmp_path / "runs" / "mine")
    record = json.loads(folder.record_file.read_text(encoding="utf-8"))
    assert (record["config"]["dataset"], record["data"]["name"]) == ("waves", "waves")
    assert record["config"]["partition"] == "one-rare-class"
    assert folder.grouping("by-number").assignment.tolist() == [0, 1, 0, 1, 0, 1]
    assert folder.grouping("by-number").basis.honest_only == 1
    types = json.loads(folder.types_file.read_text(encoding="utf-8"))
    assert (types["method"], types["labels"]) == ("halves", [0, 1, 1, 1, 1, 1])
    for attacked in folder.attacks():
        assert attacked.attack == "one-label"
        assert attacked.settings["label"] == 2
        assert attacked.promise_kept
        assert np.isfinite(attacked.accuracy).all()
