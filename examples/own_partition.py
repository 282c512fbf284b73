"""Bring your own partition: say which samples of a data set each client holds.

Here twelve shops sell either tops, shoes or the rest, in unequal quantities: one
array of training indices per shop is all that is needed.

Run it with ``python examples/own_partition.py``; it takes a few seconds.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from carvyfl import CarvyFL, Certificate, Recipe
from carvyfl.data.datasets import DataSet, load
from carvyfl.data.own_data import federation_from_indices

RANGES = {
    "tops": (0, 2, 3, 4, 6),  # T-shirt, pullover, dress, coat, shirt
    "shoes": (5, 7, 9),  # sandal, sneaker, ankle boot
    "rest": (1, 8),  # trouser, bag
}
SHOPS_PER_RANGE = 4


def shops(data: DataSet, rng: np.random.Generator) -> list[npt.NDArray[np.int64]]:
    """Draw each shop's training indices: 60 to 120 samples of its range."""
    indices = []
    for classes in RANGES.values():
        shelf = np.flatnonzero(np.isin(data.train.labels, classes))
        for _ in range(SHOPS_PER_RANGE):
            indices.append(rng.choice(shelf, size=rng.integers(60, 121), replace=False))
    return indices


def main() -> tuple[CarvyFL, Certificate]:
    """Train on the twelve shops and certify on 500 test images."""
    data = load("embedded")
    indices = shops(data, np.random.default_rng(0))
    # The true ranges are not needed; knowing them lets a simulation compare.
    true_types = np.repeat(np.arange(len(RANGES)), SHOPS_PER_RANGE)
    federation = federation_from_indices(data, indices, types=true_types)

    ensemble = CarvyFL("mlp", training=Recipe(rounds=12, lr=0.05)).fit(federation)
    certificate = ensemble.certify(data.test.inputs[:500], data.test.labels[:500])
    print(ensemble.profiles_)
    print(ensemble.grouping_.table(true_types))
    for m, percent in enumerate(certificate.ca()):
        print(f"{m} malicious clients: at least {percent:.1f} % stay right")
    return ensemble, certificate


if __name__ == "__main__":
    main()
