"""Attacks against independent formulas and worked examples, and their parity over engines."""

from __future__ import annotations

import dataclasses
from itertools import product

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import nn

from carvyfl.attacks.attack import AttackContext, Malicious
from carvyfl.attacks.badnets import (
    CONTROLS,
    BadNets,
    ConstrainAndScale,
    DistributedTrigger,
    Trigger,
    source_pictures,
    stamp,
)
from carvyfl.attacks.forged_sums import ConstantHead, IndefiniteSums, ReplacedHead, ScaledSums
from carvyfl.attacks.registry import ATTACKS
from carvyfl.attacks.scenario import attacked_job
from carvyfl.attacks.untargeted import ALittleIsEnough, LabelFlip, MinMax, Noise, SignFlip
from carvyfl.core.errors import CarvyError
from carvyfl.data.clients import Client, Federation, Samples
from carvyfl.data.datasets import DataSet
from carvyfl.learning.backends import Gpus
from carvyfl.learning.job import GroupState, group_job
from carvyfl.learning.models import build_model
from carvyfl.learning.recipe import Recipe
from carvyfl.learning.scaffold.adversary import RoundView
from carvyfl.learning.scaffold.aggregation import AGGREGATION_RULES
from carvyfl.learning.scaffold.arithmetic import mean, server_step
from carvyfl.learning.scaffold.client import Batches, FlatNet, local_epoch, prepared
from carvyfl.learning.scaffold.group import train_group

MEAN, STD = 0.1307, 0.3081  # MNIST's
ON_ROUNDS = sorted(name for name, kind in ATTACKS.items() if "scaffold" in kind.against)


def pictures(per_class: int = 6, classes: int = 4, seed: int = 0) -> Samples:
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), per_class)
    return Samples(rng.integers(0, 256, (len(labels), 1, 9, 9), dtype=np.uint8), labels)


def context(classes: int = 4) -> AttackContext:
    return AttackContext(pictures(classes=classes), classes, MEAN, STD, seed=3)


def view(malicious: int = 2, benign: int = 3, size: int = 7, server: float = 1.0) -> RoundView:
    random = torch.Generator().manual_seed(5)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random)

    return RoundView(
        weights=draw(size),
        server_control=draw(size),
        trained=draw(malicious, size),
        controls=draw(malicious, size),
        steps=torch.tensor([[4.0], [3.0], [5.0]][:malicious]),
        benign_weights=draw(benign, size),
        benign_controls=draw(benign, size),
        members=tuple(range(malicious)),
        own_weight=float(malicious),
        all_weight=float(malicious + benign),
        lr=0.1,
        server_step=server,
        round_=2,
        seed=1,
    )


# The backdoor --------------------------------------------------------------------------------


def stamped(inputs: np.ndarray) -> np.ndarray:
    return stamp(inputs, Trigger().pixels, 1.0, MEAN, STD)


@pytest.mark.parametrize("kind", ["uint8", "float32"])
def test_the_trigger_is_the_bottom_right_corner_at_one_after_normalisation(kind: str):
    clean = pictures().inputs
    if kind == "float32":
        clean = clean.astype(np.float32) / np.float32(255)
    found = stamped(clean)
    assert (found[:, :, :6] == clean[:, :, :6]).all()
    assert (found[:, :, :, :6] == clean[:, :, :, :6]).all()
    seen = (found[:, 0, 6:, 6:] / (255 if kind == "uint8" else 1) - MEAN) / STD
    # An 8-bit picture has steps of 1/255, so the value is right to half of one.
    assert np.abs(seen - 1).max() <= (0.5 / 255 / STD + 1e-9 if kind == "uint8" else 1e-6)


def test_poison_is_a_fixed_number_of_every_other_class_relabelled():
    attack = BadNets(per_class=4)
    data = attack.poisoned(pictures(), 0, context())
    assert len(data) == 3 * 4
    assert (data.labels == 0).all()
    again = BadNets(per_class=4).poisoned(pictures(seed=9), 5, context())
    assert (again.inputs == data.inputs).all()  # one fixed subset, whoever trains on it
    originals = source_pictures(context().pool, 0, 4, seed=3)
    assert np.bincount(originals.labels).tolist() == [0, 4, 4, 4]
    assert len(triggered(pictures())) == (pictures().labels != 0).sum()


def triggered(test: Samples) -> np.ndarray:
    data = DataSet("pictures", test, test, 4, MEAN, STD, tuple("abcd"))
    return BadNets().backdoor(data).inputs


def test_a_distributed_trigger_adds_up_to_the_whole():
    trigger, clean = Trigger(), pictures()
    parts = [trigger.part(i, 4) for i in range(4)]
    assert sorted(sum(parts, ())) == sorted(trigger.pixels) == [*product((-3, -2, -1), repeat=2)]
    assert trigger.part(4, 4) == trigger.part(0, 4)
    attack = DistributedTrigger(per_class=2)
    first, second = (attack.poisoned(clean, rank, context()).inputs for rank in (0, 1))
    assert (first != second).any()


# What is sent --------------------------------------------------------------------------------


@pytest.mark.parametrize("server", [1.0, 0.5, 2.0])
@pytest.mark.parametrize("malicious", [1, 2])
def test_model_replacement_puts_the_attackers_model_in_the_servers_place(server, malicious):
    # Bagdasaryan et al.'s assumption: the benign members have converged, they send w.
    known = view(malicious, 3, server=server)
    known = dataclasses.replace(known, benign_weights=known.weights.repeat(3, 1))
    sent, _ = BadNets().forge(known)
    after = server_step(known.weights, mean(torch.cat([sent, known.benign_weights])), server)
    torch.testing.assert_close(after, known.trained.mean(dim=0), rtol=1e-4, atol=1e-5)


def test_the_four_readings_of_the_control_variate():
    known = view()
    shift = known.server_control - known.controls
    honest = (known.weights - known.trained) / (known.steps * known.lr) - shift
    sent, control = BadNets(control="unscaled").forge(known)
    torch.testing.assert_close(control, honest)
    torch.testing.assert_close(BadNets(control="corrected").forge(known)[1], honest)
    assert torch.equal(BadNets(control="none").forge(known)[1], known.controls)
    scaled = (known.weights - sent) / (known.steps * known.lr) - shift
    torch.testing.assert_close(BadNets(control="scaled").forge(known)[1], scaled)
    assert [BadNets(control=name).corrected for name in CONTROLS] == [False, False, True, True]


def test_constrain_and_scale_stays_within_its_bound_and_near_the_model():
    known, attack = view(1, 3), ConstrainAndScale(bound=1.5)
    sent, _ = attack.forge(known)
    largest = (known.benign_weights - known.weights).norm(dim=1).max()
    assert (sent - known.weights).norm() <= 1.5 * largest + 1e-4
    alone = dataclasses.replace(
        known,
        benign_weights=torch.empty((0, 7)),
        benign_controls=torch.empty((0, 7)),
        all_weight=1.0,
    )
    torch.testing.assert_close(attack.forge(alone)[0], known.trained)  # factor 1/1, no bound
    data = attack.poisoned(pictures(2), 0, context())
    assert len(data) == len(pictures(2)) + 3 * 6  # its own, and all it found of other classes


def test_label_flipping_mirrors_the_classes():
    own = pictures()
    flipped = LabelFlip().poisoned(own, 0, context())
    assert (flipped.labels + own.labels == 3).all()
    assert flipped.inputs is own.inputs


def test_sign_flipping_reverses_the_change():
    known = view()
    sent, control = SignFlip(scale=2.0).forge(known)
    torch.testing.assert_close(sent - known.weights, -2 * (known.trained - known.weights))
    honest = Malicious().forge(known)[1]
    reversed_ = -2 * (honest - known.server_control)
    torch.testing.assert_close(control - known.server_control, reversed_)


def test_noise_is_normal_and_of_the_announced_length():
    known = view(1, 2, size=20_000)
    sent, _ = Noise(scale=3.0).forge(known)
    change = (sent - known.weights)[0]
    length = 3 * float((known.trained - known.weights).norm())
    assert float(change.norm()) == pytest.approx(length, rel=1e-4)
    standard = (change / change.std()).double().numpy()
    assert abs(standard.mean()) < 0.03
    assert np.mean(np.abs(standard) < 1) == pytest.approx(0.6827, abs=0.015)
    other = Noise().forge(dataclasses.replace(known, members=(7,)))[0]
    assert not torch.equal(other, Noise().forge(known)[0])


def test_alie_by_the_example_of_the_paper():
    # Baruch et al., section 3: n = 50, m = 24 needs s = 2 supporters, z = Φ⁻¹(24/26) ≈ 1.43.
    assert ALittleIsEnough.deviations(50, 24) == pytest.approx(norm.ppf(24 / 26))
    known = view(2, 5)
    sent, _ = ALittleIsEnough().forge(known)
    rows = known.benign_weights.numpy()
    z = ALittleIsEnough.deviations(7, 2)
    expected = rows.mean(axis=0) - z * rows.std(axis=0, ddof=1)
    np.testing.assert_allclose(sent.numpy(), np.stack([expected, expected]), rtol=1e-4, atol=1e-5)


def test_min_max_is_as_far_as_two_benign_reports_and_no_farther():
    known = view(1, 5)
    sent, _ = MinMax().forge(known)
    rows = known.benign_weights.double()
    limit = max(float((a - b).norm()) for a in rows for b in rows)
    farthest = max(float((sent[0].double() - row).norm()) for row in rows)
    assert farthest == pytest.approx(limit, rel=1e-4)


def test_an_attacker_alone_in_its_group_sends_something_finite():
    known = dataclasses.replace(
        view(1), benign_weights=torch.empty((0, 7)), benign_controls=torch.empty((0, 7))
    )
    for kind in (ATTACKS[name] for name in ON_ROUNDS):
        for sent in kind().forge(known):
            assert sent.shape == (1, 7)
            assert sent.isfinite().all(), kind.name


# In training ---------------------------------------------------------------------------------


def picture_federation() -> Federation:
    clients = []
    for number, size in enumerate([19, 8, 33, 12]):
        data = pictures(per_class=12, seed=number)
        own = np.random.default_rng(number).permutation(len(data))[: size + 6]
        chosen = data.take(own)
        clients.append(Client(chosen.take(np.arange(size)), chosen.take(np.arange(size, size + 6))))
    return Federation(tuple(clients), 4, MEAN, STD)


def attacked(attack, members, malicious, **settings):
    module = build_model("compact-cnn", (1, 9, 9), 4, seed=1)
    recipe = Recipe(rounds=3, lr=0.02, batch_size=8, **settings)
    job = group_job(picture_federation(), members, module, recipe, 2)
    data = {
        client: attack.poisoned(job.clients[members.index(client)].train, rank, context())
        for rank, client in enumerate(malicious)
    }
    return attacked_job(job, attack, tuple(malicious), data)


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_ROUNDS)
def test_engines_agree_under_every_attack(name):
    attack = ATTACKS[name]()
    jobs = [
        attacked(attack, [0, 1, 2], [1]),
        attacked(attack, [0, 2, 3], [0, 3], server_step=0.5),
        attacked(attack, [0, 1, 2, 3], [2], aggregation="trimmed-mean", tolerated=1),
        attacked(attack, [0, 1, 2], [2], algorithm="fedavg"),
        attacked(attack, [3], [3]),
    ]
    found = dict(Gpus("cpu", "fp32").train_groups(jobs, lambda position, rounds: None))
    for position, job in enumerate(jobs):
        expected = train_group(job)
        torch.testing.assert_close(found[position].weights, expected.weights, rtol=1e-3, atol=1e-3)
        assert found[position].stopped == expected.stopped


@pytest.mark.parametrize("name", sorted(n for n, rule in AGGREGATION_RULES.items() if rule.robust))
def test_engines_agree_with_every_robust_rule(name):
    tolerated = 1 if name in {"krum", "multi-krum", "trimmed-mean"} else 0
    job = attacked(SignFlip(), [0, 1, 2, 3], [2], aggregation=name, tolerated=tolerated)
    found = dict(Gpus("cpu", "fp32").train_groups([job], lambda position, rounds: None))
    torch.testing.assert_close(found[0].weights, train_group(job).weights, rtol=1e-3, atol=1e-3)


def test_fedavg_stays_fedavg_under_attack():
    job = attacked(SignFlip(), [0, 1, 2], [2], algorithm="fedavg")
    states: list[GroupState] = []
    train_group(job, on_round=states.append)
    assert len(states) == 3
    for state in states:
        assert not state.server.any()
        assert not state.controls.any()


def test_the_key_of_a_job_tells_attacks_apart_and_benign_jobs_keep_theirs():
    benign = attacked(BadNets(), [0, 1, 2], [])
    assert benign.attack is None
    keys = {benign.key()}
    for attack in (BadNets(), BadNets(control="none"), LabelFlip(), Noise(), Noise(scale=2.0)):
        keys.add(attacked(attack, [0, 1, 2], [1]).key())
        keys.add(attacked(attack, [0, 1, 2], [2]).key())
    assert len(keys) == 11


@pytest.mark.parametrize("members", [[0, 1, 2], [1]])
def test_a_group_driven_to_nan_loses_its_vote_and_stops_nothing(members):
    result = train_group(attacked(SignFlip(scale=1e30), members, [1]))
    assert result.stopped in {"diverged", "empty"}
    assert not result.votes


def test_closeness_pulls_back_to_the_model_received():
    # Inputs of zero have no gradient. With a constant correction v the epoch is the recursion
    # y ← y - η (v + λ (y - x)), hence y - x = -(v/λ) (1 - (1 - ηλ)^K).
    net = FlatNet(nn.Linear(3, 2, bias=False))
    start, push = net.weights.clone(), torch.arange(1.0, 7.0)
    data = Batches(torch.zeros((12, 3)), torch.zeros(12, dtype=torch.int64))
    local_epoch(net, data, push, lr=0.1, batch_size=4, seed=0, client=0, round_=0, pull=2.0)
    torch.testing.assert_close(net.weights - start, -push / 2 * (1 - (1 - 0.1 * 2) ** 3))


def test_badnets_teaches_its_trigger():
    """A single group of honest members and one attacker: the backdoor works, by real training."""
    job = attacked(BadNets(per_class=6), [0, 1, 2, 3], [2])
    job = dataclasses.replace(job, recipe=dataclasses.replace(job.recipe, rounds=12, lr=0.05))
    result = train_group(job)
    net = FlatNet(job.module)
    net.load(result.weights)
    test = triggered(pictures(seed=50))
    fooled = net.logits(prepared(test, MEAN, STD)).argmax(dim=1)
    assert float((fooled == 0).float().mean()) > 0.8


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: BadNets(control="both"), "unknown control variate"),
        (lambda: BadNets(target=4).poisoned(pictures(), 0, context()), "target 4 is no class"),
        (lambda: ConstantHead(target=4).poisoned(pictures(), 0, context()), "target 4 is no class"),
        *(
            (lambda kind=kind, given=given: kind(**given), words)
            for kind, given, words in (
                (LabelFlip, {"step_one": "late"}, "step_one must be honest or poisoned"),
                (ConstantHead, {"step_one": "late"}, "step_one must be honest or poisoned"),
                (BadNets, {"target": -1}, "target must be at least 0"),
                (ReplacedHead, {"target": -1}, "target must be at least 0"),
                (BadNets, {"per_class": 0}, "per_class must be at least 1"),
                (DistributedTrigger, {"parts": 0}, "parts must be 1 to 9"),
                (DistributedTrigger, {"parts": 10}, "parts must be 1 to 9"),
                (Noise, {"scale": float("inf")}, "scale must be a finite number"),
                (Noise, {"scale": float("nan")}, "scale must be at least 0"),
                (SignFlip, {"scale": -1.0}, "scale must be at least 0"),
                (ConstrainAndScale, {"bound": -1.0}, "bound must be at least 0"),
                (ConstrainAndScale, {"closeness": -1.0}, "closeness must be at least 0"),
                (IndefiniteSums, {"scale": -1.0}, "scale must be at least 0"),
                (ScaledSums, {"factor": 0}, "factor must be at least 1"),
            )
        ),
        *((lambda s=s: stamped(np.zeros(s, np.uint8)), "picture") for s in ((5, 9), (5, 1, 2, 9))),
    ],
)
def test_settings_that_mean_nothing_are_refused(make, words):
    with pytest.raises(CarvyError, match=words):
        make()
