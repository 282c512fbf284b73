"""A finished run is found again without computing anything, and only if it would come out alike."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys

import numpy as np
import pytest

from carvyfl.learning.recipe import Recipe
from carvyfl.learning.store import GroupStore
from carvyfl.pipeline import Compute
from carvyfl.runs import finished
from carvyfl.runs.config import RunConfig
from carvyfl.runs.execute import execute
from carvyfl.runs.finished import finished_run
from carvyfl.settings import RunSettings


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    """A source tree without changes; what is under test must not hang on the tree it runs from."""
    for module in ("carvyfl.runs.finished", "carvyfl.runs.execute"):
        monkeypatch.setattr(f"{module}.commit", lambda: "0123abc")


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A finished run on a data set of one's own."""
    folder = tmp_path_factory.mktemp("finished")
    rng = np.random.default_rng(0)
    labels = np.arange(400) % 4
    inputs = (rng.normal(size=(400, 6)) + labels[:, None]).astype(np.float32)
    np.savez(
        folder / "data.npz",
        x_train=inputs,
        y_train=labels,
        x_test=inputs[:40],
        y_test=labels[:40],
    )
    config = RunConfig(
        dataset=str(folder / "data.npz"),
        clients=6,
        samples=8,
        model="mlp",
        methods=("balanced",),
        baseline_groups=3,
        training=Recipe(rounds=1),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("carvyfl.runs.execute.commit", lambda: "0123abc")
        store = GroupStore(folder / "store")
        execute(config, folder / "run", dataclasses.replace(Compute.on_cores(1), store=store))
    return folder, RunSettings(**vars(config))


def test_the_same_run_is_found(own):
    folder, settings = own
    found = finished_run(settings, folder / "run", folder / "store", "auto", None)
    assert found
    assert found.record().config == settings
    assert finished_run(settings, folder / "run", folder / "store", "loop", "fp32")


def test_other_settings_engines_and_precisions_are_not(own):
    folder, settings = own
    for other in ({"seed": 1}, {"training": Recipe(rounds=2)}, {"clients": 7}):
        changed = dataclasses.replace(settings, **other)
        assert finished_run(changed, folder / "run", folder / "store", "auto", None) is None
    for engine, precision in (("batched", None), ("ray", None), ("auto", "bf16")):
        assert finished_run(settings, folder / "run", folder / "store", engine, precision) is None
    assert finished_run(settings, folder / "nothing", folder / "store", "auto", None) is None


@pytest.mark.parametrize("here", ["0123abd", "0123abc-dirty", None])
def test_another_package_is_not(own, monkeypatch, here):
    folder, settings = own
    monkeypatch.setattr(finished, "commit", lambda: here)
    assert finished_run(settings, folder / "run", folder / "store", "auto", None) is None


def test_a_run_of_changed_sources_is_not(own, monkeypatch, tmp_path):
    """Two states of a tree with changes have the same name."""
    _, settings = own
    for module in ("carvyfl.runs.finished", "carvyfl.runs.execute"):
        monkeypatch.setattr(f"{module}.commit", lambda: "0123abc-dirty")
    compute = dataclasses.replace(Compute.on_cores(1), store=GroupStore(tmp_path / "store"))
    execute(RunConfig(**vars(settings)), tmp_path / "run", compute)
    assert finished_run(settings, tmp_path / "run", tmp_path / "store", "auto", None) is None


@pytest.mark.parametrize("part", ["x_train", "y_train", "x_test", "y_test"])
def test_changed_data_is_not(own, tmp_path, part):
    folder, settings = own
    data = folder / "data.npz"
    shutil.copy(data, tmp_path / "kept.npz")
    try:
        with np.load(tmp_path / "kept.npz") as kept:
            arrays = dict(kept)
        arrays[part] = arrays[part][::-1].copy()
        np.savez(data, **arrays)
        assert finished_run(settings, folder / "run", folder / "store", "auto", None) is None
    finally:
        shutil.copy(tmp_path / "kept.npz", data)
    assert finished_run(settings, folder / "run", folder / "store", "auto", None)


def test_what_was_computed_elsewhere_is_not(own, tmp_path):
    """Nor what somebody changed and sealed again: its digest is another."""
    folder, settings = own
    assert finished_run(settings, folder / "run", tmp_path, "auto", None) is None


def test_a_damaged_or_missing_file_is_not(own, tmp_path):
    folder, settings = own
    names = [path.relative_to(folder / "run") for path in (folder / "run").rglob("*.*")]
    names = [name for name in names if (folder / "run" / name).is_file()]
    assert len(names) > 4
    for name in names:
        shutil.copytree(folder / "run", tmp_path / "run")
        if name.suffix != ".part":
            (tmp_path / "run" / name).write_bytes(b"{}")
            assert (
                finished_run(settings, tmp_path / "run", folder / "store", "auto", None) is None
            ), name
            (tmp_path / "run" / name).unlink()
            assert (
                finished_run(settings, tmp_path / "run", folder / "store", "auto", None) is None
            ), name
        shutil.rmtree(tmp_path / "run")


def test_neither_finding_nor_showing_a_run_imports_what_takes_seconds(own):
    folder, _ = own
    program = f"""
import sys
from pathlib import Path
from carvyfl.cli.show import print_runs
from carvyfl.runs import finished
from carvyfl.runs.config import load_settings
finished.commit = lambda: "0123abc"
out, store = Path({str(folder / "run")!r}), Path({str(folder / "store")!r})
found = finished.finished_run(load_settings(out / "config.yaml"), out, store, "auto", None)
assert found
print_runs([found], as_json=True)
print_runs([found], as_json=False)
print(sorted({{"torch", "scipy", "matplotlib", "sklearn", "joblib"}} & sys.modules.keys()))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stdout
