"""Bring your own data: one entry per client, as arrays or as torch data sets.

The data here is a table of 8 measurements and 4 classes. Every client belongs to
a region, and a region sees two of the classes only. The operator knows the
regions, so no type has to be inferred and no client has a say in the groups.

Run it with ``python examples/own_data.py``; it takes a few seconds.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from carvyfl import CarvyFL, Certificate, Recipe

REGIONS = ["north"] * 7 + ["south"] * 7
CLASSES_OF = {"north": (0, 1), "south": (2, 3)}
MEASUREMENTS = 8

Table = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]


def measure(rng: np.random.Generator, classes: tuple[int, ...], count: int) -> Table:
    """Draw ``count`` rows of each class: class c lies around 2 in measurements c and c + 4."""
    labels = np.repeat(classes, count)
    centres = 2 * np.tile(np.eye(4), 2)
    rows = centres[labels] + rng.standard_normal((len(labels), MEASUREMENTS))
    return rows.astype(np.float32), labels


class Records(Dataset[tuple[Tensor, int]]):
    """The same rows as a torch data set: anything with ``len`` and (input, label) items."""

    def __init__(self, table: Table) -> None:
        self.rows, self.labels = table

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return one row and its class."""
        return torch.from_numpy(self.rows[index]), int(self.labels[index])


def train(clients: list[Table] | list[Records]) -> CarvyFL:
    """Train 7 groups, each with one client of the north and one of the south."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(MEASUREMENTS, 16), nn.ReLU(), nn.Linear(16, 4))
    ensemble = CarvyFL(model, types=REGIONS, training=Recipe(rounds=15, lr=0.1, lr_min=0.001))
    return ensemble.fit(clients, num_classes=4)


def main() -> tuple[CarvyFL, CarvyFL, Certificate]:
    """Train on arrays and on data sets, and certify 200 new rows."""
    rng = np.random.default_rng(0)
    tables = [measure(rng, CLASSES_OF[region], 40) for region in REGIONS]
    from_arrays = train(tables)
    from_datasets = train([Records(table) for table in tables])

    rows, labels = measure(rng, (0, 1, 2, 3), 50)
    certificate = from_arrays.certify(rows, labels)
    profiles = from_arrays.profiles_
    print(from_arrays.grouping_.table(profiles.types.labels if profiles else None))
    for m, percent in enumerate(certificate.ca()):
        print(f"{m} malicious clients: at least {percent:.1f} % stay right")
    print(certificate.assumptions[-1])
    return from_arrays, from_datasets, certificate


if __name__ == "__main__":
    main()
