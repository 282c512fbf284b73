"""Small federations and models for tests: quick to train, different enough to matter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from carvyfl.data.clients import Client, Federation, Samples
from carvyfl.data.datasets import DataSet

NUM_CLASSES = 4


def blobs(seed: int, size: int, classes: tuple[int, ...]) -> Samples:
    """Draw points around one centre per class, in eight dimensions."""
    rng = np.random.default_rng(seed)
    labels = np.resize(classes, size).astype(np.int64)
    centres = 2 * np.eye(8, dtype=np.float32)
    return Samples(rng.normal(size=(size, 8)).astype(np.float32) + centres[labels], labels)


def corners(seed: int, size: int, classes: tuple[int, ...] = (0, 1, 2, 3)) -> Samples:
    """Draw noisy 8×8 pictures; the class is the brightest quarter."""
    rng = np.random.default_rng(seed)
    labels = np.resize(classes, size).astype(np.int64)
    inputs = rng.integers(0, 120, (size, 1, 8, 8), dtype=np.uint8)
    for picture, c in zip(inputs[:, 0], labels, strict=True):
        picture[4 * (c // 2) :, 4 * (c % 2) :][:4, :4] += 100
    return Samples(inputs, labels)


def class_disjoint_federation(per_type: int = 3, size: int = 24) -> Federation:
    """Two types of two classes each, ``per_type`` clients of unequal size a type."""
    clients = []
    for number in range(2 * per_type):
        classes = (0, 1) if number < per_type else (2, 3)
        clients.append(
            Client(blobs(number, size + 3 * number, classes), blobs(100 + number, 10, classes))
        )
    types = np.repeat(np.arange(2), per_type)
    return Federation(tuple(clients), NUM_CLASSES, types=types)


def image_federation(
    shape: tuple[int, ...], sizes: Sequence[int], classes: int = NUM_CLASSES, validation: int = 6
) -> Federation:
    """Clients of these sizes, with random bytes of a shape and random labels."""
    rng = np.random.default_rng(0)

    def draw(size: int) -> Samples:
        inputs = rng.integers(0, 256, (size, *shape), dtype=np.uint8)
        return Samples(inputs, rng.integers(0, classes, size))

    clients = tuple(Client(draw(size), draw(validation)) for size in sizes)
    return Federation(clients, classes, mean=0.3, std=0.4)


def small_net() -> nn.Module:
    """Build a net with dropout, always with the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, NUM_CLASSES)
        )


def numbered(sizes: tuple[int, ...]) -> DataSet:
    """Make a data set of classes of these sizes, whose inputs are their own positions."""
    labels = np.random.default_rng(5).permutation(np.repeat(np.arange(len(sizes)), sizes))
    train = Samples(np.arange(len(labels), dtype=np.float32)[:, None], labels)
    names = tuple(map(str, range(len(sizes))))
    return DataSet("numbered", train, train.take([0]), len(sizes), 0.5, 2.0, names)


def positions(samples: Samples) -> list[int]:
    """Return where the samples of :func:`numbered` stand in it."""
    return [int(x) for x in samples.inputs[:, 0]]


class Listed(Dataset[Any]):
    """A torch data set of whatever items it is given."""

    def __init__(self, *items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]
