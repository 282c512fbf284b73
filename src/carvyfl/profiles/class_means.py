"""Profiles from class means: what a client's data look like, in a few hundred numbers.

Let h(x) be the features that enter the output layer at w⁰ (in one-shot learning: the fixed
features). A client with n samples forms, row by row for the classes c::

    W_c = 1/n Σ_i (1[y_i = c] - 1/C) h(x_i)

This is, up to its sign, the gradient of the client's loss in the output weights at w⁰ with that
layer set to zero. The client scales W to length one and sends a sketch of it: every entry is added,
with a fixed sign, to one of 256 fixed places, so that squared distances survive in expectation.
Beside it go the label shares, how far W is known, and n.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from carvyfl.core.randomness import generator
from carvyfl.profiles.messages import Messages, OutputLayer, Rows
from carvyfl.profiles.types import MANY_TYPES, ClientTypes, class_set_types, classes_held
from carvyfl.profiles.vectors import Floats, Vectors, chance, placed, weighed

if TYPE_CHECKING:
    from torch import Tensor

Labels = npt.NDArray[np.int64]

SKETCH = 256  # places of the sketch
SKETCH_SCALE = 1 / 3  # beside the label shares: labels matter most where both differ
NUMBERS_AT_ONCE = 1 << 27  # in the sums of clients that are computed together: a gigabyte of them


def message_length(num_classes: int) -> int:
    """Return how many numbers a client sends: shares, sketch, uncertainty and n."""
    return num_classes + SKETCH + 2


def class_means(features: Rows | Tensor, labels: Labels, num_classes: int) -> Rows:
    """Return what a client sends, float32 of shape (C + 258,).

    That is the label shares; the sketch of W / ‖W‖; the expected squared error of W by the chance
    of sampling, over ‖W‖², 1 at most; n. All NaN where features are not finite. ``features`` are
    h(x), shape (n, F), where a tensor may lie on a device, which then computes; ``labels`` (n,).
    """
    import torch

    messages = class_means_of_many(torch.as_tensor(features), [labels], num_classes)
    return np.asarray(messages[0])


def class_means_of_many(features: Tensor, labels: Sequence[Labels], num_classes: int) -> Rows:
    """Return what each of many clients sends, shape (N, C + 258).

    A client's message is a function of its own data, bit for bit, whoever is computed beside it.
    A device's library may add in an order that hangs on how many rows there are, or on which thread
    comes first. Here numbers are only added one by one (:func:`_sums_of_runs`) or in halves
    (:func:`_sum_in_halves`), in an order that the client's samples and the shapes C and F fix.

    ``features`` are h(x) of all clients one after another, shape (Σ n, F).
    """
    import torch

    ends = np.cumsum([0, *map(len, labels)])
    at_once = max(NUMBERS_AT_ONCE // (num_classes * features.shape[1]), 1)
    batches = [slice(k, k + at_once + 1) for k in range(0, len(labels), at_once)]
    messages = [
        _messages(features[ends[k][0] : ends[k][-1]], labels[k.start : k.stop - 1], num_classes)
        for k in batches
    ]
    together: Rows = torch.cat(messages).cpu().numpy()
    return together


def _messages(features: Tensor, labels: Sequence[Labels], num_classes: int) -> Tensor:
    import torch

    clients, width = len(labels), features.shape[1]
    client = np.repeat(np.arange(clients), [len(part) for part in labels])
    runs = client * num_classes + np.concatenate(labels)
    of_class = np.bincount(runs, minlength=clients * num_classes)
    rows = features.new_empty(len(runs), width + 1, dtype=torch.float64)
    rows[:, :width] = features
    rows[:, width] = _sum_in_halves(rows[:, :width].square())
    of_runs = _sums_of_runs(rows, runs, of_class).view(clients, num_classes, -1)
    del rows  # the largest of all
    sums, squares = of_runs[..., :-1], of_runs[..., -1]
    centre = _sum_in_halves(sums.transpose(1, 2).clone()) / num_classes
    counts = torch.from_numpy(of_class).to(features.device).view(clients, num_classes).double()
    total = counts.sum(dim=1, keepdim=True)  # of whole numbers: exact in any order
    matrix = ((sums - centre[:, None]) / total[..., None]).flatten(1)
    size = _sum_in_halves(matrix.square()).sqrt()[:, None]
    sketch = _sketch(matrix / torch.where(size > 0, size, 1.0))
    of_sums = _sum_in_halves(sums.square())
    finite = torch.cat([squares, of_sums, size, sketch], dim=1).isfinite().all(dim=1, keepdim=True)
    several = counts > 1  # one sample tells nothing of how far others of its class are
    spread = (squares - of_sums / counts) / (1 - 1 / counts)
    spread = _sum_in_halves(torch.where(several, spread, 0.0))[:, None]
    error = (1 - 1 / num_classes) * spread / total**2
    uncertainty = torch.where(size > 0, (error / size**2).clamp(max=1.0), 0.0)
    message = torch.cat([counts / total, sketch, uncertainty, total], dim=1)
    return torch.where(finite, message, torch.nan).float()


def _sums_of_runs(rows: Tensor, runs: Labels, sizes: Labels) -> Tensor:
    """Add up the rows (n, F) of every run, one after another in the order in which they stand.

    ``runs`` (n,) is the run of every row, ``sizes`` (R,) its rows; the result has shape (R, F).
    """
    import torch

    by_run = np.argsort(runs, kind="stable")
    first = np.cumsum(sizes) - sizes
    # The largest runs first: those with more than t rows are then the first few, for every t.
    order = np.argsort(-sizes, kind="stable")
    longer = len(sizes) - np.searchsorted(np.sort(sizes), np.arange(sizes.max()), side="right")
    steps = [first[order[:many]] + t for t, many in enumerate(longer.tolist())]
    index = torch.from_numpy(by_run[np.concatenate(steps)]).to(rows.device)
    sums = rows.new_zeros(len(sizes), rows.shape[1])
    for step in torch.split(index, longer.tolist()):
        sums[: len(step)].add_(rows[step])  # ``+=`` would copy them onto themselves, too
    return sums[torch.from_numpy(np.argsort(order)).to(rows.device)]


def _sum_in_halves(values: Tensor) -> Tensor:
    """Add up the last axis: its second half onto its first, in place, until one is left."""
    width = values.shape[-1]
    while width > 1:
        half = (width + 1) // 2
        values.narrow(-1, 0, width - half).add_(values.narrow(-1, half, width - half))
        width = half
    return values[..., 0]


def _sketch(values: Tensor) -> Tensor:
    """Add every value of a row, with its sign, to its place; rows have the shape (n, numbers)."""
    import torch

    order, signs = _places(values.shape[1], str(values.device))
    padded = torch.cat([values, values.new_zeros(len(values), 1)], dim=1)
    return _sum_in_halves(padded[:, order].mul_(signs))


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

    ``shares`` (N, C) add up to 1, or are zero for a client that claims none; ``sketches`` (N, 256)
    are at most 1 long; ``errors`` (N,) are their expected squared errors by the chance of sampling;
    ``samples`` (N,) are n.
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
    means, usable = ClassMeans.of(messages), messages.usable
    rows = np.hstack([means.shares[usable], SKETCH_SCALE * means.sketches[usable]])
    by_chance = chance(means.sketches[usable], means.errors[usable])
    return Vectors(placed(weighed(rows, means.samples[usable]), usable, len(messages)), by_chance)


def class_mean_types(messages: Messages) -> ClientTypes:
    """Give every client the set of classes of which it holds a fair part as its type."""
    held = classes_held(ClassMeans.of(messages).shares)
    return class_set_types(held, messages.set_aside, method="class-means", remedy=MANY_TYPES)


def types_of_counts(counts: Labels, set_aside: Mapping[int, str]) -> ClientTypes:
    """Return the types that follow from class counts, shape (N, C), over their sums: the shares."""
    rows = np.zeros((len(counts), message_length(counts.shape[1])), dtype=np.float32)
    rows[:, : counts.shape[1]] = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    steps = np.ones(len(rows), np.int64)
    return class_mean_types(Messages(rows, set_aside, counts.shape[1], OutputLayer(), steps))
