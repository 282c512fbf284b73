"""Rules that say how many samples of each class clients hold; they do not see the data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from carvyfl.core.checks import is_number, positive, whole_number
from carvyfl.core.errors import CarvyError
from carvyfl.data.clients import Labels
from carvyfl.data.shifts import as_shifts

TURNED_OR_INVERTED = ("rotate-0", "rotate-90", "rotate-180", "rotate-270", "invert")
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Partition:
    """How many training samples of every class each client holds.

    ``counts`` is int64 of shape (N, C); every client holds at least one sample. ``types`` are the
    true types, int64 of shape (N,), or None where clients differ gradually. ``shifts`` has a name
    of :data:`~carvyfl.data.shifts.SHIFTS` for every client, which sees all its images through it.
    """

    counts: Counts
    types: Labels | None
    shifts: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Dealing:
    """With which probability a training sample of a class goes to which client.

    Every sample goes to one client at most, independently of the others; clients hold the samples
    per client on average. ``shares`` is float64 of shape (N, C); the column of a class adds up to
    1. The rest is as in :class:`Partition`.
    """

    shares: npt.NDArray[np.float64]
    types: Labels | None
    shifts: tuple[str, ...] | None = None


def class_disjoint(
    num_clients: int, num_classes: int, samples: int, rng: Generator, *, classes_per_type: int = 2
) -> Partition:
    """Types with classes of their own, the paper's setting.

    Type k holds the classes k·``classes_per_type`` … and nothing else, equally many of each.
    Clients of a type are neighbours; types have equally many clients (±1).
    """
    per_type = whole_number(classes_per_type, "classes_per_type")
    if num_classes % per_type:
        fault = f"class-disjoint: {num_classes} classes cannot be split into types of {per_type}"
        raise CarvyError(f"{fault}; choose classes_per_type among the divisors of {num_classes}")
    if samples % per_type:
        fault = f"class-disjoint: {samples} samples cannot be split equally over {per_type} classes"
        raise CarvyError(f"{fault}; choose a multiple of {per_type}")
    num_types, fewer = num_classes // per_type, "classes_per_type"
    types = _neighbours(num_clients, num_types, "class-disjoint", "types", fewer)
    holds = np.arange(num_classes) // per_type == types[:, None]
    return Partition(holds * np.int64(samples // per_type), types)


def iid(num_clients: int, num_classes: int, samples: int, rng: Generator) -> Partition:
    """Every client holds every class equally (±1), and no class is favoured overall."""
    sizes = np.full(num_clients, samples)
    return Partition(_rotating(sizes, num_classes), np.zeros(num_clients, np.int64))


def dirichlet(
    num_clients: int,
    num_classes: int,
    samples: int,
    rng: Generator,
    *,
    alpha: float = 0.3,
    sigma: float | None = None,
) -> Partition:
    """Every client has class shares of its own, drawn from a symmetric Dirichlet(``alpha``).

    The smaller ``alpha``, the more uneven. Counts are multinomial with those shares, so each client
    holds exactly ``samples``. There are no discrete types. With ``sigma`` sizes are unequal, too:
    each client has one sample, and the rest is divided as in :func:`quantity_skew`.
    """
    alphas, sizes = np.full(num_classes, positive(alpha, "alpha")), np.full(num_clients, samples)
    if sigma is not None:
        sizes = _unequal_sizes(num_clients, samples, 1, sigma, rng)
    counts = np.array([rng.multinomial(size, rng.dirichlet(alphas)) for size in sizes])
    return Partition(counts, None)


def classes_per_client(
    num_clients: int, num_classes: int, samples: int, rng: Generator, *, classes: int = 2
) -> Partition:
    """Every client holds ``classes`` classes chosen at random, in equal numbers (±1).

    Clients with the same set of classes are of the same type.
    """
    classes = whole_number(classes, "classes")
    if classes > num_classes:
        fault = f"a client cannot hold {classes} classes of {num_classes}"
        raise CarvyError(f"classes-per-client: {fault}; lower `classes`")
    if samples < classes:
        fault = f"{samples} samples are too few for {classes} classes"
        raise CarvyError(f"classes-per-client: {fault}; use at least {classes}")
    counts = np.zeros((num_clients, num_classes), np.int64)
    for row in counts:
        # choice() returns them in random order, so the odd sample favours no class.
        row[rng.choice(num_classes, classes, replace=False)] = _equal_parts(samples, classes)
    _, types = np.unique(counts > 0, axis=0, return_inverse=True)
    return Partition(counts, types.reshape(-1).astype(np.int64))


def quantity_skew(
    num_clients: int, num_classes: int, samples: int, rng: Generator, *, sigma: float = 1.0
) -> Partition:
    """Clients hold all classes equally (±1) but differ in how many samples they hold.

    Beyond one sample of every class they follow log-normal weights with parameter ``sigma``.
    """
    if samples < num_classes:
        fault = f"{samples} samples are too few for one of each of {num_classes} classes"
        raise CarvyError(f"quantity-skew: {fault}; use at least {num_classes}")
    sizes = _unequal_sizes(num_clients, samples, num_classes, sigma, rng)
    return Partition(_rotating(sizes, num_classes), np.zeros(num_clients, np.int64))


def feature_shift(
    num_clients: int,
    num_classes: int,
    samples: int,
    rng: Generator,
    *,
    shifts: Sequence[str] = TURNED_OR_INVERTED,
    alpha: float | None = None,
) -> Partition:
    """Every client sees all its images through one of several public transformations.

    That is its type. Clients of a type are neighbours; types have equally many clients (±1).
    Without ``alpha`` labels are as in :func:`iid`, with it as in :func:`dirichlet`.
    """
    names = as_shifts(shifts, "feature-shift: shifts")
    if len(set(names)) < len(names):
        raise CarvyError(f"feature-shift: a shift is named twice: {', '.join(names)}")
    types = _neighbours(num_clients, len(names), "feature-shift", "shifts", "shifts")
    sizes = num_clients, num_classes, samples, rng
    labels = iid(*sizes) if alpha is None else dirichlet(*sizes, alpha=alpha)
    return Partition(labels.counts, types, tuple(names[t] for t in types))


def label_bias(
    num_clients: int, num_classes: int, samples: int, rng: Generator, *, q: float = 0.5
) -> Dealing:
    """Every class prefers a group of clients; the benchmark of Cao, Jia and Gong (AAAI 2021).

    Clients are split at random into C groups of equal size (±1). A sample of class l goes to
    group l with probability ``q``, to each other group with (1 - ``q``)/(C - 1), and to every
    client of its group with the same probability. A client's type is its group; with ``q`` = 1/C
    all are of one type.
    """
    if not (is_number(q) and 0 <= q <= 1):
        raise CarvyError(f"q must be a number from 0 to 1, not {q!r}")
    if num_clients < num_classes:
        fault = f"{num_clients} clients cannot form a group for each of {num_classes} classes"
        raise CarvyError(f"label-bias: {fault}; use at least {num_classes} clients")
    groups = rng.permutation(np.arange(num_clients) % num_classes)
    other = (1 - q) / (num_classes - 1) if num_classes > 1 else 0.0
    preferred = 1 - (num_classes - 1) * other  # q, or 1 where there is one group alone
    of_group = np.where(groups[:, None] == np.arange(num_classes), preferred, other)
    shares = of_group / np.bincount(groups)[groups, None]
    return Dealing(shares, groups * (not math.isclose(preferred, other)))


def largest_remainder(total: int, weights: npt.ArrayLike) -> Counts:
    """Divide ``total`` in proportion to each row of weights, in whole numbers that add up to it.

    Exact quotas are rounded down; the largest fractions get one more, the first of equal ones.
    """
    parts = np.asarray(weights)
    quotas = total * parts / parts.sum(axis=-1, keepdims=True)
    whole: Counts = np.floor(quotas).astype(np.int64)
    left = total - whole.sum(axis=-1, keepdims=True)
    most = np.argsort(whole - quotas, axis=-1, kind="stable")
    rank = np.argsort(most, axis=-1, kind="stable")
    whole += rank < left
    return whole


def _neighbours(num_clients: int, num_types: int, rule: str, what: str, fewer: str) -> Labels:
    """Give neighbours the same type; types have equally many clients (±1)."""
    if num_clients < num_types:
        fault = f"{rule}: {num_clients} clients cannot cover {num_types} {what}"
        raise CarvyError(f"{fault}; use at least {num_types} clients, or change `{fewer}`")
    return np.repeat(np.arange(num_types), _equal_parts(num_clients, num_types))


def _unequal_sizes(num_clients: int, mean: int, least: int, sigma: float, rng: Generator) -> Counts:
    """Give every client ``least`` samples, and divide the rest by log-normal weights."""
    exponents = positive(sigma, "sigma") * rng.standard_normal(num_clients)
    weights = np.exp(exponents - exponents.max())
    return least + largest_remainder(num_clients * (mean - least), weights)


def _equal_parts(total: int, parts: int) -> Counts:
    """Divide ``total`` into whole parts that differ by at most one, larger ones first."""
    return total // parts + (np.arange(parts) < total % parts)


def _rotating(sizes: Counts, num_classes: int) -> Counts:
    """Divide each size equally over the classes; each client's odd ones follow the last's."""
    odd = sizes % num_classes
    start = np.cumsum(odd) - odd
    extra = (np.arange(num_classes) - start[:, None]) % num_classes < odd[:, None]
    return (sizes // num_classes)[:, None] + extra
