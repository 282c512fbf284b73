"""Partitions of a data set over clients, and federations made of them.

A partition is decided as numbers: how many training samples of every class each
client holds. The samples are then drawn per client without replacement,
clients independently of each other, so two clients may hold the same image (the
paper's 20 clients with 250 images of MNIST's class 5 each could not be served
otherwise).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from carvyfl.core.checks import are_whole, is_number, seed_number, whole_number
from carvyfl.core.errors import CarvyError
from carvyfl.core.memory import memory
from carvyfl.core.randomness import generator
from carvyfl.core.registry import Registry
from carvyfl.data.clients import Client, Federation, Labels, as_array, as_types
from carvyfl.data.datasets import DataSet

Counts = npt.NDArray[np.int64]

PER_CLIENT = 2_000
"""Bytes that a client takes beside its samples."""


@dataclass(frozen=True)
class Partition:
    """How many training samples of every class each client holds.

    Attributes
    ----------
    counts
        int64 of shape (N, C); every client holds at least one sample.
    types
        The true distribution type of every client, int64 of shape (N,); None
        where clients differ gradually and have no types.
    """

    counts: Counts
    types: Labels | None


def class_disjoint(
    num_clients: int,
    num_classes: int,
    samples: int,
    rng: np.random.Generator,
    *,
    classes_per_type: int = 2,
) -> Partition:
    """Types with classes of their own, the paper's setting.

    Type k holds the classes k·``classes_per_type`` … and nothing else, equally
    many of each. Clients of a type are neighbours; types have equally many clients,
    or differ by one where N is not divisible.
    """
    per_type = whole_number(classes_per_type, "classes_per_type")
    if num_classes % per_type:
        raise CarvyError(
            f"class-disjoint: {num_classes} classes cannot be split into types of "
            f"{per_type}; choose classes_per_type among the divisors of {num_classes}"
        )
    if samples % per_type:
        raise CarvyError(
            f"class-disjoint: {samples} samples cannot be split equally over {per_type} classes; "
            f"choose a multiple of {per_type}"
        )
    num_types = num_classes // per_type
    if num_clients < num_types:
        raise CarvyError(
            f"class-disjoint: {num_clients} clients cannot cover {num_types} types; "
            f"use at least {num_types} clients or a larger classes_per_type"
        )
    types = np.repeat(np.arange(num_types), _equal_parts(num_clients, num_types))
    holds = np.arange(num_classes) // per_type == types[:, None]
    return Partition(holds * np.int64(samples // per_type), types)


def iid(num_clients: int, num_classes: int, samples: int, rng: np.random.Generator) -> Partition:
    """Every client holds every class, as equally as whole numbers allow.

    Where ``samples`` is not divisible by C, the classes with one sample more
    rotate from client to client, so that no class is favoured overall.
    """
    counts = _rotating(np.full(num_clients, samples), num_classes)
    return Partition(counts, np.zeros(num_clients, np.int64))


def dirichlet(
    num_clients: int,
    num_classes: int,
    samples: int,
    rng: np.random.Generator,
    *,
    alpha: float = 0.3,
) -> Partition:
    """Every client has class shares of its own, drawn from a symmetric Dirichlet(``alpha``).

    The smaller ``alpha``, the more uneven. Counts are multinomial with those
    shares, so each client holds exactly ``samples``. There are no discrete types.
    """
    alpha = _positive(alpha, "alpha")
    counts = np.empty((num_clients, num_classes), np.int64)
    for own in counts:
        own[:] = rng.multinomial(samples, rng.dirichlet(np.full(num_classes, alpha)))
    return Partition(counts, None)


def classes_per_client(
    num_clients: int,
    num_classes: int,
    samples: int,
    rng: np.random.Generator,
    *,
    classes: int = 2,
) -> Partition:
    """Every client holds ``classes`` classes chosen at random, in equal numbers (±1).

    Clients with the same set of classes are of the same type.
    """
    classes = whole_number(classes, "classes")
    if classes > num_classes:
        raise CarvyError(
            f"classes-per-client: a client cannot hold {classes} classes of {num_classes}; "
            "lower `classes`"
        )
    if samples < classes:
        raise CarvyError(
            f"classes-per-client: {samples} samples are too few for {classes} classes; "
            f"use at least {classes}"
        )
    counts = np.zeros((num_clients, num_classes), np.int64)
    for own in counts:
        # choice() returns them in random order, so the odd sample favours no class.
        own[rng.choice(num_classes, classes, replace=False)] = _equal_parts(samples, classes)
    _, types = np.unique(counts > 0, axis=0, return_inverse=True)
    return Partition(counts, types.reshape(-1).astype(np.int64))


def quantity_skew(
    num_clients: int,
    num_classes: int,
    samples: int,
    rng: np.random.Generator,
    *,
    sigma: float = 1.0,
) -> Partition:
    """Clients hold all classes equally (±1) but differ in how many samples they hold.

    Each client has one sample of every class; the rest of the N·``samples`` is
    divided in proportion to log-normal weights with parameter ``sigma``. The mean
    number of samples is therefore exactly ``samples``. All clients are of one type.
    """
    sigma = _positive(sigma, "sigma")
    if samples < num_classes:
        raise CarvyError(
            f"quantity-skew: {samples} samples are too few for one of each of {num_classes} "
            f"classes; use at least {num_classes}"
        )
    exponents = sigma * rng.standard_normal(num_clients)
    weights = np.exp(exponents - exponents.max())
    spread = largest_remainder(num_clients * (samples - num_classes), weights)
    return Partition(_rotating(num_classes + spread, num_classes), np.zeros(num_clients, np.int64))


@dataclass(frozen=True)
class PartitionRule:
    """A way to split a data set over clients.

    Attributes
    ----------
    split
        From (clients, classes, samples per client, generator) and keyword parameters of its
        own to a :class:`Partition`. All randomness comes from the generator.
    """

    name: str
    help: str
    split: Callable[..., Partition]

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
    have drawn with more.

    Parameters
    ----------
    dataset
        What is split; only its training part is used.
    partition_name
        A name in :data:`PARTITIONS`.
    samples
        Training samples per client (the mean, under "quantity-skew").
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
    _check_memory(dataset, num_clients, samples, validation)
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
    training, aside = set_aside(labels, validation_share, seed, "partition", "split")
    pools, aside_pools = (
        [part[labels[part] == c] for c in range(num_classes)] for part in (training, aside)
    )
    there = np.array([len(pool) for pool in pools])
    short = np.argwhere(partition.counts > there)
    if len(short):
        client, label = short[0]
        number = partition.counts[client, label]
        wanted = f"client {client} wants {number} training samples of class {label}"
        if label not in labels:
            raise CarvyError(
                f"{wanted}, of which {dataset.name} has none at all; number the classes 0, 1, 2, … "
                "without a gap"
            )
        raise CarvyError(
            f"{wanted}, but {dataset.name} has {there[label]} (without those set aside for "
            "validation); lower samples or use a larger data set"
        )
    clients = []
    for number, counts in enumerate(partition.counts):
        drawn = _draw(pools, counts, seed, number, "train")
        judged = largest_remainder(validation, counts)
        validated = _draw(aside_pools, judged, seed, number, "validation")
        clients.append(Client(dataset.train.take(drawn), dataset.train.take(validated)))
    return Federation(tuple(clients), num_classes, dataset.mean, dataset.std, partition.types)


def _check_memory(dataset: DataSet, num_clients: int, samples: int, validation: int) -> None:
    """Refuse more clients than half of the memory can hold; training needs the other half."""
    train = dataset.train
    held = min(samples, len(train)) + min(validation, len(train))
    size = train.inputs[:1].nbytes + train.labels.itemsize
    each = held * size + PER_CLIENT + 4 * 8 * dataset.num_classes  # counts, and copies of them
    fits = memory() // 2 // each
    if num_clients > fits:
        raise CarvyError(
            f"{num_clients:,} clients with {samples:,} training and {validation:,} validation "
            f"samples of {size:,} bytes take {num_clients * each / 1e9:,.0f} GB, but half of this "
            f"machine's memory is {memory() / 2e9:,.1f} GB; use at most {fits:,} clients, or fewer "
            "samples"
        )


def split_classes(
    partition_name: str,
    *,
    num_clients: int,
    num_classes: int,
    samples: int,
    seed: int,
    **params: Any,
) -> Partition:
    """Return how many samples of every class each client gets; see :func:`build_federation`."""
    rule = PARTITIONS.pick(partition_name)
    rule.check_parameters(params)
    rng = generator(seed, "partition", "counts")
    return _checked(
        rule.split(num_clients, num_classes, samples, rng, **params),
        (num_clients, num_classes),
        f"partition '{partition_name}'",
    )


def _checked(partition: Partition, shape: tuple[int, int], where: str) -> Partition:
    """Refuse what a partition function must not return; ``shape`` is (N, C)."""
    if not isinstance(partition, Partition):
        raise CarvyError(f"{where} must return a Partition, not {type(partition).__name__}")
    counts = as_array(partition.counts, f"{where}: counts")
    if counts.shape != shape or not are_whole(counts):
        raise CarvyError(
            f"{where}: counts must be whole numbers of shape {shape}, one row per client and one "
            f"column per class; it returned {counts.dtype} of shape {counts.shape}"
        )
    if counts.min() < 0:
        client, label = np.argwhere(counts < 0)[0]
        raise CarvyError(
            f"{where} gives client {client} {counts[client, label]} samples of class {label}; "
            "give 0 or more"
        )
    empty = np.flatnonzero(counts.sum(axis=1) < 1)
    if len(empty):
        raise CarvyError(
            f"{where} leaves client {empty[0]} without any sample; raise samples, or have the "
            "partition give every client at least one"
        )
    types = as_types(partition.types, shape[0], f"{where}: types")
    return Partition(counts.astype(np.int64, copy=False), types)


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


def largest_remainder(total: int, weights: npt.ArrayLike) -> Counts:
    """Divide ``total`` in proportion to the weights, in whole numbers that add up to it.

    Every share is its exact quota rounded down, and the largest fractions get
    one more (the first of equal ones).
    """
    parts = np.asarray(weights)
    quotas = total * parts / parts.sum()
    whole: Counts = np.floor(quotas).astype(np.int64)
    most = np.argsort(whole - quotas, kind="stable")[: total - whole.sum()]
    whole[most] += 1
    return whole


def _draw(pools: Sequence[Labels], counts: Counts, seed: int, client: int, part: str) -> Labels:
    """Draw ``counts[c]`` of pool c, or all it has, without replacement, by this client's key."""
    drawn = [
        generator(seed, "partition", part, client, label).permutation(pool)[:count]
        for label, (pool, count) in enumerate(zip(pools, counts, strict=True))
        if count
    ]
    return np.sort(np.concatenate([np.empty(0, np.int64), *drawn]))


def _equal_parts(total: int, parts: int) -> Counts:
    """Divide ``total`` into whole parts that differ by at most one, larger ones first."""
    return total // parts + (np.arange(parts) < total % parts)


def _rotating(sizes: Counts, num_classes: int) -> Counts:
    """Divide each size equally over the classes; each client's odd ones follow the last's."""
    odd = sizes % num_classes
    start = np.cumsum(odd) - odd
    extra = (np.arange(num_classes) - start[:, None]) % num_classes < odd[:, None]
    return (sizes // num_classes)[:, None] + extra


def _positive(value: Any, name: str) -> float:
    if is_number(value) and math.isfinite(value) and value > 0:
        return float(value)
    raise CarvyError(f"{name} must be a finite number above 0, not {value!r}")
