"""Where malicious clients sit: every placement against its definition, and the search."""

from __future__ import annotations

import itertools

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given as examples
from hypothesis import strategies as st

from carvyfl.attacks.placement import (
    PLACEMENTS,
    by_hash,
    concentrated,
    dispersed,
    given,
    paper_placement,
    random_order,
    worst_groups,
)
from carvyfl.attacks.scenario import attack_gain
from carvyfl.core.errors import CarvyError
from carvyfl.groups.basis import BLIND
from carvyfl.groups.coins import coins_from_seed
from carvyfl.groups.grouping import Grouping
from carvyfl.groups.methods import GROUPINGS
from carvyfl.voting.votes import NO_VOTE
from support.elections import winner

SEEDS = st.integers(0, 5)


@st.composite
def groupings(draw: st.DrawFn) -> Grouping:
    """Up to six groups of any sizes, empty ones too, and clients that sit in none."""
    groups = draw(st.integers(1, 6))
    others = draw(st.lists(st.integers(-1, groups - 1), max_size=15))
    filled = draw(st.integers(1, groups))
    benched = [-1] * (groups - filled)  # there are never more groups than clients
    assignment = draw(st.permutations([*range(filled), *benched, *others]))
    return Grouping(np.array(assignment), groups, "drawn", BLIND, coins_from_seed(0))


def grouped(grouping: Grouping) -> list[int]:
    return np.flatnonzero(grouping.assignment >= 0).tolist()


@examples(groupings(), SEEDS)
def test_every_placement_orders_all_grouped_clients_and_depends_on_the_seed_alone(grouping, seed):
    for place in PLACEMENTS.values():
        order = place.order(grouping, seed)
        assert sorted(order) == grouped(grouping)
        assert order == place.order(grouping, seed)
    assert by_hash(grouping, seed) == grouped(grouping)


@examples(groupings(), SEEDS)
def test_dispersed_hits_as_many_groups_as_there_can_be_hit(grouping, seed):
    order = dispersed(grouping, seed)
    for m in range(len(order) + 1):
        hit = set(grouping.assignment[order[:m]].tolist())
        assert len(hit) == min(m, np.count_nonzero(grouping.sizes))


@examples(groupings(), SEEDS)
def test_concentrated_fills_one_group_before_the_next(grouping, seed):
    groups = grouping.assignment[concentrated(grouping, seed)].tolist()
    stretches = [(g, len(list(run))) for g, run in itertools.groupby(groups)]
    sizes = enumerate(grouping.sizes.tolist())
    assert sorted(stretches) == [(g, size) for g, size in sizes if size]


def test_seeds_shuffle_all_placements_but_the_hash():
    grouping = Grouping(np.arange(40) % 8, 8, "drawn", BLIND)
    for place in (dispersed, concentrated, random_order):
        assert place(grouping, 0) != place(grouping, 1)
    # Random is none of the others in disguise: 8 clients of it miss some of the 8 groups.
    hit = set(grouping.assignment[random_order(grouping, 0)[:8]].tolist())
    assert 1 < len(hit) < 8


def test_the_papers_placements():
    hashed = {"flcert", "balanced"}
    for method in GROUPINGS:
        assert paper_placement(method) == ("hash" if method in hashed else "dispersed")


@examples(groupings(), st.data())
def test_a_given_list_is_taken_as_it_is(grouping, data):
    clients = data.draw(st.lists(st.sampled_from(grouped(grouping)), unique=True))
    assert given(clients, grouping) == clients


@pytest.mark.parametrize("clients", [[0, 4], [0, 7], [-1], [1, 0, 1]])
def test_strangers_and_duplicates_are_refused(clients):
    grouping = Grouping(np.array([0, 1, 1, 0, -1]), 2, "drawn", BLIND)  # 4 sits in no group
    with pytest.raises(CarvyError, match=r"sits in no group|twice"):
        given(clients, grouping)


# The search ----------------------------------------------------------------------------------


@st.composite
def tables(draw: st.DrawFn):
    groups, inputs = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    votes = hnp.arrays(np.int64, (groups, inputs), elements=st.integers(NO_VOTE, 2))
    labels = draw(hnp.arrays(np.int64, inputs, elements=st.integers(0, 2)))
    return draw(votes), draw(votes), labels


def replaced(benign: np.ndarray, attacked: np.ndarray, groups: tuple[int, ...]) -> np.ndarray:
    mixed = benign.copy()
    for group in groups:
        mixed[group] = attacked[group]
    return mixed


@examples(tables())
def test_what_attackers_want_is_counted_by_hand(table):
    votes, _, labels = table
    winners = np.array([winner(column, 3) for column in votes.T.tolist()])
    assert attack_gain(votes, 3, 1, True) == ((winners == 1).sum(), (votes == 1).sum())
    wrong = (winners != labels).sum(), -(votes == labels).sum()
    assert attack_gain(votes, 3, labels, False) == wrong


@examples(tables(), st.booleans())
def test_the_search_finds_the_best_single_group_and_goes_on_greedily(table, backdoor):
    benign, attacked, labels = table

    def wins(votes: np.ndarray) -> tuple[float, float]:
        return attack_gain(votes, 3, 1 if backdoor else labels, backdoor)

    before = benign.copy()
    order = worst_groups(benign, attacked, wins)
    assert (benign == before).all()
    groups = range(len(benign))
    assert sorted(order) == list(groups)
    for size in groups:
        found = wins(replaced(benign, attacked, tuple(order[: size + 1])))
        extensions = [(*order[:size], g) for g in groups if g not in order[:size]]
        assert found == max(wins(replaced(benign, attacked, e)) for e in extensions)
        subsets = itertools.combinations(groups, size + 1)
        best = max(wins(replaced(benign, attacked, s)) for s in subsets)
        # One group, or all: nothing is better. Between, a greedy search may miss the best.
        assert found == best if size in {0, len(benign) - 1} else found <= best
