"""Profiles from class means: what a client's data look like, in a few hundred numbers.

Let h(x) be the features that enter the output layer at w⁰ (in one-shot learning: the fixed
features). A client with n samples forms, row by row for the classes c::

    W_c = 1/n Σ_i (1[y_i = c] - 1/C) h(x_i)

This is, up to its sign, the gradient of the client's loss in the output weights at w⁰ with that
layer set to zero, where the model gives every class 1/C; and the same gradient in the biases is
the label shares, exactly. W therefore tells label skew and feature shift alike, at the cost of one
pass without any training. The client scales W to length one and sends a sketch of it: every entry
is added, with a fixed sign, to one of 256 fixed places, so that squared distances survive in
expectation. Beside it go the label shares, how far W is known, and n.

What is revealed: the label shares and n, and 256 numbers of the class means; these are statistics
over all of a client's samples, but no protection is proved.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from carvyfl.core.randomness import generator
from carvyfl.profiles.class_sets import MANY_TYPES, class_set_types, classes_held
from carvyfl.profiles.messages import Messages, OutputLayer, Rows
from carvyfl.profiles.types import ClientTypes
from carvyfl.profiles.vectors import Floats, Vectors, chance, placed, weighed

if TYPE_CHECKING:
    from torch import Tensor

SKETCH = 256
"""Places of the sketch."""
SKETCH_SCALE = 1 / 3
"""What the sketch is scaled by beside the label shares: labels matter most where both differ."""


def message_length(num_classes: int) -> int:
    """Return how many numbers a client sends: shares, sketch, uncertainty and n."""
    return num_classes + SKETCH + 2


def class_means(features: Rows | Tensor, labels: npt.NDArray[np.int64], num_classes: int) -> Rows:
    """Return what a client sends.

    Parameters
    ----------
    features
        h(x), shape (n, F); a tensor may lie on a device, which then computes.
    labels
        Shape (n,).

    Returns
    -------
    ndarray
        float32 of shape (C + 258,): the label shares; the sketch of W / ‖W‖; the expected squared
        error of W by the chance of sampling, over ‖W‖², 1 at most; n. All NaN where features are
        not finite.
    """
    import torch
    from torch.nn.functional import one_hot

    x = torch.as_tensor(features).double()
    counts, total = np.bincount(labels, minlength=num_classes), len(labels)
    member = one_hot(torch.as_tensor(labels, device=x.device), num_classes).T.double()
    sums = member @ x
    matrix = (sums - sums.sum(dim=0) / num_classes) / total
    size = matrix.norm()
    sketch = _sketch((matrix / torch.where(size > 0, size, 1.0)).flatten())
    parts = [member @ (x * x).sum(dim=1), (sums * sums).sum(dim=1), size[None], sketch]
    numbers = torch.cat(parts).cpu().numpy()
    if not np.isfinite(numbers).all():
        return np.full(message_length(num_classes), np.nan, dtype=np.float32)
    squares, of_sums, (length,), sketched = np.split(
        numbers, [num_classes, 2 * num_classes, 2 * num_classes + 1]
    )
    several = counts > 1  # one sample tells nothing of how far others of its class are
    spread = squares[several] - of_sums[several] / counts[several]
    error = (1 - 1 / num_classes) * (spread / (1 - 1 / counts[several])).sum() / total**2
    uncertainty = min(error / length**2, 1.0) if length > 0 else 0.0
    return np.concatenate([counts / total, sketched, [uncertainty, total]]).astype(np.float32)


def _sketch(values: Tensor) -> Tensor:
    """Add every value, with its sign, to its place; both are fixed by how many values there are."""
    import torch

    order, signs = _places(len(values), str(values.device))
    found: Tensor = (torch.cat([values, values.new_zeros(1)])[order] * signs).sum(dim=1)
    return found


@functools.lru_cache(maxsize=8)
def _places(count: int, device: str) -> tuple[Tensor, Tensor]:
    """Return which values go to every place, (256, most), ``count`` for none, and their signs."""
    import torch

    draw = generator(0, "sketch", count)
    places = draw.integers(SKETCH, size=count)
    signs = np.append(draw.integers(2, size=count) * 2.0 - 1.0, 0.0)
    sizes = np.bincount(places, minlength=SKETCH)
    order = np.full((SKETCH, sizes.max()), count)
    order[np.arange(sizes.max()) < sizes[:, None]] = np.argsort(places, kind="stable")
    return torch.from_numpy(order).to(device), torch.from_numpy(signs[order]).to(device)


@dataclass(frozen=True, eq=False)
class ClassMeans:
    """What the server reads of the clients' messages, each by itself.

    Attributes
    ----------
    shares
        Label shares, shape (N, C), at least 0 and adding up to 1; all zero for a client that
        claims none, or was set aside.
    sketches
        Shape (N, 256), at most 1 long.
    errors
        The expected squared error of each sketch by the chance of sampling, shape (N,).
    samples
        n, shape (N,).
    """

    shares: Floats
    sketches: Floats
    errors: Floats
    samples: Floats

    @classmethod
    def of(cls, messages: Messages) -> ClassMeans:
        """Read messages, bringing what a client claims into the range of what is possible."""
        values, classes = messages.values.astype(np.float64), messages.num_classes
        shares = np.maximum(values[:, :classes], 0.0)
        shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1e-12)
        sketches = values[:, classes:-2]
        lengths = np.linalg.norm(sketches, axis=1, keepdims=True)
        sketches = sketches / np.maximum(lengths, 1.0)
        return cls(shares, sketches, np.clip(values[:, -2], 0.0, 1.0), np.maximum(values[:, -1], 1))


def mean_vectors(messages: Messages) -> Vectors:
    """Return label shares and scaled sketch side by side, weighed by size, as what is compared.

    No row is longer than 4·√(1 + 1/9).
    """
    read, usable = ClassMeans.of(messages), messages.usable
    rows = np.hstack([read.shares[usable], SKETCH_SCALE * read.sketches[usable]])
    by_chance = chance(read.sketches[usable], read.errors[usable])
    return Vectors(placed(weighed(rows, read.samples[usable]), usable, len(messages)), by_chance)


def class_mean_types(messages: Messages) -> ClientTypes:
    """Give every client the set of classes of which it holds a fair part as its type."""
    shares = ClassMeans.of(messages).shares[messages.usable]
    return class_set_types(
        classes_held(shares),
        len(messages),
        messages.set_aside,
        method="class-means",
        remedy=MANY_TYPES,
    )


def types_of_counts(counts: npt.NDArray[np.int64], set_aside: Mapping[int, str]) -> ClientTypes:
    """Return the types that follow from class counts, shape (N, C), but for clients set aside.

    The label shares of a message are these counts over their sum, so the types are the same.
    """
    rows = np.zeros((len(counts), message_length(counts.shape[1])), dtype=np.float32)
    rows[:, : counts.shape[1]] = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    found = Messages(rows, set_aside, 0.0, np.ones(len(rows), int), counts.shape[1], OutputLayer())
    return class_mean_types(found)
