"""A federation that nobody had to split: watches on people's arms.

Ten people did seven shoulder exercises with either arm, wearing a watch that measured
acceleration and rotation fifty times a second (Burns et al. 2018, arXiv:1802.01489). A client is
the watch on one arm of one person. Left and right arms move in mirror image, so there are two
types by nature, and every person moves in their own way. Eight people are the clients; the other
two, whom no model has seen, are the test.

Get the data with ``pip install seglearn`` and run ``python examples/natural_split.py``; it takes
half a minute.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from carvyfl import CarvyFL, Certificate, Recipe
from carvyfl.data.own_data import federation_from_arrays

WINDOW = 100  # two seconds
CLIENTS = range(1, 9)  # the people whose watches learn
CLASSES = 7

Windows = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]


def windows(data: Mapping[str, Any], people: range, side: int | None = None) -> Windows:
    """Cut recordings into windows that overlap by half, shape (n, 6, 100), with their labels."""
    inputs, labels = [], []
    for series, label, person, arm in zip(
        data["X"], data["y"], data["subject"], data["side"], strict=True
    ):
        if person in people and side in (None, arm):
            cut = [
                series[start : start + WINDOW].T
                for start in range(0, len(series) - WINDOW + 1, WINDOW // 2)
            ]
            inputs += cut
            labels += [label] * len(cut)
    return np.array(inputs, np.float32), np.array(labels, np.int64)


def main() -> tuple[CarvyFL, Certificate]:
    """Train on sixteen watches and certify on the movements of two other people."""
    data = import_module("seglearn.datasets").load_watch()
    watches = [(person, arm) for person in CLIENTS for arm in (0, 1)]
    federation = federation_from_arrays(
        [windows(data, range(person, person + 1), arm) for person, arm in watches],
        num_classes=CLASSES,
        std=2.0,  # a round number: constants must not come from the clients' data
        types=[arm for _, arm in watches],
    )
    model = nn.Sequential(
        nn.Conv1d(6, 16, 9, stride=2),
        nn.ReLU(),
        nn.Conv1d(16, 32, 9, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(4),
        nn.Flatten(),
        nn.Linear(128, CLASSES),
    )
    # Which arm wears a watch is known beforehand: every group gets left and right ones.
    arms = [("left", "right")[arm] for _, arm in watches]
    ensemble = CarvyFL(model, types=arms, groups=5, training=Recipe(rounds=20, lr=0.05))
    certificate = ensemble.fit(federation).certify(*windows(data, range(9, 11)))
    print(ensemble.grouping_.table(federation.types))
    for m, percent in enumerate(certificate.ca()):
        print(f"{m} malicious watches: at least {percent:.1f} % stay right")
    return ensemble, certificate


if __name__ == "__main__":
    main()
