"""Run folders: whose they are, and finished runs that are found without computing anything."""

from __future__ import annotations

import dataclasses
import multiprocessing
import shutil
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from carvyfl.core.errors import CarvyError
from carvyfl.learning.recipe import Recipe
from carvyfl.pipeline import Compute
from carvyfl.runs import resume
from carvyfl.runs.config import RunConfig
from carvyfl.runs.execute import execute
from carvyfl.runs.record import RunRecord
from carvyfl.runs.resume import claim, finished_run
from carvyfl.settings import RunSettings
from support.cli import CARVY, QUICK

TIMES = 60


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    """A source tree without changes; what is under test must not hang on the tree it runs from."""
    for module in ("carvyfl.runs.resume", "carvyfl.runs.execute"):
        monkeypatch.setattr(f"{module}.commit", lambda: "0123abc")


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    """A finished run on a data set of one's own."""
    folder = tmp_path_factory.mktemp("finished")
    labels = np.arange(400) % 4
    inputs = np.random.default_rng(0).normal(size=(400, 6)) + labels[:, None]
    x, y = inputs.astype(np.float32), labels
    np.savez(folder / "data.npz", x_train=x, y_train=y, x_test=x[:40], y_test=y[:40])
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
        execute(config, folder / "run", Compute.on_cores(1))
    return folder / "run", RunSettings(**vars(config))


def find(
    mine: tuple[Path, RunSettings], engine: str = "auto", precision: str | None = None, **other: Any
) -> RunRecord | None:
    return finished_run(dataclasses.replace(mine[1], **other), mine[0], engine, precision)


def test_the_same_run_is_found_and_another_one_is_not(mine):
    record = find(mine)
    assert record is not None
    assert record.config == mine[1]
    assert find(mine, "loop", "fp32")
    for other in ({"seed": 1}, {"training": Recipe(rounds=2)}, {"clients": 7}):
        assert find(mine, **other) is None
    for engine, precision in (("batched", None), ("ray", None), ("auto", "bf16")):
        assert find(mine, engine, precision) is None
    assert find((mine[0] / "nothing", mine[1])) is None


@pytest.mark.parametrize("here", ["0123abd", "0123abc-dirty", None])
def test_what_another_package_computed_is_not_found(mine, monkeypatch, here):
    monkeypatch.setattr(resume, "commit", lambda: here)
    assert find(mine) is None


def test_what_changed_sources_computed_is_not_found(mine, monkeypatch, tmp_path):
    """Two states of a tree with changes have the same name."""
    for module in ("carvyfl.runs.resume", "carvyfl.runs.execute"):
        monkeypatch.setattr(f"{module}.commit", lambda: "0123abc-dirty")
    execute(RunConfig(**vars(mine[1])), tmp_path / "run", Compute.on_cores(1))
    assert find((tmp_path / "run", mine[1])) is None


@pytest.mark.parametrize("part", ["x_train", "y_train", "x_test", "y_test"])
def test_a_run_on_changed_data_is_not_found(mine, tmp_path, part):
    data = Path(mine[1].dataset)
    content = data.read_bytes()
    with np.load(data) as archive:
        arrays = dict(archive)
    np.savez(data, **arrays | {part: arrays[part][::-1].copy()})
    try:
        assert find(mine) is None
    finally:
        data.write_bytes(content)
    assert find(mine)


def test_a_run_with_a_damaged_or_missing_file_is_not_found(mine, tmp_path):
    copy = shutil.copytree(mine[0], tmp_path / "run")
    files = [path for path in copy.rglob("*") if path.is_file()]
    assert len(files) > 4
    for path in files:
        content = path.read_bytes()
        path.write_bytes(b"{}")
        assert find((copy, mine[1])) is None, path
        path.unlink()
        assert find((copy, mine[1])) is None, path
        path.write_bytes(content)
    assert find((copy, mine[1]))


def test_neither_finding_nor_showing_a_run_imports_what_takes_seconds(mine):
    program = f"""
import sys
from pathlib import Path
from carvyfl.cli.show import print_runs
from carvyfl.runs import resume
from carvyfl.runs.config import load_settings
resume.commit = lambda: "0123abc"
out = Path({str(mine[0])!r})
record = resume.finished_run(load_settings(out / "config.yaml"), out, "auto", None)
assert record
print_runs({{out: record}}, as_json=True)
print_runs({{out: record}}, as_json=False)
print(sorted({{"torch", "scipy", "matplotlib", "sklearn", "joblib"}} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr


# Runs that are started together on one folder: exactly one goes on.


def settings(seed: int) -> dict[str, Any]:
    return RunConfig(seed=seed).to_dict()


def start_runs(orders: Connection, together: Any, decided: Any) -> None:
    """Claim one folder after the other, each at the same moment as the other processes do."""
    while (order := orders.recv()) is not None:
        out, seed = order
        together.wait()
        try:
            with claim(out, settings(seed)):
                decided.wait()  # still at work when the last one was told
                orders.send("goes on")
        except CarvyError as error:
            decided.wait()
            orders.send(str(error))


@pytest.fixture(scope="module")
def starters():
    """Three processes that start runs together."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["carvyfl.runs.resume"])
    together, decided = context.Barrier(3, timeout=120), context.Barrier(3, timeout=120)
    pipes, processes = [], []
    for _ in range(3):
        mine, its = context.Pipe()
        process = context.Process(target=start_runs, args=(its, together, decided), daemon=True)
        process.start()
        pipes.append(mine)
        processes.append(process)
    yield pipes
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.send(None)
        process.join()


@pytest.mark.slow
@pytest.mark.parametrize("before", ["nothing", "an empty folder", "a run that found nothing"])
@pytest.mark.parametrize("seeds", [(1, 2, 3), (1, 2, 1)])
def test_of_runs_started_together_one_goes_on(starters, before, seeds, tmp_path):
    for time in range(TIMES // 2):
        out = tmp_path / str(time)
        if before != "nothing":
            out.mkdir()
        if before == "a run that found nothing":
            (out / "config.yaml").write_text(RunConfig(seed=9).to_yaml())
        for pipe, seed in zip(starters, seeds, strict=True):
            pipe.send((out, seed))
        said = [pipe.recv() for pipe in starters]
        assert said.count("goes on") == 1, said
        winner = seeds[said.index("goes on")]
        assert yaml.safe_load((out / "config.yaml").read_text())["seed"] == winner
        assert [path.name for path in out.iterdir()] == ["config.yaml"]
        for words in said:
            assert words == "goes on" or "a run is at work in" in words
            assert "\n" not in words


@pytest.mark.slow
def test_of_two_commands_started_together_one_is_told(tmp_path):
    out = tmp_path / "out"
    run = [str(CARVY), "run", *QUICK, "--rounds", "3", "--methods", "flcert", "--groups", "2"]
    run += ["--out", str(out), "--store", str(tmp_path / "store")]
    pair = [
        subprocess.Popen([*run, "--seed", str(seed)], stderr=subprocess.PIPE, text=True)
        for seed in (1, 2)
    ]
    errors = [process.communicate(timeout=300)[1] for process in pair]
    codes = [process.returncode for process in pair]
    assert sorted(codes) == [0, 2], errors
    words = ("a run is at work", "holds a run with other settings")  # the slower one may be late
    assert any(part in errors[codes.index(2)] for part in words)
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert config["seed"] == codes.index(0) + 1
