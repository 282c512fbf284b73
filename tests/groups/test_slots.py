"""Random slots: uniform, and a malicious client changes one group (page "end-to-end.md").

The theorem is tested against linear programmes over all injections, which share no code with it;
expected accuracy over all coins, which follows, in test_reach.py.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.stats import chisquare

from carvyfl.core.errors import CarvyError
from carvyfl.groups.basis import READINGS
from carvyfl.groups.coins import Coins, coins_from_seed, draw_coins
from carvyfl.groups.methods import Beforehand, form_groups
from carvyfl.groups.slots import random_slots, without
from carvyfl.profiles.methods import Profiles
from carvyfl.profiles.types import ClientTypes
from support.slot_ways import Slots, benched


def by_rank(clients: list[str], num_groups: int) -> list[Slots]:
    """The wrong rule: shuffle the clients, rank modulo G is the slot."""
    return [
        tuple(frozenset(order[g::num_groups]) for g in range(num_groups))
        for order in itertools.permutations(clients)
    ]


def cheapest_coupling(
    rule: Callable[[list[str], int], list[Slots]], h: int, mu: int, num_groups: int, allowed: int
) -> float:
    """Return the least probability, over all couplings, that more slots than allowed change.

    A transport problem between the slots of the honest clients alone and those of honest and
    malicious ones together, both with their exact probabilities.
    """
    honest = [f"h{i}" for i in range(h)]
    before = Counter(rule(honest, num_groups))
    after = Counter(rule([*honest, *(f"m{i}" for i in range(mu))], num_groups))
    cost = np.array(
        [[sum(a != b for a, b in zip(x, y, strict=True)) > allowed for y in after] for x in before],
        dtype=float,
    )
    rows, columns = cost.shape
    equal = np.zeros((rows + columns, rows * columns))
    for i in range(rows):
        equal[i, i * columns : (i + 1) * columns] = 1
    for j in range(columns):
        equal[rows + j, j::columns] = 1
    shares = [n / before.total() for n in before.values()] + [
        n / after.total() for n in after.values()
    ]
    least = linprog(cost.ravel(), A_eq=equal, b_eq=shares).fun
    assert least is not None
    return float(least)


SMALL = [
    (h, mu, num_groups)
    for num_groups in (1, 2, 3)
    for h in range(5)
    for mu in (1, 2)
    if h + mu <= 5
]


@pytest.mark.parametrize(("h", "mu", "num_groups"), [*SMALL, (2, 2, 4), (3, 1, 4), (1, 3, 3)])
def test_honest_only_and_attacked_slots_can_be_coupled(h: int, mu: int, num_groups: int):
    assert cheapest_coupling(benched, h, mu, num_groups, allowed=mu) < 1e-9


def test_rank_modulo_g_cannot_be_coupled():
    assert cheapest_coupling(by_rank, 2, 1, 3, allowed=1) > 0.01
    assert cheapest_coupling(by_rank, 4, 1, 3, allowed=1) > 0.01


# The code draws what the theorem speaks of.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "num_groups"), [((2,), 2), ((2, 2), 3), ((3,), 3), ((4,), 3), ((2, 1), 2)]
)
def test_slots_are_uniform_over_the_coins(sizes: tuple[int, ...], num_groups: int):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    names = [f"type {kind}" for kind in range(len(sizes))]
    ways = 1
    for size in sizes:
        ways *= len(benched([str(i) for i in range(size)], num_groups))
    counts = Counter(
        tuple(random_slots(labels, names, num_groups=num_groups, coins=coins_from_seed(i)).tolist())
        for i in range(60 * ways)
    )
    assert len(counts) == ways
    assert chisquare(list(counts.values())).pvalue > 1e-4


@pytest.mark.parametrize(("honest", "liars", "num_groups"), [(2, 1, 3), (3, 2, 3), (2, 2, 3)])
def test_without_is_distributed_as_a_run_without(honest: int, liars: int, num_groups: int):
    labels = np.zeros(honest + liars, dtype=np.int64)
    gone = np.arange(honest, honest + liars)
    ways = benched([str(i) for i in range(honest)], num_groups)
    counts: Counter[tuple[int, ...]] = Counter()
    for i in range(60 * len(ways)):
        full = random_slots(labels, ["a"], num_groups=num_groups, coins=coins_from_seed(i))
        after = without(full, labels, gone, np.random.default_rng(i))
        assert (after[gone] == -1).all()
        counts[tuple(after[:honest].tolist())] += 1
    assert len(counts) == len(ways)
    assert chisquare(list(counts.values())).pvalue > 1e-4


@given(
    labels=st.lists(st.integers(-1, 3), min_size=3, max_size=30),
    lies=st.lists(st.integers(-1, 5), min_size=1, max_size=3),
    num_groups=st.integers(1, 5),
    seed=st.integers(0, 2**64),
)
def test_liars_change_at_most_one_group_each(
    labels: list[int], lies: list[int], num_groups: int, seed: int
):
    m = len(lies)
    claimed = np.array([*lies, *labels])
    names = [f"type {kind}" for kind in range(6)]
    num_groups = min(num_groups, len(claimed))
    attacked = random_slots(claimed, names, num_groups=num_groups, coins=coins_from_seed(seed))
    honest = without(attacked, claimed, np.arange(m), np.random.default_rng(0))

    def contents(assignment: np.ndarray[Any, Any]) -> list[frozenset[int]]:
        return [frozenset(np.flatnonzero(assignment == g).tolist()) for g in range(num_groups)]

    pairs = zip(contents(attacked), contents(honest), strict=True)
    assert sum(a != b for a, b in pairs) <= m
    for kind in range(6):
        alike = honest[m:][claimed[m:] == kind]
        placed = alike[alike >= 0]
        assert len(set(placed.tolist())) == len(placed) == min(len(alike), num_groups)


def test_the_same_coins_without_a_client_are_another_draw():
    """So no reading may say that running again without the malicious clients gives its answers."""
    with_it, alone = (
        random_slots([0] * clients, ["same"], num_groups=4, coins=coins_from_seed(1))
        for clients in (5, 4)
    )
    assert (with_it[:4] != alone).sum() > 1
    for reading in ("honest_only", "all_honest"):
        assert "with random slots, as one draw of it" in READINGS[reading].same_as


def test_a_types_slots_do_not_depend_on_other_types_or_numbers():
    alone = random_slots([0, 0, 0, -1], ["cats"], num_groups=4, coins=coins_from_seed(1))
    beside = random_slots(
        [1, 1, 1, 0, 0], ["birds", "cats"], num_groups=4, coins=coins_from_seed(1)
    )
    assert beside[:3].tolist() == alone[:3].tolist()


def test_a_type_without_a_name_is_refused():
    with pytest.raises(CarvyError, match="no name"):
        random_slots([0, 1], ["a"], num_groups=1, coins=coins_from_seed(0))


# Coins.


def test_coins_are_committed_to_and_checked():
    drawn = draw_coins()
    assert drawn.source == "system"
    assert draw_coins() != drawn
    assert Coins.from_json(drawn.to_json(), "here") == drawn
    changed = drawn.to_json() | {"value": coins_from_seed(4).value}
    with pytest.raises(CarvyError, match="committed"):
        Coins.from_json(changed, "here")
    for value in ("", "00", "zz" * 32, "AA" * 32, None):
        with pytest.raises(CarvyError, match="32 bytes"):
            Coins(value, "simulated")  # type: ignore[arg-type]
    with pytest.raises(CarvyError, match="from 'dice'"):
        Coins("00" * 32, "dice")


def test_committed_coins_decide_the_groups():
    mine = draw_coins()
    types = ClientTypes(np.repeat([0, 1], 3), "bias-profile", True, ("type 0", "type 1"))
    every: Any = {"num_clients": 6, "num_groups": 3, "profiles": Profiles(types)}
    every["beforehand"] = Beforehand(coins=mine)
    first, again = (form_groups("slots", seed=seed, **every) for seed in (1, 2))
    assert first == again
    assert first.coins == mine
