"""One-shot runs on a small data set: four classes of points around centres."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from support.cli import carvy

CLASSES, WIDTH, CLIENTS = 4, 6, 8


def runs_on_points(folder: Path, **runs: tuple[object, ...]) -> None:
    """Make runs in a folder: their names, and the options of each."""
    data = folder / "data.npz"
    if not data.exists():
        rng = np.random.default_rng(5)
        arrays: dict[str, Any] = {}
        for part, size in (("train", 600), ("test", 80)):
            labels = np.arange(size) % CLASSES
            noise = rng.normal(scale=0.6, size=(size, WIDTH))
            arrays[f"x_{part}"] = (np.eye(CLASSES, WIDTH)[labels] + noise).astype(np.float32)
            arrays[f"y_{part}"] = labels
        np.savez(data, **arrays)
    for name, more in runs.items():
        made = carvy(
            *("run", "--dataset", data, "--learner", "one-shot", "--features", "none"),
            *("--clients", CLIENTS, "--samples", 26, "--groups", 2, "--engine", "loop"),
            *("--out", folder / name, "--store", folder / "store", *more),
        )
        assert made.code == 0, made.err
