"""Committed seats: nobody sits elsewhere, whatever is sent (Theorem 4 of "end-to-end.md").

What is proved is tested by enumeration: all draws of the seats of a few clients, all reports of a
liar, all choices of seats, none of it by code of the package.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare

from carvyfl.groups.coins import coins_from_seed
from carvyfl.groups.exchange import imbalance
from carvyfl.groups.seats import SIZE, draw_seats, seats_each, take_seats

Ints = np.ndarray[Any, np.dtype[np.int64]]


def balanced_groupings(num_clients: int, num_groups: int) -> list[tuple[int, ...]]:
    """All equally likely groupings by a shuffled order: position modulo G."""
    return [
        tuple(int(p) % num_groups for p in np.argsort(order))
        for order in itertools.permutations(range(num_clients))
    ]


def lies(width: int) -> list[list[float]]:
    """A finite set of reports: corners, their opposites, giants, nothing, and not a number."""
    corners = np.eye(width).tolist()
    return [*corners, [-1.0] * width, [1e6] + [0.0] * (width - 1), [0.0] * width, [np.nan] * width]


def profiles_of(seed: int, num_clients: int, width: int = 3) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).dirichlet([0.3] * width, num_clients)


def test_a_column_of_seats_is_a_balanced_grouping_each_equally_likely():
    expected = Counter(balanced_groupings(4, 2))
    found: Counter[tuple[int, ...]] = Counter()
    pairs: Counter[tuple[int, ...]] = Counter()
    for seed in range(1500):
        seats = draw_seats(4, 2, coins_from_seed(seed))
        assert seats.shape == (4, 2)
        found.update(map(tuple, seats.T.tolist()))
        pairs[tuple(seats[0, :2].tolist())] += 1  # columns are independent of each other
    assert found.keys() == expected.keys()
    assert chisquare([found[way] for way in expected]).pvalue > 1e-4
    assert chisquare([pairs[way] for way in itertools.product(range(2), repeat=2)]).pvalue > 1e-4


@pytest.mark.parametrize("seed", range(12))
def test_whatever_a_client_reports_everybody_sits_in_a_seat_of_its_own(seed: int):
    coins, num_groups, honest = coins_from_seed(seed), 3, profiles_of(seed, 7)
    seats = draw_seats(7, num_groups, coins)
    found = set()
    for said in lies(3):
        reports = honest.copy()
        reports[0] = said
        taken = take_seats(reports, num_groups, coins)
        for client, group in enumerate(taken.tolist()):
            assert group in seats[client] or (client == 0 and np.isnan(said).any())
        found.add(tuple(taken[1:].tolist()))
    assert len(found) > 1  # the liar has a say in which: no whole run is promised


def test_a_client_may_sit_in_a_fifth_of_the_groups():
    assert [seats_each(groups) for groups in (1, 14, 15, 20, 50, 999)] == [2, 2, 3, 4, 10, 20]
    assert draw_seats(40, 20, coins_from_seed(0)).shape == (40, 4)


def test_seats_do_not_depend_on_what_is_reported_or_who_is_set_aside():
    coins = coins_from_seed(5)
    some = profiles_of(1, 9)
    some[4] = np.nan
    assert take_seats(some, 3, coins)[4] == -1
    assert (take_seats(np.full((3, 2), np.nan), 2, coins) == -1).all()
    assert np.array_equal(take_seats(some, 3, coins), take_seats(some, 3, coins))


def test_with_the_seats_that_were_taken_a_client_changes_one_group():
    """All draws of two seats, all choices of seats, any liar: the proof's comparison."""
    columns = sorted(set(balanced_groupings(4, 2)))
    for pair in itertools.product(columns, repeat=2):
        for choice in itertools.product(range(2), repeat=4):
            taken = [pair[choice[client]][client] for client in range(4)]
            for liar in range(4):
                groups = [{c for c in range(4) if taken[c] == g} for g in range(2)]
                left = [group - {liar} for group in groups]
                assert sum(a != b for a, b in zip(groups, left, strict=True)) == 1


def survives(groups: tuple[int, ...], votes: dict[frozenset[int], int]) -> bool:
    """Whether class 1 wins if the liar, client 0, has its group vote for class 0."""
    own = [frozenset(c for c, g in enumerate(groups) if g == h) for h in range(3)]
    cast = [0 if 0 in group else votes[group] for group in own if group]
    return cast.count(1) > cast.count(0)


def certified(groups: tuple[int, ...], votes: dict[frozenset[int], int]) -> bool:
    """Whether class 1 leads by 2m, m = 1, in a draw without the liar; class 0 wins ties."""
    own = [frozenset(c for c, g in enumerate(groups) if g == h and c) for h in range(3)]
    cast = [votes[group] for group in own if group]
    return cast.count(1) - cast.count(0) - 1 >= 2


@pytest.mark.parametrize("seed", range(4))
def test_the_better_of_two_draws_promises_the_worse_of_them(seed: int):
    """Theorem 4 over all pairs of draws, with any votes of honest groups and any of the lies."""
    draw = np.random.default_rng(seed)
    subsets = [frozenset(s) for n in (1, 2, 3) for s in itertools.combinations((1, 2, 3), n)]
    votes = {group: int(draw.random() < 0.9) for group in subsets}
    ways = Counter(balanced_groupings(4, 3))
    honest = profiles_of(seed, 4)
    uncertified = sum(n for way, n in ways.items() if not certified(way, votes))
    total, switched, held = sum(ways.values()), False, 0
    broken = dict.fromkeys(range(len(lies(3)) - 1), 0)
    for pair in itertools.product(ways, repeat=2):
        weight, taken = ways[pair[0]] * ways[pair[1]], set()
        for number in broken:
            reports = honest.copy()
            reports[0] = lies(3)[number]
            best = min(pair, key=lambda way: imbalance(reports, way, 3))
            taken.add(best)
            held += certified(best, votes)
            assert survives(best, votes) or not certified(best, votes)
            broken[number] += 0 if survives(best, votes) else weight
        switched |= len(taken) > 1
    assert switched  # one liar decides which draw is taken: no whole run is promised
    assert max(broken.values()) / total**2 <= 2 * uncertified / total
    assert held or uncertified == total


@pytest.mark.parametrize(("num_clients", "num_groups", "seats"), [(4, 2, 1), (4, 2, 2), (5, 3, 2)])
def test_few_draws_let_chosen_clients_be_brought_together(
    num_clients: int, num_groups: int, seats: int
):
    """The chance that some choice of seats puts v given clients into one group, exactly."""
    ways = Counter(balanced_groupings(num_clients, num_groups))
    total = sum(ways.values()) ** seats
    for together in (2, 3):
        possible = 0
        for columns in itertools.product(ways, repeat=seats):
            own = [{column[client] for column in columns} for client in range(together)]
            if set.intersection(*own):
                possible += int(np.prod([ways[column] for column in columns]))
        largest = -(-num_clients // num_groups)
        bound = num_groups * (seats * largest / num_clients) ** together
        assert possible / total <= bound + 1e-12


@pytest.mark.parametrize("seed", range(6))
def test_few_clients_take_the_best_seats_of_all_choices(seed: int):
    coins, num_groups, rows = coins_from_seed(seed), 3, profiles_of(seed, 6)
    seats = draw_seats(6, num_groups, coins)
    centred = rows - rows.mean(axis=0)
    spread = np.sqrt((centred**2).sum() / len(rows))

    def cost(groups: Ints) -> float:
        own = [groups == g for g in range(num_groups)]
        return sum(
            float((centred[o].sum(axis=0) ** 2).sum()) + (SIZE * spread * int(o.sum())) ** 2
            for o in own
        )

    choices = itertools.product(range(2), repeat=6)
    best = min(cost(seats[np.arange(6), list(choice)]) for choice in choices)
    assert cost(take_seats(rows, num_groups, coins)) == pytest.approx(best)


def test_profiles_are_better_balanced_than_at_random():
    ratios = []
    for seed in range(5):
        rows = profiles_of(seed, 60, 6)
        coins = coins_from_seed(seed)
        taken = take_seats(rows, 12, coins)
        drawn = draw_seats(60, 12, coins)
        at_random = np.mean([imbalance(rows, column, 12) for column in drawn.T])
        ratios.append(imbalance(rows, taken, 12) / at_random)
    assert np.mean(ratios) < 0.5
