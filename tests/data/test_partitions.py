from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch.utils.data import TensorDataset

from carvyfl.core.randomness import generator
from carvyfl.data import partitions
from carvyfl.data.clients import Client, Federation, Samples
from carvyfl.data.own_data import federation_from_arrays, federation_from_indices
from carvyfl.data.partitions import PARTITIONS, PartitionRule, build_federation, set_aside
from carvyfl.data.rules import (
    Partition,
    class_disjoint,
    classes_per_client,
    dirichlet,
    iid,
    largest_remainder,
    quantity_skew,
)
from support.federations import Listed, numbered, positions
from support.registries import registered

clients_ = st.integers(1, 40)
classes_ = st.integers(1, 12)
samples_ = st.integers(1, 200)
seeds_ = st.integers(0, 2**31)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def same(a: Samples, b: Samples) -> bool:
    return positions(a) == positions(b) and a.labels.tolist() == b.labels.tolist()


# -- class counts ----------------------------------------------------------------------


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 30), st.integers(1, 20))
def test_class_disjoint(per_type: int, num_types: int, more: int, each: int) -> None:
    partition = class_disjoint(
        num_types + more, per_type * num_types, each * per_type, rng(), classes_per_type=per_type
    )
    assert (partition.counts.sum(axis=1) == each * per_type).all()
    assert set(np.unique(partition.counts)) <= {0, each}
    assert partition.types is not None
    sizes = np.bincount(partition.types, minlength=num_types)
    assert sizes.sum() == num_types + more
    assert sizes.max() - sizes.min() <= 1
    assert (np.diff(partition.types) >= 0).all()  # contiguous blocks
    for row, kind in zip(partition.counts, partition.types, strict=True):
        assert (np.flatnonzero(row) // per_type == kind).all()


@given(clients_, classes_, samples_)
def test_iid_is_even_within_clients_and_over_all(n: int, c: int, samples: int) -> None:
    partition = iid(n, c, samples, rng())
    assert (partition.counts.sum(axis=1) == samples).all()
    assert (np.ptp(partition.counts, axis=1) <= 1).all()
    assert np.ptp(partition.counts.sum(axis=0)) <= 1
    assert partition.types is not None
    assert not partition.types.any()


@given(clients_, classes_, samples_, st.floats(0.05, 3), seeds_)
def test_dirichlet_of_unequal_sizes(n: int, c: int, mean: int, sigma: float, seed: int) -> None:
    """Sizes are proportional to log-normal weights, but for one sample each and for rounding."""
    counts = dirichlet(n, c, mean, rng(seed), sigma=sigma).counts
    sizes = counts.sum(axis=1)
    assert sizes.sum() == n * mean
    assert sizes.min() >= 1
    weights = [Fraction(float(np.exp(sigma * z))) for z in rng(seed).standard_normal(n)]
    for size, weight in zip(sizes, weights, strict=True):
        assert abs(size - 1 - n * (mean - 1) * weight / sum(weights)) < 1 + 1e-6


def test_dirichlet_shares_have_the_right_moments() -> None:
    """Counts are Dirichlet-multinomial: mean n/C, variance n p(1-p)(n + a)/(1 + a), a = C alpha."""
    n, c, alpha = 50, 5, 0.4
    partition = dirichlet(4000, c, n, rng(1), alpha=alpha)
    counts = partition.counts
    assert (counts.sum(axis=1) == n).all()
    assert partition.types is None
    p, a = 1 / c, c * alpha
    variance = n * p * (1 - p) * (n + a) / (1 + a)
    assert counts.mean(axis=0) == pytest.approx(n * p, rel=0.1)
    assert counts.var(axis=0) == pytest.approx(variance, rel=0.1)


@given(clients_, classes_, st.data())
def test_classes_per_client(n: int, c: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, c))
    samples = data.draw(st.integers(k, 100))
    partition = classes_per_client(n, c, samples, rng(data.draw(seeds_)), classes=k)
    assert (partition.counts.sum(axis=1) == samples).all()
    sets = []
    for row in partition.counts:
        held = row[row > 0]
        assert len(held) == k
        assert held.max() - held.min() <= 1
        sets.append(frozenset(np.flatnonzero(row).tolist()))
    assert partition.types is not None
    for i in range(n):
        for j in range(i):
            assert (sets[i] == sets[j]) == (partition.types[i] == partition.types[j])


def test_classes_per_client_favours_no_class() -> None:
    counts = classes_per_client(4000, 5, 3, rng(2), classes=2).counts
    assert (counts > 0).mean(axis=0) == pytest.approx(2 / 5, rel=0.1)
    assert counts.mean(axis=0) == pytest.approx(3 / 5, rel=0.1)  # the odd sample, too


@given(clients_, classes_, st.integers(0, 100), st.floats(0.01, 5), seeds_)
def test_quantity_skew(n: int, c: int, more: int, sigma: float, seed: int) -> None:
    partition = quantity_skew(n, c, c + more, rng(seed), sigma=sigma)
    assert partition.counts.sum() == n * (c + more)  # the mean is exact
    assert partition.counts.min() >= 1
    assert (np.ptp(partition.counts, axis=1) <= 1).all()
    assert partition.types is not None
    assert not partition.types.any()


def test_quantity_skew_is_log_normal() -> None:
    sizes = quantity_skew(3000, 2, 100_000, rng(3), sigma=0.7).counts.sum(axis=1)
    logs = np.log(sizes)
    assert logs.std() == pytest.approx(0.7, rel=0.05)
    assert abs(np.median(logs) - logs.mean()) < 0.05


@given(st.integers(0, 500), st.lists(st.integers(0, 50), min_size=1, max_size=9))
def test_largest_remainder(total: int, weights: list[int]) -> None:
    weights[0] += 1  # not all zero
    parts = largest_remainder(total, weights).tolist()
    quotas = [Fraction(total * w, sum(weights)) for w in weights]
    assert sum(parts) == total
    fractions: dict[bool, list[Fraction]] = {True: [], False: []}
    for part, quota in zip(parts, quotas, strict=True):
        assert part in (quota // 1, quota // 1 + 1)
        fractions[part > quota // 1].append(quota % 1)
    if fractions[True] and fractions[False]:
        assert min(fractions[True]) >= max(fractions[False])


@given(st.lists(st.integers(0, 5), max_size=60), st.floats(0, 0.99), seeds_)
def test_set_aside(members: list[int], share: float, seed: int) -> None:
    labels = np.array(members, np.int64)
    training, aside = set_aside(labels, share, seed, "test")
    assert sorted([*training, *aside]) == list(range(len(labels)))
    assert len(training) > 0 or not len(labels)
    assert (len(aside) > 0) == (len(labels) > 1 and share > 0)
    wanted = share * len(labels)
    for label in set(members):
        taken, held = (labels[aside] == label).sum(), (labels == label).sum()
        assert taken <= share * held + 1 + (abs(round(wanted) - wanted))
        if (np.unique(labels, return_counts=True)[1] > 1).any():
            assert taken < held  # a class keeps its last sample


def test_the_papers_split_is_exact() -> None:
    """60,000 become 54,000 and 6,000, in MNIST's uneven classes too."""
    sizes = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    labels = np.repeat(np.arange(10), sizes)
    training, aside = set_aside(labels, 0.1, 1, "split")
    assert (len(training), len(aside)) == (54_000, 6_000)
    assert np.abs(np.bincount(labels[aside]) - np.array(sizes) / 10).max() < 1


# -- federations -----------------------------------------------------------------------

SETTINGS: dict[str, dict[str, Any]] = {
    "class-disjoint": {"classes_per_type": 2},
    "iid": {},
    "dirichlet": {"alpha": 0.5},
    "classes-per-client": {"classes": 3},
    "quantity-skew": {"sigma": 0.5},
    "label-bias": {"q": 0.4},
}


@settings(max_examples=15)
@given(name=st.sampled_from(sorted(SETTINGS)), seed=seeds_)
def test_federation_has_the_counts_of_its_partition(name: str, seed: int) -> None:
    # Feature shift needs images: test_shifts.py.
    assert set(SETTINGS) == set(PARTITIONS) - {"feature-shift"}
    data = numbered((200,) * 4)
    sizes: dict[str, Any] = {"num_clients": 6, "samples": 20, "seed": seed, "validation": 10}
    federation = build_federation(data, name, **sizes, **SETTINGS[name])
    aside, trained = set[int](), set[int]()
    for client in federation.clients:
        for part in (client.train, client.validation):
            assert len(set(positions(part))) == len(part)  # without replacement
            assert part.labels.tolist() == data.train.labels[positions(part)].tolist()
        train = np.bincount(client.train.labels, minlength=4)
        validation = np.bincount(client.validation.labels, minlength=4)
        assert len(client.validation) == 10
        assert np.abs(validation - 10 * train / train.sum()).max() < 1
        aside |= set(positions(client.validation))
        trained |= set(positions(client.train))
    assert not aside & trained  # over all clients, not only within one
    assert len(aside) <= 80
    assert (federation.num_classes, federation.mean, federation.std) == (4, 0.5, 2.0)
    assert sum(len(c.train) for c in federation.clients) == 6 * 20

    again = build_federation(data, name, **sizes, **SETTINGS[name])
    for one, other in zip(federation.clients, again.clients, strict=True):
        assert same(one.train, other.train)
        assert same(one.validation, other.validation)


def build(name: str = "iid", **changes: Any) -> Federation:
    arguments = {"num_clients": 5, "samples": 20, "seed": 7, "validation": 8, **changes}
    return build_federation(numbered((200,) * 4), name, **arguments)


@pytest.mark.parametrize("name", ["iid", "dirichlet", "classes-per-client"])
def test_more_clients_leave_the_first_ones_as_they_were(name: str) -> None:
    few, many = build(name, num_clients=3), build(name, num_clients=9)
    for one, other in zip(few.clients, many.clients[:3], strict=True):
        assert same(one.train, other.train)
        assert same(one.validation, other.validation)


def test_what_a_client_draws_depends_on_its_own_counts_and_the_seed() -> None:
    federation = build()
    changed: list[dict[str, Any]] = [{"validation": 0}, {"samples": 12}, {"validation_share": 0}]
    for changes in changed:
        for one, other in zip(build(**changes).clients, federation.clients, strict=True):
            if "samples" in changes:
                assert set(positions(one.train)) < set(positions(other.train))
            else:
                assert same(one.train, other.train) == ("validation" in changes)
                assert len(one.validation) == 0
    assert not same(federation.clients[0].train, federation.clients[1].train)
    one, other = (build(seed=seed, validation_share=0).clients[0] for seed in (7, 8))
    assert not same(one.train, other.train)  # drawn from one pool


def test_clients_may_overlap_so_that_all_can_be_served() -> None:
    """20 clients with 90 of a class of 100: impossible if they had to be disjoint."""
    federation = build_federation(
        numbered((100,) * 4), "class-disjoint", num_clients=40, samples=180, seed=0, validation=60
    )
    for client in federation.clients:
        assert sorted(np.bincount(client.train.labels, minlength=4)) == [0, 0, 90, 90]
        # Only 10 of each class were set aside: fewer than the 30 wanted.
        assert sorted(np.bincount(client.validation.labels, minlength=4)) == [0, 0, 10, 10]


# What a user's own partition may return for 3 clients and 4 classes.

EVEN = np.full((3, 4), 2)


@pytest.mark.parametrize(
    "counts", [EVEN, EVEN.astype(np.uint8), EVEN.astype(np.float64), EVEN.tolist()]
)
def test_an_own_partition(counts: Any) -> None:
    rule = PartitionRule("own", "mine", lambda *_: Partition(counts, np.array([1, 0, 1])))
    with registered(PARTITIONS, rule):
        federation = build("own", num_clients=3)
    for client in federation.clients:
        assert np.bincount(client.train.labels).tolist() == [2, 2, 2, 2]
    assert federation.types is not None
    assert federation.types.tolist() == [1, 0, 1]


# -- a user's own partition and data -----------------------------------------------------


def test_own_indices() -> None:
    data = numbered((50,) * 4)
    indices: list[Any] = [range(40), [41, 50, 60], np.array([199])]
    federation = federation_from_indices(data, indices, types=[0, 1, 1], seed=3)
    for client, chosen in zip(federation.clients, indices, strict=True):
        assert sorted(positions(client.train) + positions(client.validation)) == sorted(chosen)
        assert client.train.labels.tolist() == data.train.labels[positions(client.train)].tolist()
    assert [len(client.validation) for client in federation.clients] == [4, 1, 0]
    assert federation.types is not None
    assert federation.types.tolist() == [0, 1, 1]
    assert (federation.mean, federation.std, federation.num_classes) == (0.5, 2.0, 4)


def test_own_arrays_in_every_form() -> None:
    x, y = np.arange(20, dtype=np.float32)[:, None], np.arange(20) % 3
    samples = Samples(x, y)
    federation = federation_from_arrays(
        [
            (x, y),
            samples,
            TensorDataset(torch.from_numpy(x), torch.from_numpy(y)),
            Client(samples.take(range(15)), samples.take(range(15, 20))),
            Client(samples, samples.take([])),
        ],
        mean=torch.tensor(1.0),  # type: ignore[arg-type]
        std=np.array(3.0),  # type: ignore[arg-type]
    )
    assert len(federation) == 5
    assert type(federation.mean) is type(federation.std) is float
    for client in federation.clients[:3]:
        assert sorted(positions(client.train) + positions(client.validation)) == list(range(20))
        assert len(client.validation) == 2
    assert positions(federation.clients[3].validation) == [15, 16, 17, 18, 19]
    assert len(federation.clients[4].validation) == 0
    assert (federation.num_classes, federation.mean, federation.std) == (3, 1.0, 3.0)
    assert federation.types is None
    rare = Samples(x[:2], np.array([0, 4]))  # classes seen only in validation count
    assert federation_from_arrays([Client(rare.take([0]), rare.take([1]))]).num_classes == 5


@pytest.mark.parametrize(
    "label", [1, 1.0, np.int8(1), torch.tensor(1), torch.tensor([1]), np.array([1])]
)
def test_labels_of_a_torch_data_set(label: Any) -> None:
    first = torch.tensor([0.5, 1.0], requires_grad=True)
    third = torch.ones(2, dtype=torch.bfloat16)
    data = Listed((first, label), ([0.25, 2.0], label), (third, label))
    (client,) = federation_from_arrays([data], validation_share=0).clients
    assert client.train.inputs.tolist() == [[0.5, 1.0], [0.25, 2.0], [1.0, 1.0]]
    assert client.train.inputs.dtype == np.float32
    assert client.train.labels.tolist() == [1, 1, 1]
    assert client.train.labels.dtype == np.int64


def test_another_client_does_not_change_how_mine_is_split() -> None:
    x, y = np.arange(40, dtype=np.float32)[:, None], np.arange(40) % 2
    alone = federation_from_arrays([(x, y)], seed=1)
    both = federation_from_arrays([(x, y), (x[:3], y[:3])], seed=1)
    assert same(alone.clients[0].validation, both.clients[0].validation)
    twins = federation_from_arrays([(x, y), (x, y)], seed=1)
    assert not same(twins.clients[0].validation, twins.clients[1].validation)


def test_a_client_draws_by_a_generator_of_its_own() -> None:
    """Drawn again client by client and class by class; some want more than there is."""
    pools = [np.arange(0, 40), np.arange(100, 107), np.arange(200, 230)]
    counts = np.random.default_rng(0).integers(0, 9, (700, 3))
    counts[5] = 0
    samples = partitions._draw_each(pools, counts, 11, "train")
    for client, wanted in enumerate(counts):
        expected: list[int] = []
        for label, pool in enumerate(pools):
            stream = generator(11, "partition", "train", client, label)
            expected += stream.permutation(pool)[: wanted[label]].tolist()
        assert samples[client].tolist() == sorted(expected)


def test_drawing_takes_no_more_numbers_than_twice_the_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a large class no client shuffles all samples."""
    taken = 0

    class Counting(np.random.Generator):
        def random(self, size):  # type: ignore[override]
            nonlocal taken
            taken += size
            return super().random(size)

        def permutation(self, x):  # type: ignore[override]
            nonlocal taken
            taken += len(x)
            return super().permutation(x)

    def counting(seed: int, *key: str | int) -> np.random.Generator:
        stream = generator(seed, *key)
        return Counting(stream.bit_generator) if "train" in key else stream

    monkeypatch.setattr(partitions, "generator", counting)
    dataset = numbered((3 * partitions.SHUFFLED,) * 2)
    federation = build_federation(dataset, "iid", num_clients=30, samples=12, validation=0, seed=0)
    assert 0 < taken <= 2 * sum(len(client.train) for client in federation.clients)


def test_draws_from_a_large_class_are_uniform_and_fewer_are_the_first_of_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partitions, "SHUFFLED", 4)
    pool, counts = np.arange(5), dict.fromkeys(itertools.permutations(range(5), 4), 0)
    for seed in range(12_000):
        most = partitions._distinct(rng(seed), pool, 5).tolist()
        for size in (1, 2, 4):
            assert partitions._distinct(rng(seed), pool, size).tolist() == most[:size]
        assert sorted(most) == list(range(5))
        counts[tuple(most[:4])] += 1
    assert chisquare(list(counts.values())).pvalue > 0.001
