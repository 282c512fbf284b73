"""Runs that are started together on one folder: exactly one configuration goes on."""

from __future__ import annotations

import multiprocessing
import subprocess
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import yaml

from carvyfl.core.errors import CarvyError
from carvyfl.runs.config import RunConfig
from carvyfl.runs.ownership import claim, refuse_taken
from support.cli import CARVY, QUICK

TIMES = 60


def settings(seed: int) -> dict[str, Any]:
    return RunConfig(seed=seed).to_dict()


def start_runs(orders: Connection, together: Any, decided: Any) -> None:
    """Claim one folder after the other, each at the same moment as the other processes do."""
    while (order := orders.recv()) is not None:
        out, seed = order
        together.wait()
        try:
            refuse_taken(out, settings(seed))
            with claim(out, settings(seed)):
                decided.wait()  # still at work when the last one was told
                orders.send("goes on")
        except CarvyError as error:
            decided.wait()
            orders.send(str(error))


@pytest.fixture(scope="module")
def starters() -> Iterator[list[Connection]]:
    """Three processes that start runs together."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["carvyfl.runs.ownership"])
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


def started(starters: list[Connection], out: Path, seeds: tuple[int, ...]) -> list[str]:
    """Start runs with these seeds together, and return what each of them says."""
    for pipe, seed in zip(starters, seeds, strict=True):
        pipe.send((out, seed))
    return [pipe.recv() for pipe in starters]


@pytest.mark.slow
@pytest.mark.parametrize("before", ["nothing", "an empty folder", "a run that found nothing"])
def test_of_different_runs_started_together_one_goes_on(
    starters: list[Connection], before: str, tmp_path: Path
) -> None:
    for time in range(TIMES):
        out = tmp_path / str(time)
        if before != "nothing":
            out.mkdir()
        if before == "a run that found nothing":
            (out / "config.yaml").write_text(RunConfig(seed=9).to_yaml())
        said = started(starters, out, (1, 2, 3))
        assert said.count("goes on") == 1, said
        winner = said.index("goes on") + 1
        assert yaml.safe_load((out / "config.yaml").read_text())["seed"] == winner
        assert [path.name for path in out.iterdir()] == ["config.yaml"]
        for number, words in enumerate(said, 1):
            if number != winner:
                assert f"seed: {winner} there, {number} here" in words
                assert "\n" not in words


def test_equal_runs_started_together_all_go_on(starters: list[Connection], tmp_path: Path) -> None:
    for time in range(TIMES // 3):
        said = started(starters, tmp_path / str(time), (1, 2, 1))
        config = yaml.safe_load((tmp_path / str(time) / "config.yaml").read_text())
        assert [words == "goes on" for words in said] == [s == config["seed"] for s in (1, 2, 1)]


@pytest.mark.slow
def test_of_two_commands_started_together_one_is_told(tmp_path: Path) -> None:
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
    assert "holds a run with other settings" in errors[codes.index(2)]
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert config["seed"] == codes.index(0) + 1
