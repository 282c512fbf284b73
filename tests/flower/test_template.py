"""The app that `carvy flower init` writes: its settings are read as they stand."""

from __future__ import annotations

import tomllib
from pathlib import Path

import carvyfl.flower
from carvyfl.runs.flower_settings import read_settings
from support.cli import assert_refused, carvy


def test_init(tmp_path: Path):
    folder = tmp_path / "mine"
    assert carvy("flower", "init", folder).code == 0
    app = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    settings = read_settings({f"carvy.{k}": v for k, v in app["config"]["carvy"].items()})
    assert settings.model == "mlp"
    assert settings.training.patience is None
    for part in app["components"].values():
        module, _, name = part.partition(":")
        source = (folder / Path(*module.split("."))).with_suffix(".py").read_text()
        assert f"\n{name} = " in source
    assert not list(folder.rglob("__pycache__"))

    (folder / "carvy_app" / "data.py").write_text("# mine\n")
    assert_refused(carvy("flower", "init", folder), "exists already")
    assert (folder / "carvy_app" / "data.py").read_text() == "# mine\n"
    (tmp_path / "file").write_text("")
    assert_refused(carvy("flower", "init", tmp_path / "file"), "exists already")
    assert_refused(carvy("flower", "init", tmp_path / "file" / "below"), "cannot write")


def test_the_app_asks_no_package_index_for_a_name_that_anybody_could_register():
    """carvyfl is not published; Flower installs what an app depends on."""
    folder = Path(carvyfl.flower.__file__).parent / "template"
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == []
