"""Certificates against computed runs: on real pictures, with the runs they speak of added up again.

With closed-form heads the run without some clients, and the run in which all behave, are a matter
of seconds. So what the page "end-to-end.md" proves is looked at here: how many heads differ, and
whether labels that are certified are the same, when malicious clients lie in Step 1, learn the
coins, and then choose the heads of their groups.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from carvyfl.attacks.attack import Malicious
from carvyfl.attacks.forged_sums import ConstantHead, replacing
from carvyfl.attacks.scenario import attacked_job
from carvyfl.data.datasets import load
from carvyfl.data.partitions import build_federation
from carvyfl.groups.basis import Basis, Reading
from carvyfl.groups.coins import coins_from_seed
from carvyfl.groups.grouping import Grouping
from carvyfl.groups.methods import Beforehand, form_groups
from carvyfl.groups.slots import random_slots, without
from carvyfl.learning.job import group_job
from carvyfl.learning.one_shot.head import head
from carvyfl.learning.one_shot.sums import NEVER, Sums, add
from carvyfl.learning.one_shot.training import (
    OneShotModel,
    SumsView,
    client_sums,
    one_shot_model,
    train_group,
)
from carvyfl.learning.recipe import Recipe
from carvyfl.profiles.class_counts import class_count_types, class_counts, collect_counts
from carvyfl.profiles.methods import Profiles
from carvyfl.voting.certificate import certify
from carvyfl.voting.votes import NO_VOTE, votes

Ints = npt.NDArray[np.int64]
Members = tuple[int, ...]
CLIENTS, CLASSES, TYPES, INPUTS = 60, 10, 5, 300
REACH: dict[Reading, int] = {"given_groups": 1, "honest_only": 1, "all_honest": 2}
"""Groups that one malicious client changes, from the theorems of the page."""


def coarse(x: Tensor) -> Tensor:
    """Pictures of 7×7: a fixed feature map that is quick."""
    return torch.nn.functional.avg_pool2d(x, 4).flatten(1)


@dataclass(frozen=True)
class Opposite(Malicious):
    """The group gets the head that answers what its true one finds the least likely."""

    name: ClassVar[str] = "opposite"
    against: ClassVar[tuple[str, ...]] = ("one-shot",)

    def forge_sums(self, view: SumsView) -> list[Sums]:
        weights, biases = head(add([*view.own, *view.benign]), view.ridge)
        return replacing(view, -weights, np.where(biases > NEVER, -biases, NEVER))


class World:
    """A federation whose clients' sums are known, so that any group's head is quickly found."""

    def __init__(self) -> None:
        data = load("embedded")
        self.federation = build_federation(
            data, "class-disjoint", num_clients=CLIENTS, samples=40, seed=3, validation=0
        )
        self.module: OneShotModel = one_shot_model(coarse, (1, 28, 28), CLASSES)
        chosen = np.random.default_rng(0).permutation(len(data.test))[:INPUTS]
        rows = self.module.features.of(data.test.inputs[chosen])
        self.inputs = rows.astype(np.float64)
        job = group_job(self.federation, range(CLIENTS), self.module, Recipe(), 0)
        self.sums = [client_sums(job, client.train) for client in self.federation.clients]
        self.counts = class_counts(self.federation).values
        self.types = class_count_types(class_counts(self.federation)).labels
        assert np.bincount(self.types).tolist() == [CLIENTS // TYPES] * TYPES

    @functools.cache  # noqa: B019 - one world a module
    def group(self, members: Members, liars: Members, attack: Malicious | None) -> Group:
        """The head of a group, and what it votes."""
        if not members:
            return Group(b"", (NO_VOTE,) * INPUTS)
        job = group_job(self.federation, members, self.module, Recipe(), 0)
        if attack is not None:
            data = {number: self.federation.clients[number].train for number in liars}
            job = attacked_job(job, attack, liars, data)
        result = train_group(job, [self.sums[number] for number in members])
        assert result.votes
        assert not result.set_aside
        flat = result.weights.numpy()
        weights, biases = flat[:-CLASSES].reshape(CLASSES, -1), flat[-CLASSES:]
        best = (self.inputs @ weights.T.astype(np.float64) + biases).argmax(axis=1)
        return Group(flat.tobytes(), tuple(best.tolist()))

    def run(
        self, assignment: Ints, num_groups: int, liars: Ints, attack: Malicious | None
    ) -> list[Group]:
        """All groups of a run in which some clients attack."""
        groups = []
        for g in range(num_groups):
            members = tuple(np.flatnonzero(assignment == g).tolist())
            hostile = tuple(c for c in members if attack is not None and c in liars)
            groups.append(self.group(members, hostile, attack if hostile else None))
        return groups

    def grouped(
        self, counts: npt.NDArray[np.float32], num_groups: int, seed: int
    ) -> tuple[Grouping, Ints]:
        """Steps 1 and 2 as the package does them, on what clients say they hold."""
        types = class_count_types(collect_counts(counts, CLASSES))
        made = form_groups(
            "slots",
            num_clients=CLIENTS,
            seed=0,
            profiles=Profiles(types),
            num_groups=num_groups,
            beforehand=Beforehand(coins=coins_from_seed(seed)),
        )
        return made, types.labels


@dataclass(frozen=True)
class Group:
    """A group's head, byte for byte, and its votes."""

    head: bytes
    ballots: tuple[int, ...]


@pytest.fixture(scope="module")
def world() -> World:
    return World()


def answered(run: Sequence[Group]) -> Ints:
    """The plurality, counted here: the smallest of the classes with the most votes."""
    table = np.array([group.ballots for group in run])
    counts = np.stack([(table == c).sum(axis=0) for c in range(CLASSES)])
    return counts.argmax(axis=0)


def changed(one: Sequence[Group], other: Sequence[Group]) -> int:
    """The number of groups whose heads differ."""
    return sum(a.head != b.head for a, b in zip(one, other, strict=True))


def certified(
    run: Sequence[Group], basis: Basis, reading: Reading, m: int
) -> npt.NDArray[np.bool_]:
    """Which answers the package certifies in a reading for m malicious clients."""
    table = votes(np.array([group.ballots for group in run]), CLASSES)
    return certify(table, basis=basis).under(reading).stability >= m


def malicious_sets(m: int, types: Ints, draw: np.random.Generator) -> Iterator[Ints]:
    """Random sets of m clients, and some of every composition that one or two types can have."""
    for _ in range(4):
        yield draw.choice(CLIENTS, m, replace=False)
    for first in range(m // 2, m + 1):
        kinds = draw.permutation(TYPES)
        of_one_type, more = (draw.permutation(np.flatnonzero(types == kind)) for kind in kinds[:2])
        yield np.concatenate([of_one_type[:first], more[: m - first]])


def lies(world: World, liars: Ints, draw: np.random.Generator) -> Iterator[npt.NDArray[np.float32]]:
    """What all clients say they hold, when the malicious ones claim other types."""
    truth = world.counts
    unheard = np.zeros(CLASSES, dtype=np.float32)
    unheard[[0, 9]] = 5
    one = truth[draw.integers(CLIENTS)]
    for claim in (truth[draw.integers(0, CLIENTS, len(liars))], one, unheard, np.nan):
        said = truth.copy()
        said[liars] = claim
        yield said


def rejoined(
    alone: Ints, types: Ints, back: Ints, num_groups: int, draw: np.random.Generator
) -> Ints:
    """The run in which all take part, drawn given the run without some: the proof backwards.

    Of a type with h honest clients and μ that come back, a random number of the latter is seated,
    as in a draw of G among all; they take the empty slots first, then any, whose holders are
    benched.
    """
    full = alone.copy()
    for kind in np.unique(types[back]):
        mine = back[types[back] == kind]
        honest = np.setdiff1d(np.flatnonzero(types == kind), mine)
        held = full[honest][full[honest] >= 0]
        empty = np.setdiff1d(np.arange(num_groups), held)
        seated = len(mine)
        if len(honest) + len(mine) > num_groups:
            seated = int(draw.hypergeometric(len(mine), len(honest), num_groups))
        slots = draw.permutation(empty)[:seated]
        slots = np.concatenate([slots, draw.permutation(held)[: seated - len(slots)]])
        full[honest[np.isin(full[honest], slots)]] = -1
        full[draw.permutation(mine)[:seated]] = draw.permutation(slots)
    return full


@pytest.mark.slow
@pytest.mark.parametrize(("honest", "back"), [(2, 1), (1, 2), (3, 2), (1, 1)])
def test_rejoined_runs_are_distributed_as_runs(honest: int, back: int) -> None:
    """Given random slots of some clients, all ways to seat everybody are equally likely."""
    draw, clients, repeats = np.random.default_rng(5), honest + back, 1500
    groups: Counter[tuple[int, ...]] = Counter()
    for seed in range(repeats):
        alone = np.full(clients, -1, dtype=np.int64)
        seats = random_slots([0] * max(honest, 2), ["a"], num_groups=2, coins=coins_from_seed(seed))
        if honest == 1:  # two slots need two clients; one of them is then sent away
            seats = without(seats, [0, 0], [1], draw)
        alone[:honest] = seats[:honest]
        types, back_ = np.zeros(clients, dtype=np.int64), np.arange(honest, clients)
        groups[tuple(rejoined(alone, types, back_, 2, draw).tolist())] += 1
    assert all(sorted(slot for slot in way if slot >= 0) == [0, 1] for way in groups)
    ways = clients * (clients - 1)
    assert len(groups) == ways
    assert chisquare(list(groups.values())).pvalue > 1e-3


def compared(
    grouping: Grouping, claims: Ints, liars: Ints, types: Ints, draw: np.random.Generator
) -> dict[Reading, Ints]:
    """The groups of the runs that a certificate compares with, coupled to the attacked one."""
    here, num_groups = grouping.assignment, grouping.num_groups
    left = here.copy()
    left[liars] = -1
    alone = without(here, claims, liars, draw)
    everybody = rejoined(alone, types, liars, num_groups, draw)
    return {"given_groups": left, "honest_only": alone, "all_honest": everybody}


@pytest.mark.slow
@pytest.mark.parametrize(
    "num_groups", [8, 12, 14], ids=["more of a type than groups", "as many", "fewer"]
)
def test_certified_labels_are_those_of_the_computed_runs(world: World, num_groups: int) -> None:
    draw = np.random.default_rng(num_groups)
    most: Counter[tuple[Reading, int]] = Counter()
    num_certified: Counter[tuple[Reading, int]] = Counter()
    moved = 0
    for m in (1, 2, 3):
        for liars in malicious_sets(m, world.types, draw):
            for seed, said in enumerate(lies(world, liars, draw)):
                grouping, claims = world.grouped(said, num_groups, 1000 * m + seed)
                others = {
                    reading: world.run(assignment, num_groups, liars, None)
                    for reading, assignment in compared(
                        grouping, claims, liars, world.types, draw
                    ).items()
                }
                assert others.keys() == REACH.keys()
                rivals = draw.choice(CLASSES, 3, replace=False)
                for attack in (Opposite(), *(ConstantHead(target=int(r)) for r in rivals)):
                    attacked = world.run(grouping.assignment, num_groups, liars, attack)
                    for reading, other in others.items():
                        heads = changed(attacked, other)
                        assert heads <= REACH[reading] * m
                        most[reading, m] = max(most[reading, m], heads)
                        same = answered(attacked) == answered(other)
                        moved += int((~same).sum())
                        for run in (attacked, other):  # a certificate of either run speaks of both
                            sure = certified(run, grouping.basis, reading, m)
                            assert same[sure].all()
                            num_certified[reading, m] += int(sure.sum())
    # More than the next smaller bound is reached, and labels change: nothing here is idle.
    assert all(most[reading, m] > (c - 1) * m for reading, c in REACH.items() for m in (1, 2, 3))
    assert moved > 1000
    assert all(num_certified[reading, 1] > 1000 for reading in REACH)
