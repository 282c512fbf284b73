"""The choice of G: estimates against heads formed by hand, aims, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carvyfl import CarvyFL, group_count
from carvyfl.core.errors import CarvyError
from carvyfl.data.clients import Client, Federation, Samples
from carvyfl.data.partitions import set_aside
from carvyfl.group_count import (
    GROUP_SIZES,
    HELD_OUT,
    Candidate,
    Goal,
    GroupCount,
    aimed_level,
    best_candidate,
    candidates,
    choose_group_count,
    halfway,
)
from carvyfl.groups.exchange import anticluster_profiles
from carvyfl.groups.hashing import balanced_random
from carvyfl.learning.learners import RIDGE
from carvyfl.learning.one_shot.head import head
from carvyfl.learning.one_shot.sums import sums_of
from carvyfl.learning.one_shot.training import one_shot_model
from support.cli import naive_ca
from support.federations import NUM_CLASSES, blobs, small_net

CLIENTS, SEED = 12, 3


def federation() -> Federation:
    """Four types of one class each, of points that are not easy to tell apart."""
    clients = []
    for number in range(CLIENTS):
        data = blobs(number, 20 + number, (number % 4, (number + 1) % 4))
        noise = np.random.default_rng(number).normal(size=data.inputs.shape).astype(np.float32)
        clients.append(Client(Samples(data.inputs + noise, data.labels), data))
    return Federation(tuple(clients), NUM_CLASSES)


def profiles() -> Any:
    shares = np.zeros((CLIENTS, NUM_CLASSES), np.float32)
    for number in range(CLIENTS):
        shares[number, [number % 4, (number + 1) % 4]] = 0.5
    return shares


def choose(**goal: Any) -> GroupCount:
    everybody = np.arange(CLIENTS)
    return choose_group_count(federation(), small_net(), profiles(), everybody, SEED, Goal(**goal))


def by_hand(groups: int, assignment: Any, level: float, ridge: float = RIDGE) -> Candidate:
    """Pool each group's kept samples, and count every held-out sample's votes from scratch."""
    clients = federation().clients
    split = [
        set_aside(c.train.labels, HELD_OUT, SEED, "held out", k) for k, c in enumerate(clients)
    ]
    tried = np.concatenate(
        [c.train.inputs[held] for c, (_, held) in zip(clients, split, strict=True)]
    )
    labels = np.concatenate(
        [c.train.labels[held] for c, (_, held) in zip(clients, split, strict=True)]
    )
    ballots = []
    for group in range(groups):
        members = np.flatnonzero(assignment == group)
        inputs = np.concatenate([clients[k].train.inputs[split[k][0]] for k in members])
        truth = np.concatenate([clients[k].train.labels[split[k][0]] for k in members])
        weights, biases = head(sums_of(inputs, truth, NUM_CLASSES), ridge)
        ballots.append((tried @ weights.T + biases).argmax(axis=1))
    curve, area = naive_ca(np.stack(ballots), labels, NUM_CLASSES)
    largest = max((m for m, share in enumerate(curve) if share >= level), default=-1)
    return Candidate(groups, area, curve[0], largest)


def assert_alike(candidate: Candidate, expected: Candidate) -> None:
    assert (candidate.groups, candidate.largest_m) == (expected.groups, expected.largest_m)
    assert candidate.auc == pytest.approx(expected.auc)
    assert candidate.accuracy == pytest.approx(expected.accuracy)


@pytest.mark.parametrize(("aim", "level"), [("auc", 60.0), ("m60", 60.0), ("m90", 90.0)])
def test_estimates_are_those_of_heads_and_votes_formed_by_hand(aim, level):
    count = choose(aim=aim)
    tried = [each.groups for each in count.candidates]
    assert tried == sorted(set(tried), reverse=True)
    assert set(tried) >= {12, 6, 4, 3, 2}
    for each in count.candidates:
        formed = anticluster_profiles(profiles(), each.groups, seed=SEED)
        assert_alike(each, by_hand(each.groups, formed, level))
    random = balanced_random(CLIENTS, count.groups, SEED)
    assert_alike(count.balanced, by_hand(count.groups, random, level))
    key = "auc" if aim == "auc" else "largest_m"
    assert getattr(count.chosen, key) == max(getattr(each, key) for each in count.candidates)


@pytest.mark.parametrize("at_once", [1, 2**25])
def test_a_device_estimates_what_cores_do(at_once, monkeypatch):
    """One client's sums overflow, and it has a group of its own at G = 12."""
    monkeypatch.setattr(group_count, "STACKED_AT_ONCE", at_once)
    whole = federation()
    huge = Samples(whole.clients[5].train.inputs * np.float32(1e30), whole.clients[5].train.labels)
    clients = (*whole.clients[:5], replace(whole.clients[5], train=huge), *whole.clients[6:])
    fed = replace(whole, clients=clients)
    counts = [
        choose_group_count(fed, small_net(), profiles(), np.arange(CLIENTS), SEED, device=device)
        for device in (None, "cpu")
    ]
    assert counts[0] == counts[1]
    assert counts[0].candidates[0].groups == CLIENTS


def test_a_one_shot_model_is_tried_with_its_own_ridge():
    module = one_shot_model("none", (8,), NUM_CLASSES, 7.0)
    count = choose_group_count(federation(), module, profiles(), np.arange(CLIENTS), SEED)
    for each in count.candidates:
        formed = anticluster_profiles(profiles(), each.groups, seed=SEED)
        assert_alike(each, by_hand(each.groups, formed, 60.0, ridge=7.0))


def test_clients_without_a_profile_are_left_out():
    taking_part = np.array([0, 1, 2, 5, 6, 7, 8, 11])
    count = choose_group_count(federation(), small_net(), profiles(), taking_part, SEED)
    smaller = Federation(tuple(federation().clients[k] for k in taking_part), NUM_CLASSES)
    tried = [each.groups for each in count.candidates]
    assert tried[0] == len(smaller.clients)
    assert set(tried) >= {8, 4, 2}


@given(st.integers(2, 500))
def test_candidates_are_whole_groups_of_the_listed_sizes(clients: int) -> None:
    numbers = candidates(clients)
    assert numbers == sorted(set(numbers), reverse=True)
    assert numbers[0] == clients
    assert min(numbers) >= 2
    assert all(any(clients // size == groups for size in GROUP_SIZES) for groups in numbers)


@given(st.integers(2, 300), st.integers(1, 300))
def test_halving_the_gaps_ends_at_the_top_of_a_single_peak(clients: int, top: int) -> None:
    top = min(top, clients)
    tried = candidates(clients)
    for _ in range(clients):
        best = min(tried, key=lambda groups: abs(groups - top))
        new = halfway(tried, best)
        assert not set(new) & set(tried)
        assert all(min(tried) < groups < max(tried) for groups in new)
        if not new:
            break
        tried = sorted([*tried, *new], reverse=True)
    assert best == max(top, min(tried))


def test_one_client_is_one_group():
    assert candidates(1) == [1]


def some_candidates() -> st.SearchStrategy[list[Candidate]]:
    numbers = st.floats(0, 100)
    one = st.builds(Candidate, st.integers(1, 99), numbers, numbers, st.integers(-1, 40))
    return st.lists(one, min_size=1, max_size=8)


@given(some_candidates(), st.sampled_from(["auc", "m60"]), st.floats(0, 100))
def test_the_best_candidate_is_one_that_no_other_beats(
    tried: list[Candidate], aim: str, least: float
) -> None:
    best = best_candidate(tried, Goal(aim, least))
    enough = [each for each in tried if each.accuracy >= least]
    if not enough:
        assert best.accuracy == max(each.accuracy for each in tried)
        return
    assert best in enough
    if aim == "auc":
        assert best.auc == max(each.auc for each in enough)
    else:
        assert best.largest_m == max(each.largest_m for each in enough)
        ties = [each for each in enough if each.largest_m == best.largest_m]
        assert best.auc == max(each.auc for each in ties)


def test_an_accuracy_is_asked_for_and_missed_in_words():
    free = choose()
    floor = sorted(each.accuracy for each in free.candidates)[-2]
    asked = choose(least_accuracy=floor)
    assert asked.chosen.accuracy >= floor
    assert not any("reached an accuracy" in warning for warning in asked.warnings)
    missed = choose(least_accuracy=100.0)
    if max(each.accuracy for each in free.candidates) < 100:
        assert missed.chosen.accuracy == max(each.accuracy for each in free.candidates)
        assert any("no number of groups reached an accuracy of 100 %" in w for w in missed.warnings)


def test_groups_that_are_no_better_than_random_ones_are_warned_of():
    alone, same = Candidate(9, 200.0, 70.0, 1), Candidate(4, 300.0, 80.0, 2)
    (warning,) = GroupCount("auc", 0.0, 4, (alone, same), same).warnings
    assert "brings nothing" in warning
    worse = Candidate(4, 250.0, 80.0, 2)
    better = GroupCount("auc", 0.0, 4, (alone, same), worse)
    assert better.warnings == ()
    assert better.gain == pytest.approx(0.2)
    # Where every client is a group, random groups are the same groups.
    (warning,) = GroupCount("auc", 0.0, 9, (alone, same), alone).warnings
    assert "every client is a group of its own" in warning


def test_models_far_below_the_estimate_are_warned_of():
    chosen = Candidate(4, 300.0, 80.0, 2)
    count = GroupCount("auc", 0.0, 4, (chosen,), chosen)
    assert count.missed_by(61.0) == ()
    assert count.missed_by(95.0) == ()
    (warning,) = count.missed_by(41.3)
    assert "is 41.3 %, where 80.0 % was estimated" in warning


@pytest.mark.parametrize("aim", ["most", "m", "m101", "m-1", "m60 ", "AUC", ""])
def test_an_unknown_aim_is_refused(aim):
    with pytest.raises(CarvyError, match="is unknown; `aim` is auc") as caught:
        aimed_level(aim)
    assert "\n" not in str(caught.value)
    with pytest.raises(CarvyError, match="is unknown"):
        CarvyFL(aim=aim).fit([])


def test_aims_are_read():
    assert [aimed_level(aim) for aim in ("auc", "m0", "m60", "m100")] == [None, 0.0, 60.0, 100.0]


def test_samples_that_cannot_be_held_out_are_named():
    lonely = Federation(
        tuple(Client(one := blobs(k, 1, (k,)), one) for k in range(NUM_CLASSES)), NUM_CLASSES
    )
    with pytest.raises(CarvyError, match="set `groups`") as caught:
        choose_group_count(lonely, small_net(), profiles()[:4], np.arange(4), 0)
    assert "\n" not in str(caught.value)


def test_sums_that_overflow_are_named():
    near = federation()
    far = tuple(
        Client(Samples(client.train.inputs * np.float32(1e30), client.train.labels), client.train)
        for client in near.clients
    )
    with pytest.raises(CarvyError, match="every client's sums of features overflow"):
        choose_group_count(
            replace(near, clients=far), small_net(), profiles(), np.arange(CLIENTS), 0
        )


def test_the_picture_shows_every_candidate_and_the_choice():
    count = choose()
    curves = {curve.name: (list(curve.x), list(curve.y)) for curve in count.panel.curves}
    every = [(each.groups, each.auc) for each in reversed(count.candidates)]
    assert list(zip(*curves["CARVY-FL"], strict=True)) == every
    assert curves[f"chosen: G = {count.groups}"] == ([count.groups], [count.chosen.auc])
    assert curves["balanced random"] == ([count.groups], [count.balanced.auc])
    assert count.panel.marked == count.groups
