"""Attacks on one-shot learning: what they send, what it gives, and what it cannot reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from carvyfl.attacks.attack import Malicious
from carvyfl.attacks.badnets import BadNets
from carvyfl.attacks.campaign import AttackedRun, attack_grouping
from carvyfl.attacks.forged_sums import (
    ConstantHead,
    IndefiniteSums,
    ReplacedHead,
    ScaledSums,
    replacing,
)
from carvyfl.attacks.placement import PLACEMENTS, WORST
from carvyfl.attacks.registry import ATTACKS
from carvyfl.attacks.scenario import attacked_job
from carvyfl.attacks.untargeted import SignFlip
from carvyfl.core.errors import CarvyError
from carvyfl.data.clients import Client
from carvyfl.groups.basis import BLIND
from carvyfl.groups.grouping import Grouping
from carvyfl.learning.job import GroupJob, GroupResult
from carvyfl.learning.learners import RIDGE
from carvyfl.learning.one_shot.head import head
from carvyfl.learning.one_shot.sums import MOST_SAMPLES, NEVER, Sums, add, fault, sums_of
from carvyfl.learning.one_shot.training import SumsView, one_shot_model
from carvyfl.learning.recipe import Recipe
from carvyfl.pipeline import gather_models, plan_training, train
from support.attacked import MEAN, STD, attacked_pictures
from support.cli import naive_ca
from support.federations import small_net

Floats = npt.NDArray[np.floating]
CLASSES = 4
ON_SUMS = sorted(name for name, kind in ATTACKS.items() if "one-shot" in kind.against)
FIVE = Grouping(np.arange(10) % 5, 5, "drawn", BLIND)


def drawn_sums(seed: int, size: int, width: int, classes: Sequence[int]) -> Sums:
    """The sums of random samples, in the precision that clients send."""
    rng = np.random.default_rng(seed)
    labels = np.resize(classes, size).astype(np.int64)
    return sums_of(rng.normal(size=(size, width)) + labels[:, None] + 2, labels, CLASSES)


def seen(own: Sequence[Sums], benign: Sequence[Sums], ridge: float = 0.3) -> SumsView:
    return SumsView(tuple(own), tuple(benign), tuple(range(len(own))), CLASSES, ridge, seed=1)


def answers(found: tuple[Floats, Floats], inputs: Floats) -> npt.NDArray[np.int64]:
    best: npt.NDArray[np.int64] = (inputs @ found[0].T + found[1]).argmax(axis=1)
    return best


# What is sent --------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**20),
    width=st.integers(CLASSES, 12),
    attackers=st.integers(1, 3),
    honest=st.integers(0, 4),
    ridge=st.sampled_from([0.01, 0.3, 3.0]),
    linear=st.booleans(),
)
def test_the_group_gets_the_head_the_attackers_want(
    seed: int, width: int, attackers: int, honest: int, ridge: float, linear: bool
) -> None:
    benign = [drawn_sums(seed + k, 9 + k, width, (k % CLASSES, 1)) for k in range(honest)]
    own = [drawn_sums(seed + 50 + k, 14, width, (0, k)) for k in range(attackers)]
    if linear:  # any linear head, the head of no data
        rng = np.random.default_rng(seed)
        wanted = rng.normal(size=(CLASSES, width)), rng.normal(size=CLASSES)
    else:
        wanted = head(drawn_sums(seed + 99, 40, width, range(CLASSES)), ridge)
    sent = replacing(seen(own, benign, ridge), *wanted)
    assert [fault(one, width, CLASSES) for one in sent] == [None] * attackers
    weights, biases = head(add([*benign, *sent]), ridge)
    size = max(np.abs(wanted[0]).max(), np.abs(wanted[1]).max())
    # The same for every class may be added to the scores: no answer changes.
    assert np.abs(weights - (wanted[0] - wanted[0].mean(axis=0))).max() < 1e-6 * size
    assert np.abs(biases - (wanted[1] - wanted[1].mean())).max() < 1e-6 * size


def test_a_class_the_wanted_head_does_not_know_is_not_answered() -> None:
    benign = [drawn_sums(k, 30, 6, (2, 3)) for k in range(3)]
    wanted = head(drawn_sums(9, 40, 6, (0, 1, 3)), 0.3)
    assert wanted[1][2] == NEVER
    found = head(
        add([*benign, *replacing(seen([drawn_sums(5, 8, 6, (2,))], benign), *wanted)]), 0.3
    )
    inputs = 100 * np.random.default_rng(0).normal(size=(1000, 6))
    assert np.array_equal(answers(found, inputs), answers(wanted, inputs))


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_a_constant_head_answers_the_target_for_every_input(scale: float) -> None:
    rng = np.random.default_rng(0)
    inputs = scale * rng.normal(size=(500, 6))
    parts = [sums_of(inputs[k::5], rng.integers(0, 3, 100), CLASSES) for k in range(5)]
    for target in range(CLASSES):  # nobody holds the last one
        sent = ConstantHead(target=target).forge_sums(seen(parts[:2], parts[2:]))
        found = head(add([*parts[2:], *sent]), 0.3)
        assert (answers(found, 10 * inputs) == target).all()


def test_scaled_sums_are_those_of_as_many_copies() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(12, 5)), rng.integers(0, CLASSES, 12)
    (sent,) = ScaledSums(factor=7).forge_sums(seen([sums_of(x, y, CLASSES)], []))
    copies = sums_of(np.tile(x, (7, 1)), np.tile(y, 7), CLASSES)
    assert np.allclose(sent.second, copies.second, rtol=1e-5)
    assert np.allclose(sent.first, copies.first, rtol=1e-5, atol=1e-5)
    assert sent.counts.tolist() == copies.counts.tolist()


def test_indefinite_sums_are_usable_and_of_no_data() -> None:
    own = [drawn_sums(k, 30, 6, range(CLASSES)) for k in range(2)]
    first, second = IndefiniteSums().forge_sums(seen(own, []))
    for sent in (first, second):
        assert fault(sent, 6, CLASSES) is None
        assert np.linalg.eigvalsh(sent.second).min() < 0
    assert not np.allclose(first.second - own[0].second, second.second - own[1].second)


# In groups -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pictures() -> AttackedRun:
    return attacked_pictures(one_shot_model("none", (1, 8, 8), CLASSES), Recipe())


def hit(run: AttackedRun, job: GroupJob, attack: Malicious, malicious: Sequence[int]) -> GroupJob:
    """The job with some of its members malicious."""
    data = {
        client: attack.poisoned(job.clients[job.members.index(client)].train, rank, run.context)
        for rank, client in enumerate(malicious)
    }
    return attacked_job(job, attack, tuple(malicious), data)


def trained(run: AttackedRun, jobs: Sequence[GroupJob]) -> list[GroupResult]:
    return train({"": jobs}, run.compute)[""]


def raw_head(clients: Sequence[Client]) -> npt.NDArray[np.float32]:
    """The head of all these clients' pictures together, flat."""
    inputs = np.concatenate([client.train.inputs for client in clients])
    rows = inputs.reshape(len(inputs), -1) / np.float64(255)
    labels = np.concatenate([client.train.labels for client in clients])
    weights, biases = head(sums_of(rows, labels, CLASSES, np.float64), RIDGE)
    return np.concatenate([weights.ravel(), biases]).astype(np.float32)


@pytest.mark.parametrize("malicious", [(2,), (2, 7)])
def test_a_replaced_head_is_that_of_the_poisoned_data_alone(pictures, malicious) -> None:
    (job, *_) = plan_training(pictures.setup, Grouping(np.full(10, 0), 1, "drawn", BLIND))
    attacked = hit(pictures, job, ReplacedHead(per_class=10, target=2), malicious)
    (result,) = trained(pictures, [attacked])
    wanted = raw_head([attacked.clients[k] for k in malicious])
    assert result.stopped == "closed-form"
    assert not result.set_aside
    assert np.abs(result.weights.numpy() - wanted).max() < 2e-4  # honest sums have 24 bits
    labels = attacked.clients[2].train.labels
    assert np.bincount(labels).tolist() == [10, 10, 40, 10]  # 30 of them with the trigger


def test_poisoned_data_are_pooled_with_the_others(pictures) -> None:
    (job, *_) = plan_training(pictures.setup, FIVE)
    attacked = hit(pictures, job, BadNets(per_class=5), job.members[:1])
    (result,) = trained(pictures, [attacked])
    wanted = raw_head(attacked.clients)
    assert np.allclose(result.weights.numpy(), wanted, rtol=0, atol=1e-4)
    honest = raw_head(job.clients)
    assert not np.allclose(honest, wanted, rtol=0, atol=1e-2)


@dataclass(frozen=True)
class Sends(Malicious):
    """Sends whatever a test wants."""

    name: ClassVar[str] = "sends"
    against: ClassVar[tuple[str, ...]] = ("one-shot",)
    what: str = ""

    def forge_sums(self, view: SumsView) -> list[Sums]:
        return [HOSTILE[self.what](own) for own in view.own]


HOSTILE = {
    "NaN": lambda own: replace(own, second=np.full_like(own.second, np.nan)),
    "infinity": lambda own: replace(own, first=np.full_like(own.first, np.inf)),
    "giant second moments": lambda own: replace(own, second=1.7e308 * np.eye(own.width)),
    "giant first moments": lambda own: replace(own, first=np.full(own.first.shape, 1e300)),
    "giants that overflow float32": lambda own: replace(own, first=np.full(own.first.shape, 1e30)),
    "giant counts": lambda own: replace(own, counts=np.full(CLASSES, MOST_SAMPLES)),
    "too many": lambda own: replace(own, counts=np.full(CLASSES, 2**62)),
    "not symmetric": lambda own: replace(own, second=np.triu(own.second)),
    "negative definite": lambda own: replace(own, second=-9 * own.second),
    "negative counts": lambda own: replace(own, counts=-own.counts),
    "other shapes": lambda own: replace(own, second=np.eye(own.width + 1)),
    "nothing": lambda own: Sums(0 * own.second, 0 * own.first, 0 * own.counts),
}


@pytest.mark.parametrize(
    "attack",
    [*(Sends(what=what) for what in HOSTILE), *(ATTACKS[name]() for name in ON_SUMS)],
    ids=[*HOSTILE, *ON_SUMS],
)
def test_no_numbers_of_a_member_reach_another_group(pictures, attack) -> None:
    jobs = plan_training(pictures.setup, FIVE)
    inputs = pictures.dataset.test.inputs
    honest = trained(pictures, jobs)
    votes = gather_models(pictures.setup, honest).votes(inputs).groups
    for group in (0, 3):
        for malicious in (jobs[group].members[:1], jobs[group].members):
            hostile = list(jobs)
            hostile[group] = hit(pictures, jobs[group], attack, malicious)
            results = trained(pictures, hostile)
            cast = gather_models(pictures.setup, results).votes(inputs).groups
            for other in set(range(5)) - {group}:
                assert torch.equal(results[other].weights, honest[other].weights)
                assert np.array_equal(cast[other], votes[other])
            changed = not torch.equal(results[group].weights, honest[group].weights)
            assert changed or results[group].set_aside
            if getattr(attack, "what", "") in {"giant second moments", "giant first moments"}:
                assert (results[group].stopped, results[group].votes) == ("diverged", False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_SUMS)
def test_no_attack_goes_below_ca(name, pictures) -> None:
    jobs, test = plan_training(pictures.setup, FIVE), pictures.dataset.test
    rows = (test.inputs.reshape(len(test), -1) / np.float32(255) - MEAN) / STD
    heads = [raw_head(job.clients) for job in jobs]
    ballots = [
        answers((one[:-CLASSES].reshape(CLASSES, -1), one[-CLASSES:]), rows) for one in heads
    ]
    curve, _ = naive_ca(np.stack(ballots), test.labels, CLASSES)
    ms = (0, 1, 2, 3, 5, 8)
    promised = [curve[m] if m < len(curve) else 0.0 for m in ms]
    assert promised[2] > 20  # otherwise there is little to fall below
    settings = [ATTACKS[name]()]
    if name == "constant-head":
        settings = [ConstantHead(target=target) for target in range(CLASSES)]
    weakest = 100.0
    for attack in settings:
        placements: list[str | list[int]] = [*PLACEMENTS, [7, 2, 0, 5, 9, 1, 3, 8]]
        for placement in placements:
            found = attack_grouping(pictures, FIVE, attack, placement, ms, pictures.train)
            assert found.certified == pytest.approx(promised), placement
            assert all(a >= p - 1e-9 for a, p in zip(found.accuracy, promised, strict=True))
            assert found.promise_kept
            assert not any(found.dropped)
            weakest = min(weakest, *found.accuracy)
            if placement == WORST and found.asr is not None:
                assert found.asr[-1] > found.asr[0] + 40
    if name in {"label-flip", "scaled-sums", "constant-head"}:  # these are no idle threats
        assert weakest < promised[0] - 20


def test_a_run_that_learns_otherwise_refuses_the_attack(pictures) -> None:
    asked: list[GroupJob] = []

    def no_training(jobs: Sequence[GroupJob]) -> list[GroupResult]:
        asked.extend(jobs)
        return []

    rounds = replace(pictures, setup=replace(pictures.setup, module=small_net()))
    for run, attack, working in (
        (pictures, SignFlip(), "label-flip, scaled-sums, replaced-head"),
        (rounds, ConstantHead(), "label-flip, sign-flip, noise"),
    ):
        with pytest.raises(CarvyError, match=f"'{attack.name}' does not work .*{working}") as told:
            attack_grouping(run, FIVE, attack, "dispersed", (1,), no_training)
        assert "\n" not in str(told.value)
        assert attack.name not in str(told.value).partition("these do")[2]
    assert not asked
