"""Where malicious clients come to sit (Theorems 2 to 4 of the page "end-to-end.md").

The theorems are tested by enumeration: all coins, all claims, arbitrary group models; the groups of
the theorems are enumerated here, and those that the package draws are compared with them.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from carvyfl.groups.exchange import imbalance
from carvyfl.groups.slots import plans
from carvyfl.profiles.types import given_types
from carvyfl.voting.collective import stakes
from carvyfl.voting.votes import votes
from reproduction.studies.certified import HONEST_ONLY, Attackers, Draws, Slots
from support.slot_ways import all_groupings

Group = frozenset[str]
Vote = Callable[[Group], int | None]
RIGHT, WRONG = 1, 0  # class 0 wins ties


def survives(groups: tuple[Group, ...], vote: Vote, touched: set[int]) -> bool:
    """Whether the true class wins when every touched group votes for the other one."""
    cast = [WRONG if g in touched else vote(group) for g, group in enumerate(groups)]
    return cast.count(RIGHT) > cast.count(WRONG)


def chance(
    groups: tuple[Group, ...],
    claims: dict[str, int],
    plan: tuple[int, ...],
    m: int,
    holds: Callable[[set[int]], bool],
) -> float:
    """The probability that the true class holds against T_j, written down from its definition."""
    choices = []
    for kind, count in enumerate(plan):
        empty = [g for g, group in enumerate(groups) if not any(claims[c] == kind for c in group)]
        choices.append(itertools.combinations(empty, count))
    shares = []
    for parts in itertools.product(*choices):
        taken = set().union(*parts)
        free = sorted(set(range(len(groups))) - taken)
        rest = list(itertools.combinations(free, min(m, len(groups)) - len(taken)))
        shares.append(np.mean([holds(taken | set(others)) for others in rest]))
    return float(np.mean(shares))


def any_votes(data: st.DataObject) -> Vote:
    """What a group of honest clients votes: any function of its members."""
    learned: dict[Group, int] = {}

    def vote(members: Group) -> int | None:
        if members and members not in learned:
            learned[members] = data.draw(st.integers(0, 1))
        return learned.get(members)

    return vote


def seats(groups: tuple[Group, ...]) -> set[int]:
    """The groups with a malicious member."""
    return {g for g, group in enumerate(groups) if any(client[0] == "m" for client in group)}


def left_of(
    groups: tuple[Group, ...], claims: dict[str, int], num_types: int
) -> list[tuple[Group, ...]]:
    """Every equally likely run that the first proof leaves of one without its malicious clients."""
    ways = []
    for kind in range(num_types):
        alike = {c for c, t in claims.items() if t == kind}
        bench = [c for c in sorted(alike - frozenset().union(*groups)) if c[0] == "h"]
        freed = [g for g, group in enumerate(groups) if any(c[0] == "m" for c in group & alike)]
        count = min(len(bench), len(freed))
        ways.append(
            [
                dict(zip(slots, chosen, strict=True))
                for chosen in itertools.combinations(bench, count)
                for slots in itertools.permutations(freed, count)
            ]
        )
    honest = [frozenset(c for c in group if c[0] == "h") for group in groups]
    return [
        tuple(group | {way[g] for way in fills if g in way} for g, group in enumerate(honest))
        for fills in itertools.product(*ways)
    ]


NOBODYS = 2  # a type that no honest client has


@pytest.mark.slow
@pytest.mark.parametrize("all_honest", [False, True])
@settings(max_examples=120)
@given(data=st.data(), honest=st.lists(st.integers(0, 1), min_size=1, max_size=4))
def test_expected_accuracy_is_at_least_that_of_the_worst_plan(
    all_honest: bool, data: st.DataObject, honest: list[int]
):
    """Compared with a run without the malicious clients, or with one in which they behave."""
    num_groups = data.draw(st.integers(2, 3))
    honest = honest[: 3 if all_honest else 4]
    lies = data.draw(st.lists(st.integers(0, NOBODYS), min_size=1, max_size=2))
    m, vote = len(lies), any_votes(data)
    claims = {f"h{i}": kind for i, kind in enumerate(honest)}
    attacked = claims | {f"m{i}": kind for i, kind in enumerate(lies)}
    behaved = dict(claims)
    if all_honest:
        behaved |= {f"m{i}": data.draw(st.integers(0, 1)) for i in range(m)}
    empty = [max(0, num_groups - honest.count(t)) if t in honest else 0 for t in (0, 1)]
    runs = list(all_groupings(behaved, 2, num_groups))

    def proved(plan: tuple[int, ...], groups: tuple[Group, ...]) -> float:
        def holds(lost: set[int]) -> bool:
            return survives(groups, vote, lost | seats(groups))

        rest = left_of(groups, behaved, 2)
        return float(np.mean([chance(left, claims, plan, m, holds) for left in rest]))

    least = min(np.mean([proved(plan, groups) for groups in runs]) for plan in plans(empty, m))
    survived = [
        survives(groups, vote, seats(groups))
        for groups in all_groupings(attacked, NOBODYS + 1, num_groups)
    ]
    assert np.mean(survived) >= least - 1e-12
    # It certifies no less than a margin of 2m, which survives any m groups, or of 4m and 2m.
    casts = [[vote(group) for group in groups] for groups in runs]
    margin = (4 if all_honest else 2) * m
    certified = [cast.count(RIGHT) - cast.count(WRONG) - 1 >= margin for cast in casts]
    assert least >= np.mean(certified) - 1e-12


def test_claiming_a_type_that_nobody_has_reaches_the_bound():
    """A group votes right if it has a client: a lost seat and a taken group are two votes."""
    claims = {"h0": 0, "h1": 0}

    def vote(members: Group) -> int | None:
        return RIGHT if members else None

    def held(groups: tuple[Group, ...], lost: set[int]) -> bool:
        return survives(groups, vote, lost | seats(groups))

    proved = [
        chance(left, claims, (0,), 1, partial(held, groups))
        for groups in all_groupings(claims | {"m0": 0}, 1, 3)
        for left in left_of(groups, claims | {"m0": 0}, 1)
    ]
    survived = [
        survives(groups, vote, seats(groups)) for groups in all_groupings(claims | {"m0": 1}, 2, 3)
    ]
    assert np.mean(survived) == pytest.approx(np.mean(proved)) == pytest.approx(1 / 3)


def test_groups_touched_at_random_are_not_the_worst():
    claims = {"h0": 0, "h1": 0, "h2": 1, "h3": 1, "h4": 1}

    def vote(members: Group) -> int | None:
        return WRONG if "h0" in members else RIGHT

    alone = list(all_groupings(claims, 2, 3))
    anywhere = np.mean([chance(g, claims, (0, 0), 1, partial(survives, g, vote)) for g in alone])
    in_the_empty_slot = np.mean(
        [chance(g, claims, (1, 0), 1, partial(survives, g, vote)) for g in alone]
    )
    survived = [
        survives(groups, vote, seats(groups)) for groups in all_groupings(claims | {"m0": 0}, 2, 3)
    ]
    assert np.mean(survived) == in_the_empty_slot == 0
    assert anywhere == pytest.approx(1 / 3)


def test_plans_are_all_ways_to_fill_empty_slots():
    assert set(plans((2, 0, 1), 2)) == {(0, 0, 0), (1, 0, 0), (2, 0, 0), (0, 0, 1), (1, 0, 1)}
    assert plans((), 3) == [()]


def drawn_groups(
    seated: tuple[tuple[int, ...], ...], plan: tuple[int, ...], num_groups: int, m: int, times: int
) -> np.ndarray:
    """T as the study of certified accuracy draws it, shape (times, G); types sit as given."""
    seats = tuple((np.array(groups, dtype=np.int64),) for groups in seated)
    drawn = Draws(given_types([0]), [Slots(seats, num_groups)], {}, m)
    experiment: Any = SimpleNamespace(config=SimpleNamespace(seed=0))
    attackers = Attackers(experiment, drawn, m, [])
    (touched,) = attackers._seated((0,) * len(seated), plan, times)
    return touched


def test_touched_groups_follow_the_theorem():
    # Type 0 sits in groups 2 and 3, type 1 in 0 and 3: groups 0 and 1, and 1 and 2, are empty.
    touched = drawn_groups(((2, 3), (0, 3)), (1, 1), num_groups=4, m=3, times=8000)
    drawn = Counter(tuple(np.flatnonzero(row).tolist()) for row in touched)
    # J is {0, 1}, {0, 2}, {1} or {1, 2}, each with chance 1/4; the rest is uniform.
    chances: defaultdict[tuple[int, ...], float] = defaultdict(float)
    for taken in ({0, 1}, {0, 2}, {1}, {1, 2}):
        rest = list(itertools.combinations(sorted({0, 1, 2, 3} - taken), 3 - len(taken)))
        for others in rest:
            chances[tuple(sorted(taken | set(others)))] += 1 / 4 / len(rest)
    assert drawn.keys() == chances.keys()
    counts = [drawn[touched] for touched in chances]
    assert chisquare(counts, [8000 * share for share in chances.values()]).pvalue > 1e-4


def test_shares_stay_apart_by_the_draw_of_the_coins():
    """With one group touched of three, all right in the first draw and one in the second hold."""
    slots = [Slots(((np.arange(3),),), 3)] * 2
    test = np.zeros(4)
    experiment: Any = SimpleNamespace(
        config=SimpleNamespace(seed=0), prepared=SimpleNamespace(dataset=SimpleNamespace(test=test))
    )
    attackers = Attackers(experiment, Draws(given_types([0] * 3), slots, {}, 1), 1, [])
    right, one = np.zeros((3, 4), int), np.eye(4, dtype=int)[:1].repeat(3, axis=0)
    left = [stakes(votes(cast, 2), np.zeros(4, int), 1) for cast in (right, 1 - one)]
    assert attackers.held(HONEST_ONLY, (0,), (0,), left, 5).tolist() == [[100.0] * 5, [25.0] * 5]


@given(groups=st.integers(1, 6), m=st.integers(0, 8))
def test_no_more_groups_are_touched_than_there_are(groups: int, m: int):
    (touched,) = drawn_groups(((),), (0,), num_groups=groups, m=m, times=1)
    assert touched.sum() == min(m, groups)


# --- the best of several random groupings promises the worst of them (Theorem 4) -------------


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


def beats_the_liar(groups: tuple[int, ...], learned: dict[frozenset[int], int]) -> bool:
    """Whether class 1 wins if the liar, client 0, has its group vote for class 0."""
    members = [frozenset(c for c, g in enumerate(groups) if g == h) for h in range(3)]
    cast = [0 if 0 in group else learned[group] for group in members if group]
    return cast.count(1) > cast.count(0)


def certified(groups: tuple[int, ...], learned: dict[frozenset[int], int]) -> bool:
    """Whether class 1 leads by 2m, m = 1, in a draw without the liar; class 0 wins ties."""
    members = [frozenset(c for c, g in enumerate(groups) if g == h and c) for h in range(3)]
    cast = [learned[group] for group in members if group]
    return cast.count(1) - cast.count(0) - 1 >= 2


@pytest.mark.parametrize("seed", range(4))
def test_the_better_of_two_draws_promises_the_worse_of_them(seed: int):
    """Theorem 4 over all pairs of draws, with any votes of honest groups and any of the lies."""
    draw = np.random.default_rng(seed)
    subsets = [frozenset(s) for n in (1, 2, 3) for s in itertools.combinations((1, 2, 3), n)]
    learned = {group: int(draw.random() < 0.9) for group in subsets}
    ways = Counter(balanced_groupings(4, 3))
    honest = profiles_of(seed, 4)
    uncertified = sum(n for way, n in ways.items() if not certified(way, learned))
    total, switched, held = sum(ways.values()), False, 0
    broken = dict.fromkeys(range(len(lies(3)) - 1), 0)
    for pair in itertools.product(ways, repeat=2):
        weight, taken = ways[pair[0]] * ways[pair[1]], set()
        for number in broken:
            reports = honest.copy()
            reports[0] = lies(3)[number]
            best = min(pair, key=lambda way: imbalance(reports, way, 3))
            taken.add(best)
            held += certified(best, learned)
            assert beats_the_liar(best, learned) or not certified(best, learned)
            broken[number] += 0 if beats_the_liar(best, learned) else weight
        switched |= len(taken) > 1
    assert switched  # one liar decides which draw is taken: no whole run is promised
    assert max(broken.values()) / total**2 <= 2 * uncertified / total
    assert held or uncertified == total
