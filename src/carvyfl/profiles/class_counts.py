"""Types from class counts, which one-shot learning sends anyway, as a part of a client's sums."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from carvyfl.core.errors import CarvyError
from carvyfl.data.clients import Federation
from carvyfl.learning.one_shot.sums import Counts, counts_of
from carvyfl.profiles.messages import Messages, Rows, collect
from carvyfl.profiles.types import MANY_TYPES, ClientTypes, class_set_types
from carvyfl.profiles.vectors import Vectors, chance, placed, weighed

ADVICE = "; if inputs rather than labels differ, use `types='class-means'`"


def class_counts(federation: Federation) -> Messages:
    """Have every client count its samples of each class, and collect the counts."""
    classes = federation.num_classes
    rows = [counts_of(client.train.labels, classes) for client in federation.clients]
    return collect_counts(np.array(rows, dtype=np.float32), classes)


def collect_counts(rows: Rows | Sequence[Counts | None], num_classes: int) -> Messages:
    """Check the counts that clients sent, shape (N, C); None where nothing usable arrived."""
    return collect(rows, length=num_classes, num_classes=num_classes)


def count_vectors(counts: Messages) -> Vectors:
    """Return the label shares, weighed by size, as what is compared.

    By chance alone the shares s of n samples have an expected squared error of (1 - Σ s²) / n.
    A negative count stands for none, so no row is longer than 4.
    """
    usable = np.flatnonzero((counts.values > 0).any(axis=1))
    rows = np.maximum(counts.values[usable].astype(np.float64), 0.0)
    samples = rows.sum(axis=1)
    shares = rows / samples[:, None]
    by_chance = chance(shares, (1 - (shares**2).sum(axis=1)) / samples)
    return Vectors(placed(weighed(shares, samples), usable, len(counts)), by_chance, ADVICE)


def class_count_types(counts: Messages) -> ClientTypes:
    """Give every client the set of classes of which it counts a sample as its type."""
    held = counts.values > 0
    empty = np.flatnonzero(~held.any(axis=1)).tolist()
    if len(empty) == len(counts):
        raise CarvyError("no client counts a sample of any class; check the clients")
    set_aside = dict.fromkeys(empty, "counts no sample of any class") | dict(counts.set_aside)
    aside = dict(sorted(set_aside.items()))
    return class_set_types(held, aside, method="class-counts", remedy=MANY_TYPES)
