"""Attacks on private learning: what they send, what it gives, and what it cannot reach."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest
import torch

from carvyfl.attacks.attack import Malicious
from carvyfl.attacks.badnets import BadNets
from carvyfl.attacks.campaign import AttackedRun, attack_grouping
from carvyfl.attacks.forged_messages import ConstantMeans, ScaledMeans, SwappedMeans
from carvyfl.attacks.placement import PLACEMENTS, WORST
from carvyfl.attacks.registry import ATTACKS
from carvyfl.attacks.untargeted import LabelFlip, SignFlip
from carvyfl.core.errors import CarvyError
from carvyfl.data.clients import Client, Federation
from carvyfl.groups.grouping import Grouping
from carvyfl.groups.slots import without
from carvyfl.learning.private.head import head
from carvyfl.learning.private.message import Messages
from carvyfl.learning.private.model import MessageView, group_head, malicious_messages
from carvyfl.pipeline import Setup, cast_votes, form_all, gather_models, plan_training, train
from carvyfl.runs.config import RunConfig
from carvyfl.runs.execute import regrouping
from carvyfl.voting.certificate import certify
from carvyfl.voting.votes import predict
from support.attacked import attacked_pictures
from support.cli import naive_ca
from support.federations import corners
from support.private import CLASSES, heard_setup, small_model

ON_MESSAGES = sorted(name for name, kind in ATTACKS.items() if "private" in kind.against)
CLIENTS = 18
CONFIG = RunConfig(
    clients=CLIENTS, learner="private", types="private-means", validation=0, groups=4, seed=4
)


@pytest.fixture(scope="module")
def run() -> AttackedRun:
    """Eighteen clients hold two classes of pictures each, in three types."""
    kinds = ((0, 1), (2, 3), (1, 2))
    clients = [Client(corners(n, 40 + n, kinds[n % 3]), corners(99, 0)) for n in range(CLIENTS)]
    types = np.arange(CLIENTS) % 3
    made = attacked_pictures(small_model(), CONFIG.training)
    setup = heard_setup(Federation(tuple(clients), CLASSES, types=types))
    return replace(made, dataset=replace(made.dataset, mean=0.0, std=1.0), setup=setup)


def sent_in(run: AttackedRun) -> Messages:
    assert run.setup.messages is not None
    return run.setup.messages


def groups_of(run: AttackedRun, method: str, setup: Setup | None = None) -> Grouping:
    formed = form_all([method], CONFIG, setup or run.setup, run.compute)
    return formed.groupings[method]


def answers(run: AttackedRun, groups: list[list[int]], messages: Messages) -> npt.NDArray[Any]:
    """What groups vote whose members sent these messages, shape (G, n)."""
    results = [
        group_head(run.setup.module, members, messages.of_clients(np.array(members)))
        for members in groups
    ]
    models = gather_models(run.setup, results)
    return np.array(cast_votes(models, run.dataset.test.inputs, run.compute).groups)


def sent_by(run: AttackedRun, attack: Malicious, *clients: int) -> dict[int, npt.NDArray[Any]]:
    data = {
        client: attack.poisoned(run.setup.federation.clients[client].train, rank, run.context)
        for rank, client in enumerate(clients)
    }
    return malicious_messages(run.setup.module, attack, data, run.setup.seed)


# What is sent --------------------------------------------------------------------------------


def test_a_message_of_poisoned_data_has_its_noise_once(run: AttackedRun) -> None:
    first, again = (sent_by(run, LabelFlip(), 3, 5) for _ in range(2))
    assert all(np.array_equal(first[k], again[k]) for k in (3, 5))
    assert np.array_equal(sent_by(run, LabelFlip(), 5)[5], first[5])
    honest = sent_in(run).units[3]
    noise = first[3][::-1].astype(float) - honest  # flipped back: the noise of both is left
    sigma = sent_in(run).sigma * 4096
    assert 0.6 < noise.std() / (np.sqrt(2) * sigma) < 1.5
    assert sent_by(run, LabelFlip(), 3)[3].dtype == np.int32


def test_forged_messages_are_what_they_say(run: AttackedRun) -> None:
    flipped = sent_by(run, LabelFlip(), 2)[2].astype(float)
    many = sent_by(run, ScaledMeans(factor=7), 2)[2]
    assert np.array_equal(many, 7 * flipped)
    most = sent_by(run, ScaledMeans(factor=10**12), 2)[2]
    assert np.array_equal(np.sign(most), np.sign(flipped))
    assert np.abs(most[flipped != 0].astype(float)).min() > 2**30
    (plain,) = sent_by(run, Malicious(), 2).values()
    swapped = sent_by(run, SwappedMeans(first=1, second=3, factor=2), 2)[2]
    assert np.array_equal(swapped[[1, 3]], 2 * plain[[3, 1]])
    assert np.array_equal(swapped[[0, 2]], plain[[0, 2]])


@pytest.mark.parametrize("target", range(CLASSES))
def test_constant_means_answer_the_target_whatever_the_others_sent(
    run: AttackedRun, target: int
) -> None:
    messages = sent_in(run).replaced(sent_by(run, ConstantMeans(target=target), 0))
    for members in ([0], [0, 4, 8], [*range(CLIENTS)]):
        matrix, biases = head(messages.of_clients(np.array(members)))
        vectors = np.random.default_rng(1).normal(size=(500, matrix.shape[1]))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        assert ((vectors @ matrix.T + biases).argmax(axis=1) == target).all()


@dataclass(frozen=True)
class Sends(Malicious):
    """Sends whatever a test wants."""

    name: ClassVar[str] = "sends"
    against: ClassVar[tuple[str, ...]] = ("private",)
    what: str = ""

    def forge_message(self, view: MessageView) -> Any:
        return HOSTILE[self.what](view.units)


HOSTILE: dict[str, Any] = {
    "floats": lambda units: units.astype(np.float64),
    "NaN": lambda units: np.full(units.shape, np.nan),
    "64 bits": lambda units: np.full(units.shape, 2**62),
    "other shapes": lambda units: units[:, :-1],
    "one class more": lambda units: np.vstack([units, units[:1]]),
    "a word": lambda units: np.array("sums"),
    "the largest": lambda units: np.full_like(units, 2**31 - 1),
    "the smallest": lambda units: np.full_like(units, -(2**31)),
    "zeros": np.zeros_like,
    "random": lambda units: (
        np.random.default_rng(0).integers(-(2**31), 2**31, units.shape).astype(np.int32)
    ),
}
UNUSABLE = {"floats", "NaN", "64 bits", "other shapes", "one class more", "a word"}


@pytest.mark.parametrize(
    "attack",
    [*(Sends(what=what) for what in HOSTILE), *(ATTACKS[name]() for name in ON_MESSAGES)],
    ids=[*HOSTILE, *ON_MESSAGES],
)
def test_no_message_of_a_member_reaches_another_group(run: AttackedRun, attack: Malicious) -> None:
    jobs = plan_training(run.setup, groups_of(run, "flcert"))
    honest = train({"": jobs}, run.compute)[""]
    large = np.argsort([-len(job.members) for job in jobs], kind="stable")
    for group in large[:2].tolist():
        member = jobs[group].members[0]
        data = attack.poisoned(jobs[group].clients[0].train, 0, run.context)
        poisoned = (replace(jobs[group].clients[0], train=data), *jobs[group].clients[1:])
        hostile = list(jobs)
        hostile[group] = replace(jobs[group], clients=poisoned, attack=attack, malicious=(member,))
        results = train({"": hostile}, run.compute)[""]
        for other in set(range(len(jobs))) - {group}:
            assert torch.equal(results[other].weights, honest[other].weights)
        aside = getattr(attack, "what", "") in UNUSABLE
        assert list(results[group].set_aside) == [member] * aside
        if aside:  # as if the member were not there
            others = jobs[group].members[1:]
            alone = sent_in(run).of_clients(np.array(others))
            again = group_head(run.setup.module, others, alone)
            assert torch.equal(results[group].weights, again.weights)


# What it cannot reach ------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["carvy", "slots", "flcert"])
@pytest.mark.parametrize("name", ON_MESSAGES)
def test_no_attack_goes_below_ca(run: AttackedRun, name: str, method: str) -> None:
    """The curve is that of the definition, on votes that no attack has to do with."""
    grouping, ms, test = groups_of(run, method), (0, 1, 2, 3), run.dataset.test
    members = [group.tolist() for group in grouping.groups]
    honest = answers(run, members, sent_in(run))
    curve, _ = naive_ca(honest, test.labels, CLASSES)
    promised = [curve[m] if m < len(curve) else 0.0 for m in ms]
    assert promised[1] > 20  # otherwise there is little to fall below
    attack, weakest = ATTACKS[name](), 100.0
    seated = np.flatnonzero(grouping.assignment >= 0).tolist()
    placements: list[str | list[int]] = [*PLACEMENTS, seated[::-1]]
    for placement in placements:
        found = attack_grouping(run, grouping, attack, placement, ms, run.train)
        assert found.certified == pytest.approx(promised), placement
        assert all(a >= p - 1e-9 for a, p in zip(found.accuracy, promised, strict=True))
        assert found.promise_kept
        assert not any(found.dropped)
        weakest = min(weakest, *found.accuracy)
        if placement == WORST and name == "badnets":
            assert found.asr is not None
            assert found.asr[-1] > found.asr[0]
    if name in {"scaled-means", "constant-means"}:  # these are no idle threats
        assert weakest < promised[0] - 10


@pytest.mark.parametrize("name", ON_MESSAGES)
def test_messages_that_lie_in_step_one_find_other_groups_and_no_lower_accuracy(
    run: AttackedRun, name: str
) -> None:
    """Groups are formed anew of the honest clients' messages, as they are, and the forged ones."""
    attack, test = ATTACKS[name](step_one="poisoned"), run.dataset.test
    for method in ("carvy", "slots", "flcert"):
        grouping = groups_of(run, method)
        again = regrouping(method, CONFIG, run.setup, run.compute)
        liars = np.flatnonzero(grouping.assignment >= 0)[:3].tolist()
        found = attack_grouping(run, grouping, attack, liars, (0, 1, 2, 3), run.train, again)
        assert found.promise_kept
        for m in (1, 2, 3):
            messages = sent_in(run).replaced(sent_by(run, attack, *liars[:m]))
            poisoned = replace(run.setup, messages=messages)
            formed = groups_of(run, method, poisoned)
            votes = answers(run, [group.tolist() for group in formed.groups], messages)
            right = 100 * float(np.mean(_plurality(votes) == test.labels))
            assert found.accuracy[m] == pytest.approx(right)


def _plurality(ballots: npt.NDArray[Any]) -> npt.NDArray[Any]:
    counts = np.stack([(ballots == c).sum(axis=0) for c in range(CLASSES)])
    best: npt.NDArray[Any] = np.where(counts.any(axis=0), counts.argmax(axis=0), -1)
    return best


@pytest.mark.parametrize("name", ON_MESSAGES)
@pytest.mark.parametrize("liars", [(0,), (4, 7), (1, 2, 3)])
def test_certificates_of_slots_hold_whatever_was_sent_in_step_one(
    run: AttackedRun, name: str, liars: tuple[int, ...]
) -> None:
    """Both readings against whole runs: all behave, or the malicious are not there."""
    test, m = run.dataset.test, len(liars)
    honest = groups_of(run, "slots")
    assert {"honest_only", "all_honest"} <= set(honest.basis.readings)
    messages = sent_in(run).replaced(sent_by(run, ATTACKS[name](), *liars))
    formed = form_all(["slots"], CONFIG, replace(run.setup, messages=messages), run.compute)
    attacked = formed.groupings["slots"]
    votes = answers(run, [group.tolist() for group in attacked.groups], messages)
    right = 100 * float(np.mean(_plurality(votes) == test.labels))
    assert formed.profiles is not None
    labels = formed.profiles.types.labels
    alone = without(attacked.assignment, labels, np.array(liars), np.random.default_rng(2))
    references = {
        "all_honest": [group.tolist() for group in honest.groups],
        "honest_only": [np.flatnonzero(alone == g).tolist() for g in range(honest.num_groups)],
    }
    for reading, groups in references.items():
        cast = answers(run, groups, sent_in(run))
        curve, _ = naive_ca(cast, test.labels, CLASSES)
        reach = m * getattr(honest.basis, reading)
        assert right >= (curve[reach] if reach < len(curve) else 0.0) - 1e-9, reading


def test_honest_clients_are_not_asked_again(
    run: AttackedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(*_: object) -> None:
        raise AssertionError("an honest client was asked again")

    monkeypatch.setattr("carvyfl.learning.private.model.simulated_messages", asked)
    grouping = groups_of(run, "carvy")
    again = regrouping("carvy", CONFIG, run.setup, run.compute)
    attack_grouping(run, grouping, LabelFlip("poisoned"), [1, 6], (0, 2), run.train, again)


@pytest.mark.parametrize(
    ("attack", "words"),
    [
        (SignFlip(), "'sign-flip' does not work against learner 'private'.*constant-means"),
        (SwappedMeans(second=9), "target 9 is no class"),
        (ConstantMeans(target=4), "target 4 is no class"),
        (BadNets(target=4), "target 4 is no class"),
    ],
)
def test_attacks_that_make_no_sense_are_refused(
    run: AttackedRun, attack: Malicious, words: str
) -> None:
    with pytest.raises(CarvyError, match=words):
        attack_grouping(run, groups_of(run, "flcert"), attack, "dispersed", (1,), run.train)


def test_certify_and_predict_are_those_of_the_definition(run: AttackedRun) -> None:
    grouping, test = groups_of(run, "flcert"), run.dataset.test
    results = run.train(plan_training(run.setup, grouping))
    votes = cast_votes(gather_models(run.setup, results), test.inputs, run.compute)
    assert np.array_equal(predict(votes), _plurality(np.array(votes.groups)))
    curve, _ = naive_ca(np.array(votes.groups), test.labels, CLASSES)
    assert certify(votes, test.labels, grouping.basis).ca().tolist() == pytest.approx(curve)
