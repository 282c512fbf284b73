"""Partitions of a data set over clients by name, and federations made of them.

Most rules decide how many samples of every class each client holds. They are drawn clients
independently of each other, so two may hold the same image (the paper's 20 clients with 250 images
of MNIST's class 5 each could not be served otherwise). Others deal each sample to one client.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from carvyfl.core.checks import are_whole, is_number, returned, seed_number, whole_number
from carvyfl.core.environment import memory, usable_cores
from carvyfl.core.errors import CarvyError
from carvyfl.core.randomness import generator
from carvyfl.core.registry import Registry
from carvyfl.data import rules
from carvyfl.data.clients import Client, Federation, Labels, Samples, as_array, as_types
from carvyfl.data.datasets import DataSet
from carvyfl.data.rules import Counts, Dealing, Partition, largest_remainder
from carvyfl.data.shifts import as_shifts, check_images, shift_mixture, shift_samples

PER_CLIENT = 2_000  # bytes that a client takes beside its samples
PER_COUNT = 4 * 8  # bytes that the count of a client's samples of a class takes, with its copies
MOST_CLIENTS = 250_000  # simulated: each draws its samples by keys of its own, in some 0.1 ms
DRAWING = 8  # threads that draw; more wait for each other, since a tenth of the work is Python's
SHUFFLED = 1 << 13  # samples of a class that are shuffled to draw from; all of MNIST's classes are


@dataclass(frozen=True)
class PartitionRule:
    """A way to split a data set over clients.

    ``split``: (clients, classes, samples per client, generator) and keyword parameters of its own →
    a ``Partition`` or ``Dealing`` (:mod:`~carvyfl.data.rules`). The generator gives all randomness.
    """

    name: str
    help: str
    split: Callable[..., Partition | Dealing]

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of its keyword parameters."""
        declared = inspect.signature(self.split).parameters.values()
        return tuple(p.name for p in declared if p.kind is p.KEYWORD_ONLY)

    def check_parameters(self, names: Iterable[str]) -> None:
        """Refuse parameters that this rule does not have."""
        for name in names:
            if name not in self.parameters:
                fault = f"partition '{self.name}' has no parameter '{name}'"
                raise CarvyError(f"{fault}; it takes {', '.join(self.parameters) or 'none'}")


PARTITIONS: Registry[PartitionRule] = Registry(
    "partition",
    "carvyfl.partitions",
    [
        PartitionRule(split.__name__.replace("_", "-"), about, split)
        for split, about in (
            (rules.class_disjoint, "types with classes of their own (paper)"),
            (rules.iid, "every client holds every class"),
            (rules.dirichlet, "class shares drawn from Dirichlet(alpha)"),
            (rules.classes_per_client, "a few random classes each"),
            (rules.quantity_skew, "all classes, unequal numbers of samples"),
            (rules.label_bias, "classes that prefer a group of clients"),
            (rules.feature_shift, "images turned or inverted, by client"),
        )
    ],
)


def build_federation(
    dataset: DataSet,
    partition_name: str,
    *,
    num_clients: int,
    samples: int,
    seed: int,
    validation: int = 60,
    validation_share: float = 0.1,
    **params: Any,
) -> Federation:
    """Split the training part of a data set over simulated clients.

    A share of the training images is set aside for validation, stratified by class (the paper:
    6,000 of 60,000). Each client draws its training samples from the rest and its validation
    samples from what was set aside: a function of the seed, its number and its class counts alone.
    Where samples are dealt out ("label-bias"), whom a sample goes to is a function of the seed, the
    sample and the shares alone. Under "feature-shift" a client sees its samples through its shift;
    :func:`shifted_test` returns test samples of the clients' mixture.

    Parameters
    ----------
    partition_name, params
        A name in :data:`PARTITIONS`, and the partition's own parameters, such as ``alpha``.
    samples
        Training samples per client (the mean, where clients differ in size).
    validation
        Validation samples per client, in the class proportions of its training data; fewer where a
        class does not have as many.
    validation_share
        The part of the training images set aside, at least 0 and below 1.
    """
    num_clients, samples = (
        whole_number(num_clients, "num_clients"),
        whole_number(samples, "samples"),
    )
    validation, seed = whole_number(validation, "validation", least=0), seed_number(seed)
    _check_size(dataset, num_clients, samples, validation)
    labels, num_classes = dataset.train.labels, dataset.num_classes
    if len(labels) and labels.min() > 0:
        fault = f"{dataset.name}: its training labels start at {labels.min()}"
        raise CarvyError(f"{fault}; number the classes 0, 1, 2, …")
    split = {"num_clients": num_clients, "num_classes": num_classes, "samples": samples, **params}
    partition = split_classes(partition_name, seed=seed, **split)
    if partition.shifts is not None:
        check_images(dataset.train.inputs, partition.shifts, dataset.name)
    training, aside = set_aside(labels, validation_share, seed, "partition", "split")
    pools, judging = (
        [part[labels[part] == c] for c in range(num_classes)] for part in (training, aside)
    )
    if isinstance(partition, Dealing):
        train = _deal(dataset, training, partition.shares, samples, seed)
        counts = np.array([np.bincount(labels[dealt], minlength=num_classes) for dealt in train])
    else:
        counts = partition.counts
        _check_counts(counts, [len(pool) for pool in pools], dataset)
        train = _draw_each(pools, counts, seed, "train")
    judged = _draw_each(judging, largest_remainder(validation, counts), seed, "validation")
    with ThreadPoolExecutor(usable_cores()) as threads:
        parts = [list(threads.map(dataset.train.take, drawn)) for drawn in (train, judged)]
    if partition.shifts is not None:
        parts = [
            [
                shift_samples(part, shift, places, seed, "client", client)
                for client, (part, shift, places) in enumerate(zip(*seen, strict=True))
            ]
            for seen in zip(parts, [partition.shifts] * 2, (train, judged), strict=True)
        ]
    clients = tuple(map(Client, *parts))
    return Federation(clients, num_classes, dataset.mean, dataset.std, partition.types)


def shifted_test(test: Samples, partition_name: str, *, seed: int, **split: Any) -> Samples:
    """Return test samples as the clients of a partition see them.

    Every test image goes through the shift of one client, drawn uniformly, if there are shifts.
    ``split`` are ``num_clients``, ``num_classes``, ``samples`` and the partition's own parameters,
    as in :func:`build_federation`.
    """
    partition = split_classes(partition_name, seed=seed, **split)
    return test if partition.shifts is None else shift_mixture(test, partition.shifts, seed)


def _check_size(dataset: DataSet, num_clients: int, samples: int, validation: int) -> None:
    """Refuse more clients than half of the memory holds; training needs the other half."""
    train = dataset.train
    size = train.inputs[:1].nbytes + train.labels.itemsize
    held = min(samples, len(train)) + min(validation, len(train))
    each = held * size + PER_CLIENT + PER_COUNT * dataset.num_classes
    fits = memory() // 2 // each
    if num_clients > fits:
        raise CarvyError(
            f"{num_clients:,} clients with {samples:,} training and {validation:,} validation "
            f"samples of {size:,} bytes take {num_clients * each / 1e9:,.0f} GB, but half of this "
            f"machine's memory is {memory() / 2e9:,.1f} GB; use at most {fits:,} clients, or fewer "
            "samples"
        )
    if num_clients > MOST_CLIENTS:
        raise CarvyError(f"{num_clients:,} clients: at most {MOST_CLIENTS:,} can be simulated")


def split_classes(
    partition_name: str,
    *,
    num_clients: int,
    num_classes: int,
    samples: int,
    seed: int,
    **params: Any,
) -> Partition | Dealing:
    """Return what a rule says of these clients and classes; see :func:`build_federation`."""
    rule, where = PARTITIONS.pick(partition_name), f"partition '{partition_name}'"
    rule.check_parameters(params)
    shape = whole_number(num_clients, "num_clients"), num_classes
    if shape[0] * num_classes * PER_COUNT > memory() // 2:  # a record may name any number
        sizes = f"{num_clients:,} clients and {num_classes:,} classes"
        raise CarvyError(f"{sizes} have more counts than half of the memory holds; use fewer")
    rng = generator(seed, "partition", "counts")
    partition = rule.split(*shape, whole_number(samples, "samples"), rng, **params)
    dealt = isinstance(partition, Dealing)
    if not dealt:
        returned(partition, Partition, where)
    name, kind = ("shares", "numbers") if dealt else ("counts", "whole numbers")
    values = as_array(getattr(partition, name), f"{where}: {name}")
    if values.shape != shape or not (values.dtype.kind in "fiu" if dealt else are_whole(values)):
        wanted, actual = f"{kind} of shape {shape}", f"{values.dtype} of shape {values.shape}"
        raise CarvyError(f"{where}: {name} must be {wanted} (clients, classes), not {actual}")
    types, shifts = as_types(partition.types, shape[0], f"{where}: types"), partition.shifts
    if shifts is not None:
        shifts = as_shifts(shifts, f"{where}: shifts", shape[0])
    if dealt:
        sums = values.sum(axis=0)
        if len(bad := np.flatnonzero(~np.isclose(sums, 1) | (values < 0).any(axis=0))):
            fault = f"the shares of class {bad[0]} add up to {sums[bad[0]]:g}, or one is negative"
            raise CarvyError(f"{where}: {fault}; give probabilities that add up to 1")
        return Dealing(values.astype(np.float64, copy=False), types, shifts)
    if len(negative := np.argwhere(values < 0)):
        client, label = negative[0]
        count = f"{values[client, label]} samples of class {label}"
        raise CarvyError(f"{where} gives client {client} {count}; give 0 or more")
    if len(empty := np.flatnonzero(values.sum(axis=1) < 1)):
        raise CarvyError(f"{where} leaves client {empty[0]} without any sample; raise samples")
    return Partition(values.astype(np.int64, copy=False), types, shifts)


def set_aside(labels: Labels, share: float, seed: int, *key: str | int) -> tuple[Labels, Labels]:
    """Split positions 0 … n - 1 into those for training and those set aside, by class.

    About ``share``·n are set aside, in proportion to the classes: at least one where n is two or
    more, never all, and never a class's last sample if that can be avoided. Both results are
    sorted; the key decides which ones.
    """
    if not (is_number(share) and 0 <= share < 1):
        raise CarvyError(f"validation_share must be at least 0 and below 1, not {share!r}")
    classes, sizes = np.unique(labels, return_counts=True)
    aside = np.zeros(len(labels), np.bool_)
    if share and len(labels) > 1:
        wanted = np.minimum(largest_remainder(round(share * len(labels)), sizes), sizes - 1)
        if not wanted.any():
            wanted[np.argmax(sizes)] = 1
        for label, number in zip(classes, wanted, strict=True):
            members = np.flatnonzero(labels == label)
            aside[generator(seed, *key, int(label)).permutation(members)[:number]] = True
    return np.flatnonzero(~aside), np.flatnonzero(aside)


def _check_counts(counts: Counts, sizes: Sequence[int], dataset: DataSet) -> None:
    """Refuse counts (N, C) of more samples than there are of a class."""
    if len(short := np.argwhere(counts > sizes)):
        client, label = short[0]
        fault = f"but {dataset.name} has {sizes[label]} (without those set aside for validation)"
        remedy = "lower samples or use a larger data set"
        if label not in dataset.train.labels:
            fault = f"of which {dataset.name} has none at all"
            remedy = "number the classes 0, 1, 2, … without a gap"
        wanted = f"{counts[client, label]} training samples of class {label}"
        raise CarvyError(f"client {client} wants {wanted}, {fault}; {remedy}")


def _draw_each(pools: Sequence[Labels], counts: Counts, seed: int, part: str) -> list[Labels]:
    """Draw every client's samples, ``counts`` (N, C), or all of a class, without replacement."""

    def draw(client: int) -> Labels:
        drawn = [np.empty(0, np.int64)]
        for label in np.flatnonzero(counts[client]).tolist():
            stream = generator(seed, "partition", part, client, label)
            size = min(counts[client, label], len(pools[label]))
            drawn.append(_distinct(stream, pools[label], size))
        return np.sort(np.concatenate(drawn))

    with ThreadPoolExecutor(min(usable_cores(), DRAWING)) as threads:
        return list(threads.map(draw, range(len(counts))))


def _distinct(stream: Generator, pool: Labels, size: int) -> Labels:
    """Draw ``size`` of the pool in random order; a smaller size gives the first ones.

    Of a large pool, half are the first different ones of independent numbers, the rest is shuffled.
    """
    if len(pool) <= SHUFFLED:
        return stream.permutation(pool)[:size]
    seed = int(stream.integers(1 << 63))  # first, since fewer numbers follow for a smaller size
    wanted, drawn = min(size, len(pool) // 2), np.empty(0, np.int64)
    while len(drawn) < wanted:  # a number is new with a chance of a half at least
        more = (stream.random(2 * (wanted - len(drawn))) * len(pool)).astype(np.int64)
        together = np.concatenate([drawn, more])
        drawn = together[np.sort(np.unique(together, return_index=True)[1])][:wanted]
    if size > wanted:
        others = np.random.default_rng(seed).permutation(np.delete(np.arange(len(pool)), drawn))
        drawn = np.concatenate([drawn, others[: size - wanted]])
    return pool[drawn]


def _deal(
    dataset: DataSet, training: Labels, shares: npt.NDArray[np.float64], samples: int, seed: int
) -> list[Labels]:
    """Deal N·``samples`` of the training samples out by ``shares`` (N, C), each to one client.

    Both draws are of the whole training part: neither depends on how many were wanted or set aside.
    """
    labels, num_clients, wanted = dataset.train.labels, len(shares), len(shares) * samples
    if wanted > len(training):
        fault = f"{num_clients:,} clients with {samples:,} samples on average take {wanted:,}"
        size = f"{dataset.name} has {len(training):,} (without those set aside for validation)"
        remedy = "lower samples or clients, or use a larger data set"
        raise CarvyError(f"{fault}, but {size}; {remedy}")
    order = generator(seed, "partition", "dealt").permutation(len(labels))
    dealt = np.sort(order[np.isin(order, training)][:wanted])
    chance = generator(seed, "partition", "receiver").random(len(labels))[dealt]
    bounds = np.cumsum(shares, axis=0)
    bounds /= bounds[-1]  # exactly 1 at the end, which no chance reaches
    receiver = np.empty(wanted, np.int64)
    for label in np.unique(labels[dealt]):
        of_class = labels[dealt] == label
        receiver[of_class] = np.searchsorted(bounds[:, label], chance[of_class], side="right")
    sizes = np.bincount(receiver, minlength=num_clients)
    if not sizes.all():
        fault = f"client {np.argmin(sizes)} would be dealt no sample"
        number = f"({(sizes == 0).sum()} of {num_clients} clients would not)"
        raise CarvyError(f"{fault} {number}; raise samples, or try another seed")
    return np.split(dealt[np.argsort(receiver, kind="stable")], np.cumsum(sizes)[:-1])
