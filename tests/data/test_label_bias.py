"""Classes that prefer a group of clients, against the definition of Cao, Jia and Gong."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from carvyfl.core.errors import CarvyError
from carvyfl.data.clients import Federation, Samples
from carvyfl.data.datasets import DataSet
from carvyfl.data.partitions import PARTITIONS, PartitionRule, build_federation
from carvyfl.data.rules import Dealing, label_bias
from support.registries import registered

UNEVEN = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)  # MNIST's classes


def numbered(sizes: tuple[int, ...] = UNEVEN) -> DataSet:
    """Make a data set whose inputs are their own positions."""
    labels = np.random.default_rng(5).permutation(np.repeat(np.arange(len(sizes)), sizes))
    train = Samples(np.arange(len(labels), dtype=np.float32)[:, None], labels)
    names = tuple(map(str, range(len(sizes))))
    return DataSet("numbered", train, train.take([0]), len(sizes), 0, 1, names)


def build(**changes: Any) -> Federation:
    arguments = {"num_clients": 20, "samples": 30, "seed": 3, "validation": 5, **changes}
    data = arguments.pop("data", None) or numbered((200,) * 4)
    return build_federation(data, "label-bias", **arguments)


def positions(federation: Federation) -> list[list[int]]:
    return [client.train.inputs[:, 0].astype(int).tolist() for client in federation.clients]


def counts(federation: Federation) -> npt.NDArray[np.int64]:
    return np.array(
        [np.bincount(c.train.labels, minlength=federation.num_classes) for c in federation.clients]
    )


def plausible(found: npt.NDArray[np.int64], share: float | npt.NDArray[np.float64]) -> bool:
    """Say whether no number is so far out that one in a billion would be; columns are classes."""
    below = binom.cdf(found, UNEVEN, share)
    above = binom.sf(found - 1, UNEVEN, share)
    return bool(np.minimum(below, above).min() > 1e-9)


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(0, 40), st.floats(0, 1), st.integers(0, 2**31))
def test_shares_follow_the_definition(c: int, more: int, q: float, seed: int) -> None:
    found = label_bias(c + more, c, 10, np.random.default_rng(seed), q=q)
    assert found.shares.sum(axis=0) == pytest.approx(1)
    groups = np.random.default_rng(seed).permutation(np.arange(c + more) % c)
    sizes = np.bincount(groups)
    assert np.ptp(sizes) <= 1
    for client, group in enumerate(groups):
        for label in range(c):
            of_group = 1 if c == 1 else q if group == label else (1 - q) / (c - 1)
            expected = of_group / sizes[group]
            assert found.shares[client, label] == pytest.approx(expected, abs=1e-12)
    assert found.types is not None
    alike = c == 1 or math.isclose(q, 1 / c)
    assert found.types.tolist() == ([0] * len(groups) if alike else groups.tolist())


@pytest.mark.parametrize("q", [0.1, 0.5, 0.9])
def test_the_benchmark_has_the_right_frequencies(q: float) -> None:
    """1,000 clients share all of MNIST, 60 samples each on average."""
    federation = build(
        data=numbered(), num_clients=1000, samples=60, validation=0, validation_share=0, q=q
    )
    held = counts(federation)
    assert sorted(itertools.chain(*positions(federation))) == list(range(60_000))
    assert held.sum(axis=0).tolist() == list(UNEVEN)
    assert federation.types is not None
    if q == 0.1:  # i.i.d.: all alike, so every client's number of each class is binomial
        assert not federation.types.any()
        assert plausible(held, 1 / 1000)
        return
    assert np.bincount(federation.types).tolist() == [100] * 10
    for group in range(10):
        own = held[federation.types == group]
        share = np.full(10, (1 - q) / 9)
        share[group] = q
        assert plausible(own.sum(axis=0), share)  # to the group
        assert plausible(own, share / 100)  # to each client of it
        # Uniform over its clients: chi square with 99 degrees of freedom, 5 deviations wide.
        for label in range(10):
            mean = own[:, label].mean()
            assert abs(((own[:, label] - mean) ** 2 / mean).sum() - 99) < 5 * math.sqrt(2 * 99)


def test_q_1_gives_a_client_one_class_and_q_0_all_others() -> None:
    for q, holds in ((1, [True]), (0, [False])):
        federation = build(q=q)
        assert federation.types is not None
        for own, group in zip(counts(federation), federation.types, strict=True):
            assert (np.flatnonzero(own) == group).tolist() in ([True], [False] * 3)
            assert [own[group] > 0] == holds


@settings(max_examples=20, deadline=None)
@given(st.integers(4, 25), st.integers(15, 28), st.floats(0, 1), st.integers(0, 2**31))
def test_every_sample_is_dealt_once_at_most(n: int, samples: int, q: float, seed: int) -> None:
    federation = build(num_clients=n, samples=samples, q=q, seed=seed)
    dealt = list(itertools.chain(*positions(federation)))
    assert len(dealt) == len(set(dealt)) == n * samples
    validated = {int(x) for c in federation.clients for x in c.validation.inputs[:, 0]}
    assert not validated & set(dealt)
    assert all(own == sorted(own) for own in positions(federation))
    again = build(num_clients=n, samples=samples, q=q, seed=seed)
    assert positions(again) == positions(federation)


def receivers(federation: Federation) -> dict[int, int]:
    return {x: client for client, own in enumerate(positions(federation)) for x in own}


def test_whom_a_sample_goes_to_does_not_depend_on_the_others() -> None:
    whole = receivers(build(samples=40, validation_share=0))
    few = receivers(build(samples=20, validation_share=0))
    assert few.items() < whole.items()
    less = receivers(build(samples=36, validation_share=0.1))
    assert less.items() < whole.items()
    assert receivers(build(samples=20, validation_share=0, validation=0)) == few
    assert receivers(build(samples=20, validation_share=0, seed=4)) != few
    one, other = build(q=0.3), build(q=0.7)
    assert one.types is not None
    assert other.types is not None
    assert one.types.tolist() == other.types.tolist()  # q does not move clients


def test_more_than_there_is_and_clients_without_a_sample_are_refused() -> None:
    assert len(receivers(build(samples=36))) == 720  # all of those not set aside
    with pytest.raises(
        CarvyError, match=r"^20 clients with 37 samples on average take 740, but numbered has 720 "
    ) as caught:
        build(samples=37)
    assert "\n" not in str(caught.value)
    with pytest.raises(CarvyError, match=r"^client \d+ would be dealt no sample \(\d+ of 200"):
        build(num_clients=200, samples=1)
    # Nobody has the class that two of eight clients prefer, and q = 1 leaves them nothing else.
    with pytest.raises(CarvyError, match=r"no sample \(2 of 8 clients would not\); raise samples"):
        build(data=numbered((50, 50, 0, 50)), num_clients=8, samples=10, q=1)


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        (np.full((3, 3), 1 / 3), r"shares must be numbers of shape \(3, 4\), .*\(3, 3\)"),
        (np.full((3, 4), "x"), "shares must be numbers"),
        (np.full((3, 4), 0.5), "shares of class 0 add up to 1.5"),
        (np.full((3, 4), np.nan), "shares of class 0 add up to nan"),
        (np.array([[-1], [1], [1]]) * np.ones(4), "or one is negative"),
    ],
)
def test_what_an_own_rule_must_not_deal(shares: Any, message: str) -> None:
    own = PartitionRule("own", "mine", lambda *_: Dealing(shares, None))
    with (
        registered(PARTITIONS, own),
        pytest.raises(CarvyError, match=f"^partition 'own': .*{message}"),
    ):
        build_federation(numbered((20,) * 4), "own", num_clients=3, samples=5, seed=0)


def test_an_own_rule_may_deal() -> None:
    """A client without a share gets nothing, wherever it stands."""
    shares = np.array([[0, 1, 0, 0], [1, 0, 0.5, 0], [0, 0, 0.5, 1]])
    own = PartitionRule("own", "mine", lambda *_: Dealing(shares, None))
    with registered(PARTITIONS, own):
        federation = build_federation(
            numbered((20,) * 4), "own", num_clients=3, samples=20, seed=0, validation_share=0
        )
    assert ((counts(federation) > 0) <= (shares > 0)).all()
    assert federation.types is None
