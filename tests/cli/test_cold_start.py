"""Commands in processes of their own, from a cold start: tests in one process import once.

What a thread does while another one imports a module hangs on which of them is faster, and only the
first command of a process shows it.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.cli import CARVY, QUICK, Answer, imported_by_threads, noting_imports, process

SMALL = " ".join(QUICK)
BESIDE = 4
"""Commands that start at the same moment, on a machine that is busy already."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small data set as an npz file and as IDX files, as users have them."""
    folder = tmp_path_factory.mktemp("cold")
    draw = np.random.default_rng(0)
    parts: dict[str, Any] = {}
    (folder / "idx").mkdir()
    for part, name, count in (("train", "train", 600), ("test", "t10k", 60)):
        labels = np.arange(count, dtype=np.uint8) % 4
        images = draw.integers(0, 60, (count, 16, 16), dtype=np.uint8)
        images += (60 * labels)[:, None, None]
        parts |= {f"x_{part}": images, f"y_{part}": labels}
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
            (folder / "idx" / f"{name}-{kind}-ubyte").write_bytes(head + array.tobytes())
    np.savez(folder / "mine.npz", **parts)
    return folder


def environment(folder: Path, **more: str) -> dict[str, str]:
    """The environment of a command that finds no cache of its own."""
    return {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), **more}


def cold(folder: Path, *arguments: object) -> Answer:
    return process(*arguments, cwd=folder, env=environment(folder))


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        f"{SMALL} --dataset mine.npz --out npz",
        f"{SMALL} --dataset mine.npz --seeds 0,1 --out seeds",
        f"{SMALL} --dataset idx --out idx-run",
        f"{SMALL} --dataset mine.npz --learner one-shot --groups 3 --out heads",
        "--preset demo --clients 20 --samples 20 --out demo",  # but for these, as in make demo
    ],
)
def test_the_first_command_of_a_process(place: Path, arguments: str):
    done = cold(place, "run", *arguments.split(), "--rounds", "1")
    assert done.code == 0, done.err
    assert "CA(m)" in done.out


@pytest.fixture
def busy() -> Iterator[None]:
    """Keep every core busy with other processes."""
    spin = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(spin) for _ in range(os.cpu_count() or 1)]
    yield
    for other in others:
        other.kill()
    for other in others:
        other.wait()


@pytest.mark.slow
@pytest.mark.usefixtures("busy")
def test_many_first_commands_at_once_on_a_busy_machine(place: Path):
    """Half of them find no compiled module either, as after an installation."""
    running = []
    for number in range(BESIDE):
        compiled: dict[str, str] = {}
        if number % 2:
            compiled["PYTHONPYCACHEPREFIX"] = str(place / f"compiled-{number}")
        command = ["run", "--dataset", "mine.npz", *QUICK, "--rounds", "1", "--out", f"b{number}"]
        options: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        where: Any = {"cwd": place, "env": environment(place / f"cache-{number}", **compiled)}
        running.append(subprocess.Popen([CARVY, *command], **options, **where))
    said = [each.communicate(timeout=500)[1] for each in running]
    assert [each.returncode for each in running] == [0] * BESIDE, said


@pytest.mark.parametrize(
    ("work", "modules"),
    [
        ("import wave", ["wave"]),
        ("importlib.import_module('wave')", ["wave"]),
        ("import json", []),  # which is there already
        ("sys.modules['wave'] = half; import wave", ["wave"]),
    ],
)
def test_what_a_thread_imports_is_noticed(tmp_path: Path, work: str, modules: list[str]):
    program = (
        "import importlib, json, sys, threading, types\n"
        "half = types.ModuleType('wave')\n"
        "half.__spec__ = types.SimpleNamespace(_initializing=True)\n"
        f"thread = threading.Thread(target=lambda: exec({work!r}))\n"
        "thread.start(); thread.join()"
    )
    subprocess.run([sys.executable, "-c", program], env=noting_imports(tmp_path), check=True)
    assert imported_by_threads(tmp_path)[:1] == modules


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        "--model mlp --rounds 2 --workers 2 --types xmeans",
        "--learner one-shot --keep-sums --methods carvy,flcert",
    ],
)
def test_no_thread_imports_a_module(place: Path, tmp_path: Path, arguments: str):
    """What pages do not show; a test of theirs asks the same of every command in them."""
    small = ("--dataset", place / "mine.npz", "--clients", 10, "--samples", 20, "--groups", 3)
    for command in (
        ("run", *small, *arguments.split(), "--out", "run"),
        ("attack", "run", "--malicious", "0,2"),
    ):
        done = process(*command, cwd=tmp_path, env=noting_imports(tmp_path))
        assert done.code == 0, done.err
        assert imported_by_threads(tmp_path) == [], command
