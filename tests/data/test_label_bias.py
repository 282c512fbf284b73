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
from carvyfl.data.clients import Federation
from carvyfl.data.partitions import PARTITIONS, PartitionRule, build_federation
from carvyfl.data.rules import Dealing, label_bias
from support.federations import numbered, positions
from support.registries import registered

UNEVEN = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)  # MNIST's classes


def build(**changes: Any) -> Federation:
    arguments = {"num_clients": 20, "samples": 30, "seed": 3, "validation": 5, **changes}
    data = arguments.pop("data", None) or numbered((200,) * 4)
    return build_federation(data, "label-bias", **arguments)


def dealt(federation: Federation) -> list[list[int]]:
    return [positions(client.train) for client in federation.clients]


def counts(federation: Federation) -> npt.NDArray[np.int64]:
    return np.array(
        [np.bincount(c.train.labels, minlength=federation.num_classes) for c in federation.clients]
    )


def plausible(counts: npt.NDArray[np.int64], share: float | npt.NDArray[np.float64]) -> bool:
    """Say whether no number is so far out that one in a billion would be; columns are classes."""
    below = binom.cdf(counts, UNEVEN, share)
    above = binom.sf(counts - 1, UNEVEN, share)
    return bool(np.minimum(below, above).min() > 1e-9)


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(0, 40), st.floats(0, 1), st.integers(0, 2**31))
def test_shares_follow_the_definition(c: int, more: int, q: float, seed: int) -> None:
    dealing = label_bias(c + more, c, 10, np.random.default_rng(seed), q=q)
    assert dealing.shares.sum(axis=0) == pytest.approx(1)
    groups = np.random.default_rng(seed).permutation(np.arange(c + more) % c)
    sizes = np.bincount(groups)
    assert np.ptp(sizes) <= 1
    for client, group in enumerate(groups):
        for label in range(c):
            of_group = 1 if c == 1 else q if group == label else (1 - q) / (c - 1)
            expected = of_group / sizes[group]
            assert dealing.shares[client, label] == pytest.approx(expected, abs=1e-12)
    assert dealing.types is not None
    alike = c == 1 or math.isclose(q, 1 / c)
    assert dealing.types.tolist() == ([0] * len(groups) if alike else groups.tolist())


@pytest.mark.parametrize("q", [0.1, 0.5, 0.9])
def test_the_benchmark_has_the_right_frequencies(q: float) -> None:
    """1,000 clients share all of MNIST, 60 samples each on average."""
    federation = build(
        data=numbered(UNEVEN), num_clients=1000, samples=60, validation=0, validation_share=0, q=q
    )
    held = counts(federation)
    assert sorted(itertools.chain(*dealt(federation))) == list(range(60_000))
    assert held.sum(axis=0).tolist() == list(UNEVEN)
    assert federation.types is not None
    if q == 0.1:  # i.i.d.: all alike, so every client's number of each class is binomial
        assert not federation.types.any()
        assert plausible(held, 1 / 1000)
        return
    assert np.bincount(federation.types).tolist() == [100] * 10
    for group in range(10):
        members = held[federation.types == group]
        share = np.full(10, (1 - q) / 9)
        share[group] = q
        assert plausible(members.sum(axis=0), share)  # to the group
        assert plausible(members, share / 100)  # to each client of it
        # Uniform over its clients: chi square with 99 degrees of freedom, 5 deviations wide.
        for label in range(10):
            mean = members[:, label].mean()
            assert abs(((members[:, label] - mean) ** 2 / mean).sum() - 99) < 5 * math.sqrt(2 * 99)


def test_q_1_gives_a_client_one_class_and_q_0_all_others() -> None:
    for q, holds in ((1, [True]), (0, [False])):
        federation = build(q=q)
        assert federation.types is not None
        for row, group in zip(counts(federation), federation.types, strict=True):
            assert (np.flatnonzero(row) == group).tolist() in ([True], [False] * 3)
            assert [row[group] > 0] == holds


@settings(max_examples=20, deadline=None)
@given(st.integers(4, 25), st.integers(15, 28), st.floats(0, 1), st.integers(0, 2**31))
def test_every_sample_is_dealt_once_at_most(n: int, samples: int, q: float, seed: int) -> None:
    federation = build(num_clients=n, samples=samples, q=q, seed=seed)
    everything = list(itertools.chain(*dealt(federation)))
    assert len(everything) == len(set(everything)) == n * samples
    validated = {x for client in federation.clients for x in positions(client.validation)}
    assert not validated & set(everything)
    assert all(places == sorted(places) for places in dealt(federation))
    again = build(num_clients=n, samples=samples, q=q, seed=seed)
    assert dealt(again) == dealt(federation)


def receivers(federation: Federation) -> dict[int, int]:
    return {x: client for client, places in enumerate(dealt(federation)) for x in places}


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


def test_an_own_rule_may_deal() -> None:
    """A client without a share gets nothing, wherever it stands."""
    shares = np.array([[0, 1, 0, 0], [1, 0, 0.5, 0], [0, 0, 0.5, 1]])
    rule = PartitionRule("own", "mine", lambda *_: Dealing(shares, None))
    with registered(PARTITIONS, rule):
        federation = build_federation(
            numbered((20,) * 4), "own", num_clients=3, samples=20, seed=0, validation_share=0
        )
    assert ((counts(federation) > 0) <= (shares > 0)).all()
    assert federation.types is None
