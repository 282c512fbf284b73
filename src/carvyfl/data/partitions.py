"""Partitions of a data set over clients by name, and federations made of them.

Most rules decide how many training samples of every class each client holds. The samples are
then drawn per client without replacement, clients independently of each other, so two clients
may hold the same image (the paper's 20 clients with 250 images of MNIST's class 5 each could not
be served otherwise). Rules that deal samples out instead give each to one client at most.
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

from carvyfl.core.checks import are_whole, is_number, seed_number, whole_number
from carvyfl.core.environment import usable_cores
from carvyfl.core.errors import CarvyError
from carvyfl.core.memory import memory
from carvyfl.core.randomness import derive_each, generator, generators, stem
from carvyfl.core.registry import Registry
from carvyfl.data.clients import Client, Federation, Labels, Samples, as_array, as_types
from carvyfl.data.datasets import DataSet
from carvyfl.data.rules import (
    Counts,
    Dealing,
    Partition,
    class_disjoint,
    classes_per_client,
    dirichlet,
    feature_shift,
    iid,
    label_bias,
    largest_remainder,
    quantity_skew,
)
from carvyfl.data.shifts import as_shifts, check_images, shift_mixture, shift_samples

PER_CLIENT = 2_000
"""Bytes that a client takes beside its samples."""

PER_COUNT = 4 * 8
"""Bytes that the count of a client's samples of a class takes, with copies of it."""


MOST_CLIENTS = 250_000
"""Simulated clients at most: each draws its samples by keys of its own, in some 0.1 ms."""

DRAWN_AT_ONCE = 256
"""Draws that a thread makes before it takes others."""

DRAWING = 8
"""Threads that draw: more wait for each other, since a tenth of the work is Python's own."""

LONG = 2048
"""Samples of a class that take NumPy long to permute; for fewer, threads only cost."""

SHUFFLED = 1 << 13
"""Samples of a class that are shuffled to draw some of them; of more, only those drawn cost time.
All of MNIST's and CIFAR's classes are below it."""

COPIED_AT_ONCE = 1 << 14
"""Samples that a thread copies before it takes others."""


@dataclass(frozen=True)
class PartitionRule:
    """A way to split a data set over clients.

    ``split``: (clients, classes, samples per client, generator) and keyword parameters of its own →
    :class:`~carvyfl.data.rules.Partition` or :class:`~carvyfl.data.rules.Dealing`. All randomness
    comes from the generator.
    """

    name: str
    help: str
    split: Callable[..., Partition | Dealing]

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of its own parameters."""
        found = inspect.signature(self.split).parameters.values()
        return tuple(p.name for p in found if p.kind is p.KEYWORD_ONLY)

    def check_parameters(self, names: Iterable[str]) -> None:
        """Refuse parameters that this rule does not have."""
        for name in names:
            if name not in self.parameters:
                raise CarvyError(
                    f"partition '{self.name}' has no parameter '{name}'; "
                    f"it takes {', '.join(self.parameters) or 'none'}"
                )


PARTITIONS: Registry[PartitionRule] = Registry(
    "partition",
    "carvyfl.partitions",
    [
        PartitionRule("class-disjoint", "types with classes of their own (paper)", class_disjoint),
        PartitionRule("iid", "every client holds every class", iid),
        PartitionRule("dirichlet", "class shares drawn from Dirichlet(alpha)", dirichlet),
        PartitionRule("classes-per-client", "a few random classes each", classes_per_client),
        PartitionRule("quantity-skew", "all classes, unequal numbers of samples", quantity_skew),
        PartitionRule("label-bias", "classes that prefer a group of clients", label_bias),
        PartitionRule("feature-shift", "images turned or inverted, by client", feature_shift),
    ],
)
"""Every way to split a data set over clients."""


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
    """Split a data set over simulated clients.

    A share of the training images is set aside for validation, stratified by
    class (the paper: 6,000 of 60,000). Each client draws its training samples
    from the rest and its validation samples from what was set aside. What a client
    draws is a function of the seed, its number and its class counts alone; a
    client that is given fewer samples of a class draws a part of what it would
    have drawn with more. Where samples are dealt out ("label-bias"), whom a sample goes to is
    a function of the seed, the sample and the shares alone; a client that would get none is
    refused, since any other sample for it would not follow the rule.

    Under "feature-shift" a client sees its samples through its shift; :func:`shifted_test`
    returns test samples that follow the clients' mixture.

    Parameters
    ----------
    dataset
        What is split; only its training part is used.
    partition_name
        A name in :data:`PARTITIONS`.
    samples
        Training samples per client (the mean, under "quantity-skew" and "label-bias", and under
        "dirichlet" with ``sigma``).
    validation
        Validation samples per client, in the class proportions of its training
        data; fewer where a class does not have as many.
    validation_share
        The part of the training images set aside, at least 0 and below 1.
    params
        The partition's own parameters, such as ``alpha``.
    """
    num_clients, num_classes = whole_number(num_clients, "num_clients"), dataset.num_classes
    samples = whole_number(samples, "samples")
    validation = whole_number(validation, "validation", least=0)
    seed = seed_number(seed)
    _check_size(dataset, num_clients, samples, validation)
    labels = dataset.train.labels
    if len(labels) and labels.min() > 0:
        raise CarvyError(
            f"{dataset.name}: its training labels start at {labels.min()}; "
            "number the classes 0, 1, 2, …"
        )
    partition = split_classes(
        partition_name,
        num_clients=num_clients,
        num_classes=num_classes,
        samples=samples,
        seed=seed,
        **params,
    )
    shifts = partition.shifts
    if shifts is not None:
        check_images(dataset.train.inputs, shifts, dataset.name)
    training, aside = set_aside(labels, validation_share, seed, "partition", "split")
    if isinstance(partition, Dealing):
        trained = _deal(dataset, training, partition.shares, samples, seed)
    else:
        trained = _draw_all(dataset, training, partition.counts, seed)
    pools = _by_class(aside, labels, num_classes)
    judged = largest_remainder(validation, _class_counts(trained, labels, num_classes))
    validated = _draw_each(pools, judged, seed, "validation")
    parts = []
    for drawn in (trained, validated):
        own = _views(dataset.train, drawn)
        if shifts is not None:
            own = [
                shift_samples(part, shifts[client], positions, seed, "client", client)
                for client, (part, positions) in enumerate(zip(own, drawn, strict=True))
            ]
        parts.append(own)
    clients = tuple(map(Client, *parts))
    return Federation(clients, num_classes, dataset.mean, dataset.std, partition.types)


def shifted_test(
    test: Samples,
    partition_name: str,
    *,
    num_clients: int,
    num_classes: int,
    samples: int,
    seed: int,
    **params: Any,
) -> Samples:
    """Return test samples as the clients of a partition see them.

    Where clients see their images through shifts, every test image goes through the shift of one
    client, drawn uniformly; otherwise the test samples are returned as they are. Parameters are
    those of :func:`build_federation`.
    """
    partition = split_classes(
        partition_name,
        num_clients=whole_number(num_clients, "num_clients"),
        num_classes=num_classes,
        samples=whole_number(samples, "samples"),
        seed=seed,
        **params,
    )
    return test if partition.shifts is None else shift_mixture(test, partition.shifts, seed)


def _check_size(dataset: DataSet, num_clients: int, samples: int, validation: int) -> None:
    """Refuse more clients than can be drawn in a minute, or than half of the memory can hold.

    Training needs the other half.
    """
    train = dataset.train
    held = min(samples, len(train)) + min(validation, len(train))
    size = train.inputs[:1].nbytes + train.labels.itemsize
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
        raise CarvyError(
            f"{num_clients:,} clients: at most {MOST_CLIENTS:,} are simulated, since drawing the "
            "samples of more takes minutes; use fewer clients"
        )


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
    rule = PARTITIONS.pick(partition_name)
    rule.check_parameters(params)
    if num_clients * num_classes * PER_COUNT > memory() // 2:  # a record may name any number
        raise CarvyError(
            f"{num_clients:,} clients and {num_classes:,} classes have more counts than half of "
            "this machine's memory holds; use fewer clients"
        )
    rng = generator(seed, "partition", "counts")
    return _checked(
        rule.split(num_clients, num_classes, samples, rng, **params),
        (num_clients, num_classes),
        f"partition '{partition_name}'",
    )


def _checked(found: Partition | Dealing, shape: tuple[int, int], where: str) -> Partition | Dealing:
    """Refuse what a partition function must not return; ``shape`` is (N, C)."""
    if not isinstance(found, Partition | Dealing):
        raise CarvyError(f"{where} must return a Partition, not {type(found).__name__}")
    dealt = isinstance(found, Dealing)
    name, kind = ("shares", "numbers") if dealt else ("counts", "whole numbers")
    values = as_array(getattr(found, name), f"{where}: {name}")
    if values.shape != shape or not (values.dtype.kind in "fiu" if dealt else are_whole(values)):
        raise CarvyError(
            f"{where}: {name} must be {kind} of shape {shape}, one row per client and one column "
            f"per class; it returned {values.dtype} of shape {values.shape}"
        )
    types = as_types(found.types, shape[0], f"{where}: types")
    shifts = found.shifts
    if shifts is not None:
        shifts = as_shifts(shifts, f"{where}: shifts", shape[0])
    if dealt:
        sums = values.sum(axis=0)
        bad = np.flatnonzero(~np.isclose(sums, 1) | (values < 0).any(axis=0))
        if len(bad):
            raise CarvyError(
                f"{where}: the shares of class {bad[0]} add up to {sums[bad[0]]:g}, or one is "
                "negative; give probabilities that add up to 1"
            )
        return Dealing(values.astype(np.float64, copy=False), types, shifts)
    if values.min() < 0:
        client, label = np.argwhere(values < 0)[0]
        raise CarvyError(
            f"{where} gives client {client} {values[client, label]} samples of class {label}; "
            "give 0 or more"
        )
    empty = np.flatnonzero(values.sum(axis=1) < 1)
    if len(empty):
        raise CarvyError(
            f"{where} leaves client {empty[0]} without any sample; raise samples, or have the "
            "partition give every client at least one"
        )
    return Partition(values.astype(np.int64, copy=False), types, shifts)


def set_aside(labels: Labels, share: float, seed: int, *key: str | int) -> tuple[Labels, Labels]:
    """Split positions 0 … n - 1 into those kept and those set aside, stratified by class.

    About ``share``·n are set aside, in proportion to the classes: at least one
    where n is two or more, never all, and never a class's last sample if that can
    be avoided. Both results are sorted; the key decides which ones.
    """
    if not (is_number(share) and 0 <= share < 1):
        raise CarvyError(f"validation_share must be at least 0 and below 1, not {share!r}")
    classes, sizes = np.unique(labels, return_counts=True)
    chosen = np.zeros(len(labels), np.bool_)
    if share and len(labels) > 1:
        wanted = np.minimum(largest_remainder(round(share * len(labels)), sizes), sizes - 1)
        if not wanted.any():
            wanted[np.argmax(sizes)] = 1
        for label, number in zip(classes, wanted, strict=True):
            members = np.flatnonzero(labels == label)
            chosen[generator(seed, *key, int(label)).permutation(members)[:number]] = True
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)


def _class_counts(positions: Sequence[Labels], labels: Labels, num_classes: int) -> Counts:
    """Count the classes of each client's samples, shape (N, C)."""
    client = np.repeat(np.arange(len(positions)), [len(own) for own in positions])
    cells = client * num_classes + labels[np.concatenate(positions)]
    return np.bincount(cells, minlength=len(positions) * num_classes).reshape(-1, num_classes)


def _views(pool: Samples, positions: Sequence[Labels]) -> list[Samples]:
    """Return every client's samples, as views of one array that holds them end to end."""
    together = _taken(pool, np.concatenate(positions))
    ends = np.cumsum([len(own) for own in positions]).tolist()
    return [
        Samples(together.inputs[start:end], together.labels[start:end])
        for start, end in zip([0, *ends], ends, strict=False)
    ]


def _taken(pool: Samples, positions: Labels) -> Samples:
    """Return ``pool.take(positions)``, whose inputs are copied on all cores."""
    inputs = np.empty((len(positions), *pool.inputs.shape[1:]), pool.inputs.dtype)

    def copy_some(first: int) -> None:
        part = slice(first, first + COPIED_AT_ONCE)
        # "clip" alone writes to ``out`` without a copy between; no position is out of range
        np.take(pool.inputs, positions[part], axis=0, out=inputs[part], mode="clip")

    with ThreadPoolExecutor(usable_cores()) as threads:
        list(threads.map(copy_some, range(0, len(positions), COPIED_AT_ONCE)))
    return Samples(inputs, pool.labels[positions])


def _by_class(positions: Labels, labels: Labels, num_classes: int) -> list[Labels]:
    return [positions[labels[positions] == c] for c in range(num_classes)]


def _draw_all(dataset: DataSet, training: Labels, counts: Counts, seed: int) -> list[Labels]:
    """Draw every client's training samples, ``counts`` (N, C), clients independently."""
    labels = dataset.train.labels
    pools = _by_class(training, labels, dataset.num_classes)
    there = np.array([len(pool) for pool in pools])
    short = np.argwhere(counts > there)
    if len(short):
        client, label = short[0]
        wanted = f"client {client} wants {counts[client, label]} training samples of class {label}"
        if label not in labels:
            raise CarvyError(
                f"{wanted}, of which {dataset.name} has none at all; number the classes 0, 1, 2, … "
                "without a gap"
            )
        raise CarvyError(
            f"{wanted}, but {dataset.name} has {there[label]} (without those set aside for "
            "validation); lower samples or use a larger data set"
        )
    return _draw_each(pools, counts, seed, "train")


def _draw_each(pools: Sequence[Labels], counts: Counts, seed: int, part: str) -> list[Labels]:
    """Draw every client's samples, ``counts`` (N, C), or all of a class, without replacement.

    A client draws by its own keys. NumPy permutes side by side, on a few threads.
    """
    there = [len(pool) for pool in pools]
    clients, labels = np.nonzero(counts)
    sizes = np.minimum(counts, there)[clients, labels]
    ends = np.cumsum(sizes)
    stems = [stem(seed, "partition", part, client) for client in range(len(counts))]
    keys = derive_each((stems[client] for client in clients.tolist()), labels.tolist())
    drawn = np.empty(sizes.sum(), np.int64)

    def draw_some(first: int) -> None:
        some = slice(first, first + DRAWN_AT_ONCE)
        places = zip(labels[some].tolist(), sizes[some].tolist(), ends[some].tolist(), strict=True)
        for stream, (label, size, end) in zip(generators(keys[some]), places, strict=True):
            pool = pools[label]
            if len(pool) <= SHUFFLED:
                drawn[end - size : end] = stream.permutation(pool)[:size]
            else:
                drawn[end - size : end] = pool[_distinct(stream, len(pool), size)]

    lots = range(0, len(keys), DRAWN_AT_ONCE)
    shuffles = any(LONG <= size <= SHUFFLED for size in there)
    with ThreadPoolExecutor(min(usable_cores(), DRAWING) if shuffles else 1) as threads:
        list(threads.map(draw_some, lots))
    # Sorted client by client, at once: a client's samples stay beyond all of those before it.
    beyond = np.repeat(clients, sizes) * (drawn.max(initial=0) + 1)
    together = np.sort(drawn + beyond) - beyond
    held = np.bincount(clients, sizes, minlength=len(counts)).astype(np.int64)
    return _cut(together, held)


def _distinct(stream: Generator, there: int, size: int) -> Labels:
    """Draw different numbers below ``there``, in random order; a smaller size gives the first ones.

    Up to half of all they are the first different ones of independent numbers. The last would be
    long in coming, so the other half is shuffled.
    """
    seed = int(stream.integers(1 << 63))  # first, since fewer numbers follow for a smaller size
    wanted, drawn = min(size, there // 2), np.empty(0, np.int64)
    while len(drawn) < wanted:  # a number is new with a chance of a half at least
        more = (stream.random(2 * (wanted - len(drawn))) * there).astype(np.int64)
        together = np.concatenate([drawn, more])
        drawn = together[np.sort(np.unique(together, return_index=True)[1])][:wanted]
    if wanted == size:
        return drawn
    left = np.random.default_rng(seed).permutation(np.delete(np.arange(there), drawn))
    return np.concatenate([drawn, left[: size - wanted]])


def _cut(together: Labels, sizes: Labels) -> list[Labels]:
    """Cut an array into successive parts of these sizes, which are views of it."""
    ends = np.cumsum(sizes).tolist()
    return [together[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _deal(
    dataset: DataSet, training: Labels, shares: npt.NDArray[np.float64], samples: int, seed: int
) -> list[Labels]:
    """Deal N·``samples`` of the training samples out by ``shares`` (N, C), each to one client.

    Both draws are of the whole training part, so that which samples are dealt and where each
    goes does not depend on how many were wanted or set aside.
    """
    labels, num_clients = dataset.train.labels, len(shares)
    wanted = num_clients * samples
    if wanted > len(training):
        raise CarvyError(
            f"{num_clients:,} clients with {samples:,} samples on average take {wanted:,}, but "
            f"{dataset.name} has {len(training):,} (without those set aside for validation); lower "
            "samples or clients, or use a larger data set"
        )
    order = generator(seed, "partition", "dealt").permutation(len(labels))
    dealt = np.sort(order[np.isin(order, training)][:wanted])
    chance = generator(seed, "partition", "receiver").random(len(labels))[dealt]
    bounds = np.cumsum(shares, axis=0)
    bounds /= bounds[-1]  # exactly 1 at the end, which no chance reaches
    receiver = np.empty(wanted, np.int64)
    for label in np.unique(labels[dealt]):
        own = labels[dealt] == label
        receiver[own] = np.searchsorted(bounds[:, label], chance[own], side="right")
    sizes = np.bincount(receiver, minlength=num_clients)
    if not sizes.all():
        raise CarvyError(
            f"client {np.argmin(sizes)} would be dealt no sample ({(sizes == 0).sum()} of "
            f"{num_clients} clients would not); raise samples, or try another seed"
        )
    return _cut(dealt[np.argsort(receiver, kind="stable")], sizes)
