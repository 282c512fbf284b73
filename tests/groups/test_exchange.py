from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from carvyfl.core.errors import CarvyError
from carvyfl.groups import exchange
from carvyfl.groups.anticluster import anticluster
from carvyfl.groups.exchange import anticluster_profiles, imbalance, random_imbalance

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SEEDS = st.integers(0, 2**32)
SHAPES = st.tuples(st.integers(1, 24), st.integers(1, 4))
SMALL, LARGE = exchange.WHOLE, 0  # with 0, few clients are treated as many are


@st.composite
def profiles_and_number(draw: st.DrawFn) -> tuple[Floats, int]:
    shape = draw(SHAPES)
    # Few distinct values, so that profiles and single numbers often coincide.
    numbers = st.one_of(st.integers(-2, 2).map(float), st.floats(-10, 10, width=32))
    return draw(arrays(np.float64, shape, elements=numbers)), draw(st.integers(1, shape[0]))


def definition(vectors: Floats, assignment: Ints) -> float:
    grouped = assignment >= 0
    centred = vectors - vectors[grouped].mean(axis=0)
    sums = [centred[assignment == g].sum(axis=0) for g in set(assignment[grouped].tolist())]
    return float(sum((s**2).sum() for s in sums))


def balanced_groupings(clients: int, num_groups: int) -> list[Ints]:
    """List every way to number the clients' groups, sizes as N // G or one more, larger first."""
    sizes = [clients // num_groups + (g < clients % num_groups) for g in range(num_groups)]
    words = itertools.product(range(num_groups), repeat=clients)
    return [np.array(w) for w in words if [w.count(g) for g in range(num_groups)] == sizes]


def full_exchange(vectors: Floats, num_groups: int, seed: int) -> Ints:
    """Swap, client after client, with the best of all others until no swap helps."""
    x = vectors - vectors.mean(axis=0)
    groups = np.random.default_rng(seed).permutation(len(x)) % num_groups
    sums = np.stack([x[groups == g].sum(axis=0) for g in range(num_groups)])
    moved = True
    while moved:
        moved = False
        for i in range(len(x)):
            v = x - x[i]
            change = 2 * (v * (sums[groups[i]] - sums[groups])).sum(axis=1) + 2 * (v**2).sum(axis=1)
            j = int(change.argmin())
            if change[j] < -1e-9:
                sums[groups[i]] += v[j]
                sums[groups[j]] -= v[j]
                groups[i], groups[j] = groups[j], groups[i]
                moved = True
    return groups


def contents(
    vectors: Floats, assignment: Ints, num_groups: int
) -> list[Counter[tuple[float, ...]]]:
    return [
        Counter(map(tuple, (vectors[assignment == g] + 0.0).tolist())) for g in range(num_groups)
    ]


@given(profiles_and_number(), st.data())
def test_imbalance_is_as_defined(case: tuple[Floats, int], data: st.DataObject) -> None:
    vectors, num_groups = case
    groups = data.draw(arrays(np.int64, len(vectors), elements=st.integers(-1, num_groups - 1)))
    expected = definition(vectors, groups) if (groups >= 0).any() else 0.0
    assert imbalance(vectors, groups, num_groups) == pytest.approx(expected, rel=1e-9, abs=1e-8)
    if len(vectors) % num_groups == 0:  # then centring changes nothing
        even = np.arange(len(vectors)) % num_groups
        sums = np.stack([vectors[even == g].sum(axis=0) for g in range(num_groups)])
        spread = float(((sums - sums.mean(axis=0)) ** 2).sum())
        assert imbalance(vectors, even, num_groups) == pytest.approx(spread, rel=1e-9, abs=1e-8)


@pytest.mark.parametrize(
    ("clients", "num_groups"), [(1, 1), (4, 2), (5, 2), (6, 3), (7, 3), (5, 5)]
)
def test_random_imbalance_is_the_mean_over_all_groupings(clients: int, num_groups: int) -> None:
    vectors = np.random.default_rng(clients).normal(size=(clients, 3))
    every = [definition(vectors, groups) for groups in balanced_groupings(clients, num_groups)]
    assert random_imbalance(vectors, num_groups) == pytest.approx(np.mean(every), abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("whole", [SMALL, LARGE])
@given(case=profiles_and_number(), seed=SEEDS, data=st.data())
def test_groups_do_not_depend_on_the_order_of_clients(
    whole: int, case: tuple[Floats, int], seed: int, data: st.DataObject
) -> None:
    vectors, num_groups = case
    shuffled = np.array(data.draw(st.permutations(range(len(vectors)))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "WHOLE", whole)
        groups = anticluster_profiles(vectors, num_groups, seed=seed)
        again = anticluster_profiles(vectors, num_groups, seed=seed)
        other = anticluster_profiles(vectors[shuffled], num_groups, seed=seed)
    assert groups.dtype == np.int64
    np.testing.assert_array_equal(groups, again)
    sizes = np.bincount(groups, minlength=num_groups)
    assert len(sizes) == num_groups
    assert sizes.max() - sizes.min() <= 1
    held = contents(vectors, groups, num_groups)
    assert held == contents(vectors[shuffled], other, num_groups)
    if len(np.unique(vectors + 0.0, axis=0)) == len(vectors):
        np.testing.assert_array_equal(other, groups[shuffled])


@given(profiles_and_number(), SEEDS)
def test_no_swap_helps(case: tuple[Floats, int], seed: int) -> None:
    vectors, num_groups = case
    groups = anticluster_profiles(vectors, num_groups, seed=seed)
    reached = definition(vectors, groups)
    for i, j in itertools.combinations(range(len(vectors)), 2):
        swapped = groups.copy()
        swapped[[i, j]] = groups[[j, i]]
        assert definition(vectors, swapped) >= reached - 1e-9 * (1 + np.abs(vectors).max()) ** 2


@pytest.mark.parametrize("whole", [SMALL, LARGE])
@pytest.mark.parametrize(("clients", "num_groups"), [(6, 2), (7, 3), (8, 4), (8, 3), (8, 2)])
def test_few_clients_reach_the_optimum(
    monkeypatch: pytest.MonkeyPatch, whole: int, clients: int, num_groups: int
) -> None:
    monkeypatch.setattr(exchange, "WHOLE", whole)
    every = balanced_groupings(clients, num_groups)
    for case in range(5):
        vectors = np.random.default_rng(case).normal(size=(clients, 2))
        optimum = min(definition(vectors, groups) for groups in every)
        reached = definition(vectors, anticluster_profiles(vectors, num_groups, seed=case))
        if whole:
            assert reached == pytest.approx(optimum, rel=1e-9)
        else:  # one start, so a local optimum may be the end
            assert optimum - 1e-9 <= reached <= random_imbalance(vectors, num_groups)


@pytest.mark.parametrize("num_groups", [10, 20, 33, 50])
def test_a_hundred_clients_are_no_worse_off_than_with_full_exchange(num_groups: int) -> None:
    vectors = np.random.default_rng(num_groups).dirichlet(np.full(10, 0.3), size=100)
    ours = [
        definition(vectors, anticluster_profiles(vectors, num_groups, seed=s)) for s in range(3)
    ]
    reference = [definition(vectors, full_exchange(vectors, num_groups, s)) for s in range(5)]
    assert np.mean(ours) <= np.mean(reference)


def test_blocks_come_close_to_full_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.random.default_rng(1).normal(size=(600, 8))
    monkeypatch.setattr(exchange, "VISITS", (16, 16 * 600))
    monkeypatch.setattr(exchange, "CHUNK", 256)
    for num_groups in (4, 61, 200):
        monkeypatch.setattr(exchange, "WHOLE", LARGE)
        ours = definition(vectors, anticluster_profiles(vectors, num_groups, seed=0))
        reference = definition(vectors, full_exchange(vectors, num_groups, 0))
        by_chance = random_imbalance(vectors, num_groups)
        assert ours - reference < 0.1 * (by_chance - reference)


@pytest.mark.parametrize("whole", [SMALL, LARGE])
@given(
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=60),
    seed=SEEDS,
    number=st.integers(1, 60),
)
def test_one_hot_types_are_spread_to_within_one(
    whole: int, labels: list[int], seed: int, number: int
) -> None:
    types, num_groups = np.array(labels), min(number, len(labels))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "WHOLE", whole)
        groups = anticluster_profiles(np.eye(6)[types], num_groups, seed=seed)
    for kind in set(labels):
        held = np.bincount(groups[types == kind], minlength=num_groups)
        assert held.max() - held.min() <= 1


@pytest.mark.slow
@pytest.mark.parametrize("whole", [SMALL, LARGE])
@given(num_types=st.integers(1, 8), num_groups=st.integers(1, 20), seed=SEEDS)
def test_equal_disjoint_types_give_the_groups_of_algorithm_2(
    whole: int, num_types: int, num_groups: int, seed: int
) -> None:
    types = np.random.default_rng(seed).permutation(np.repeat(np.arange(num_types), num_groups))
    vectors = np.eye(num_types)[types]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "WHOLE", whole)
        groups = anticluster_profiles(vectors, num_groups, seed=seed)
    paper = anticluster(types, seed=seed, literal=True)
    assert contents(vectors, groups, num_groups) == contents(vectors, paper, num_groups)
    assert imbalance(vectors, groups, num_groups) == pytest.approx(0, abs=1e-9)


def test_scale_and_place_of_the_profiles_do_not_matter() -> None:
    vectors = np.random.default_rng(3).normal(size=(60, 4))
    groups = anticluster_profiles(vectors, 12, seed=5)
    np.testing.assert_array_equal(anticluster_profiles(2.0**900 * vectors, 12, seed=5), groups)
    np.testing.assert_array_equal(anticluster_profiles(2.0**-900 * vectors, 12, seed=5), groups)
    assert not np.array_equal(anticluster_profiles(vectors, 12, seed=6), groups)
    moved = anticluster_profiles(vectors + 1000, 12, seed=5)
    assert definition(vectors, moved) == pytest.approx(definition(vectors, groups), rel=1e-6)


ZEROS, SHAPE, RANGE = np.zeros((4, 2)), "profiles must", "from -1 to 1 for each of 4"
REFUSED: list[tuple[Any, Any, str]] = [
    *[(vectors, 1, SHAPE) for vectors in ([1.0, 2.0], ZEROS[:0], ZEROS[:, :0], [["a"]], [[1j]])],
    ([[1.0], [1.0, 2.0]], 1, SHAPE),
    *[(ZEROS, number, "cannot be formed of 4 clients") for number in (0, 5)],
    *[([[0], [0], [bad], [0]], 2, "client 2 is not finite") for bad in (np.nan, np.inf)],
    *[(ZEROS, groups, RANGE) for groups in ([0, 1, 2, 0], [0, 1, -2, 0], [0, 1])],
]


@pytest.mark.parametrize(("vectors", "groups", "message"), REFUSED)
def test_bad_input_is_refused(vectors: Any, groups: Any, message: str) -> None:
    refused = anticluster_profiles if isinstance(groups, int) else imbalance
    more: dict[str, int] = {"seed": 0} if isinstance(groups, int) else {"num_groups": 2}
    with pytest.raises(CarvyError, match=message):
        refused(vectors, groups, **more)


@given(profiles_and_number(), st.data())
def test_liars_spoil_the_balance_of_the_others_by_a_bounded_amount(
    case: tuple[Floats, int], data: st.DataObject
) -> None:
    """√F of the honest ≤ √F of all + R √(m min(m, s)), for any groups: docs/concepts/groups.md."""
    vectors, num_groups = case
    groups = data.draw(arrays(np.int64, len(vectors), elements=st.integers(0, num_groups - 1)))
    liars = data.draw(arrays(np.bool_, len(vectors)))
    m = int(liars.sum())
    s = int(np.bincount(groups[liars], minlength=num_groups).max())
    longest = float(np.linalg.norm(vectors[liars], axis=1).max(initial=0.0))

    def spread(rows: Floats) -> float:
        sums = np.stack([rows[groups == g].sum(axis=0) for g in range(num_groups)])
        return float(np.linalg.norm(sums - sums.mean(axis=0)))

    honest = np.where(liars[:, None], 0.0, vectors)
    assert spread(honest) <= spread(vectors) + longest * np.sqrt(m * min(m, s)) + 1e-6
