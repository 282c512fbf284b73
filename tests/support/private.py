"""Private learning on a small scale: a map of a few inputs, messages, and runs on pictures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from carvyfl.data.clients import Federation
from carvyfl.learning.one_shot.features import features_for, one_by_one
from carvyfl.learning.private.map import make_map
from carvyfl.learning.private.model import PrivateModel
from carvyfl.learning.recipe import Recipe
from carvyfl.pipeline import Compute, Setup, hear
from support.cli import carvy
from support.federations import corners

CLASSES = 4


def small_model(epsilon: float = 20.0) -> PrivateModel:
    """Build a model for pictures of corners, whose map is made of other ones."""
    features = one_by_one(features_for("none", (1, 8, 8)))
    public = corners(300, 200).inputs
    return PrivateModel(
        features, make_map(features, (1, 8, 8), CLASSES, public, 12), CLASSES, epsilon, 1e-5
    )


def heard_setup(federation: Federation, model: PrivateModel | None = None, seed: int = 4) -> Setup:
    """Have the clients of a federation send their messages."""
    federation = replace(federation, mean=0.0, std=1.0)
    return hear(Setup(federation, model or small_model(), Recipe(), seed), Compute.on_cores(1))


def runs_on_corners(folder: Path, **runs: tuple[object, ...]) -> None:
    """Make private runs in a folder: their names, and the options of each."""
    data, public = folder / "corners.npz", folder / "public.npy"
    if not data.exists():
        train, test = corners(1, 1200), corners(2, 120)
        arrays: dict[str, Any] = {"x_train": train.inputs, "y_train": train.labels}
        np.savez(data, **arrays, x_test=test.inputs, y_test=test.labels)
        np.save(public, corners(300, 200).inputs)
    for name, more in runs.items():
        made = carvy(
            *("run", "--preset", "private", "--dataset", data, "--num-classes", CLASSES),
            *("--features", "none", "--public", public, "--epsilon", 20, "--groups", 4),
            *("--clients", 12, "--samples", 60, "-p", "classes_per_type=2", "--engine", "loop"),
            *("--out", folder / name, "--store", folder / "store", *more),
        )
        assert made.code == 0, made.err
