"""Commands in processes of their own, from a cold start: tests in one process import once.

What a thread does while another one imports a module hangs on which of them is faster, and only the
first command of a process shows it.
"""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.cli import QUICK, imported_by_threads, noting_imports, process


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
        "--dataset mine.npz --groups 3 --workers 2 --types xmeans",
        "--dataset mine.npz --seeds 0,1",
        "--dataset idx",
        "--dataset mine.npz --learner one-shot --groups 3 --keep-sums --methods carvy,flcert",
        "--preset demo --clients 20 --methods carvy,single",  # but for the sizes, as in make demo
    ],
)
def test_no_thread_imports_a_module(place: Path, tmp_path: Path, arguments: str):
    """What pages do not show; a test of theirs asks the same of every command in them."""
    environment = noting_imports(tmp_path) | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    out = tmp_path / "run"
    commands = [("run", *QUICK, *arguments.split(), "--rounds", 1, "--out", out)]
    if "--groups" in arguments:
        commands.append(("attack", out, "--malicious", "0,2"))
    for command in commands:
        done = process(*command, cwd=place, env=environment)
        assert done.code == 0, done.err
        assert "CA(m)" in done.out
        assert imported_by_threads(tmp_path) == [], command
