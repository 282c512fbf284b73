"""The vote of all subsets: the certificate against every subset, every attack and many samples."""

from __future__ import annotations

import itertools
from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carvyfl.core.errors import CarvyError
from carvyfl.voting.votes import NO_VOTE, votes
from reproduction.studies.subsets import certified_clients, sampled_radius, touched_share

CLASSES = 3


def subsets(clients: int, size: int) -> list[tuple[int, ...]]:
    return list(itertools.combinations(range(clients), size))


def survives(cast: np.ndarray, answer: int, clients: int, size: int, m: int) -> bool:
    """Whether no m clients, rewriting all votes of their subsets, make the answer lose or tie."""
    all_subsets = subsets(clients, size)
    for chosen in itertools.combinations(range(clients), m):
        safe = [not set(chosen) & set(subset) for subset in all_subsets]
        rest = np.bincount(cast[safe & (cast != NO_VOTE)], minlength=CLASSES)
        # The worst is to give every rewritten vote to one rival.
        if any(
            rest[answer] <= rest[c] + len(safe) - sum(safe) for c in range(CLASSES) if c != answer
        ):
            return False
    return True


@st.composite
def ensembles(draw: st.DrawFn) -> tuple[int, int, np.ndarray]:
    clients = draw(st.integers(3, 6))
    size = draw(st.integers(1, clients - 1))
    vote = st.one_of(st.just(0), st.just(0), st.integers(NO_VOTE, CLASSES - 1))
    total = comb(clients, size)
    return clients, size, np.array(draw(st.lists(vote, min_size=total, max_size=total)))


@given(ensembles())
def test_what_is_certified_survives_every_attack(case: tuple[int, int, np.ndarray]):
    clients, size, cast = case
    for answer in range(CLASSES):
        certified_m = int(certified_clients([np.mean(cast == answer)], clients, size)[0])
        for m in range(certified_m + 1):
            assert survives(cast, answer, clients, size, m)


@pytest.mark.parametrize(("clients", "size"), [(3, 1), (5, 1), (6, 1), (5, 2), (6, 2), (7, 2)])
def test_it_is_tight_where_all_agree(clients, size):
    cast = np.zeros(comb(clients, size), dtype=int)
    certified_m = int(certified_clients([1.0], clients, size)[0])
    assert survives(cast, 0, clients, size, certified_m)
    assert not survives(cast, 0, clients, size, certified_m + 1)


@pytest.mark.parametrize("m", range(7))
def test_touched_share_counts_subsets(m):
    touched = [any(client < m for client in subset) for subset in subsets(6, 3)]
    assert float(touched_share(6, 3, m)) == pytest.approx(np.mean(touched))


@pytest.mark.parametrize("shares", [(7, 8, 0), (8, 7, 0), (5, 5, 5), (11, 4, 0), (13, 1, 1)])
def test_samples_seldom_certify_too_much(shares):
    """Three inputs in every trial: all that is certified of them is true, but for one in five."""
    clients, size, confidence, trials = 6, 2, 0.8, 400
    draw = np.random.default_rng(sum(shares[:1]))
    cast = np.stack([draw.permutation(np.repeat(np.arange(CLASSES), shares)) for _ in range(3)])
    truth = [
        [
            next((m for m in range(clients) if not survives(row, c, clients, size, m)), clients) - 1
            for c in range(CLASSES)
        ]
        for row in cast
    ]
    wrong = certified = 0
    for _ in range(trials):
        sample = cast[:, draw.integers(cast.shape[1], size=60)]
        certified_m = sampled_radius(votes(sample.T, CLASSES), clients, size, confidence)
        answers = [np.argmax(np.bincount(row, minlength=CLASSES)) for row in sample]
        wrong += any(certified_m[i] > truth[i][c] for i, c in enumerate(answers))
        certified += int((certified_m >= 0).sum())
    assert wrong <= 0.2 * trials + 3 * np.sqrt(0.16 * trials)
    assert certified or max(shares) < 9


@pytest.mark.parametrize("inputs", [1, 2, 3])
@pytest.mark.parametrize("hits", [35, 38, 40])
def test_the_level_is_shared_by_all_inputs_and_halved(inputs, hits):
    """The bound is the least p of which so many hits have a chance of α/2n; here, in steps of m."""
    groups, clients, level = 40, 4000, Fraction(1, 10) / (2 * inputs)

    def chance(p: Fraction) -> Fraction:
        tail = range(hits, groups + 1)
        return sum((comb(groups, t) * p**t * (1 - p) ** (groups - t) for t in tail), Fraction(0))

    cast = np.zeros((groups, inputs), int)
    cast[hits:] = 1
    (certified_m, *_) = sampled_radius(votes(cast, 2), clients, 1, 0.9).tolist()
    half = Fraction(1, 2)
    assert chance(half + Fraction(certified_m, clients)) < level
    assert chance(half + Fraction(certified_m + 1, clients)) >= level


def test_groups_without_a_vote_count_against_every_class():
    cast = np.zeros((50, 2), int)
    cast[:30, 1] = NO_VOTE
    certified_m = sampled_radius(votes(cast, 2), 40, 1, 0.99)
    assert certified_m[0] > 0
    assert certified_m[1] == -1


def test_impossible_settings_are_refused():
    cast = votes(np.zeros((5, 1), int), 2)
    with pytest.raises(CarvyError, match="confidence"):
        sampled_radius(cast, 10, 2, 1.0)
    with pytest.raises(CarvyError, match="subsets of 11"):
        sampled_radius(cast, 10, 11, 0.9)
