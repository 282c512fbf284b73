"""SCAFFOLD against a quadratic whose gradients are known, and against FedAvg."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from carvyfl.data.clients import Client, Federation, Samples
from carvyfl.learning.job import GroupResult, group_job, job_keys, stopped
from carvyfl.learning.recipe import Recipe, stale_rounds
from carvyfl.learning.scaffold.arithmetic import Update, client_control, local_step_, mean
from carvyfl.learning.scaffold.client import Batches, FlatNet, honest, local_epoch
from carvyfl.learning.scaffold.group import train_group


def quadratic_epoch(start, shift, a, b, lr, steps):
    """Step on f(w) = a (w - b)² / 2, whose gradient a (w - b) is known; return y, gradients."""
    weights, gradients = start.clone(), []
    for _ in range(steps):
        gradients.append(a * (weights - b))
        local_step_(weights, gradients[-1], shift, lr)
    return weights, torch.stack(gradients)


def test_control_variate_is_the_mean_local_gradient_of_that_round():
    recipe = Recipe(rounds=5, lr=0.1, lr_min=0.001)
    a = torch.tensor([1.0, 3.0, 0.5], dtype=torch.float64)
    b = torch.tensor([2.0, -1.0, 4.0], dtype=torch.float64)
    server, control = (
        torch.tensor([0.3, -0.2, 0.1]).double(),
        torch.tensor([0.1, 0.4, -0.5]).double(),
    )
    weights = torch.zeros(3, dtype=torch.float64)
    for round_ in range(recipe.rounds):
        lr = recipe.learning_rate(round_)
        shift = server - control
        end, gradients = quadratic_epoch(weights, shift, a, b, lr, steps=7)
        control = client_control(shift, weights, end, 7, lr)
        torch.testing.assert_close(control, gradients.mean(0))
        weights = end


def test_scaffold_finds_the_common_optimum_where_fedavg_drifts():
    # f_i = a_i (w - b_i)² / 2 with unequal curvature: the minimum of the mean is known.
    a, b = torch.tensor([[1.0], [9.0]]).double(), torch.tensor([[4.0], [0.0]]).double()
    optimum = (a * b).sum() / a.sum()
    lr, steps = 0.05, 20
    results = {}
    for use_controls in (True, False):
        weights, controls = torch.zeros(1).double(), torch.zeros(2, 1).double()
        for _ in range(300):
            server = mean(controls)
            ends = []
            for i in range(2):
                shift = (server - controls[i]) * use_controls
                end, _ = quadratic_epoch(weights, shift, a[i], b[i], lr, steps)
                ends.append(end)
                if use_controls:
                    controls[i] = client_control(shift, weights, end, steps, lr)
            weights = mean(torch.stack(ends))
        results[use_controls] = abs(float(weights - optimum))
    assert results[True] < 1e-9
    assert results[False] > 0.1


def test_mean_is_equal_weight_and_fedavg_weighs_by_size():
    vectors = torch.tensor([[0.0, 3.0], [6.0, 0.0]])
    assert mean(vectors).tolist() == [3.0, 1.5]
    assert mean(vectors, torch.tensor([1.0, 2.0])).tolist() == [4.0, 1.0]


def test_cosine_schedule_matches_torch():
    recipe = Recipe(rounds=30, lr=0.01, lr_min=0.0001)
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=recipe.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 30, eta_min=recipe.lr_min)
    for round_ in range(30):
        assert recipe.learning_rate(round_) == pytest.approx(optimiser.param_groups[0]["lr"])
        optimiser.step()
        schedule.step()


def test_patience_counts_rounds_without_enough_improvement():
    recipe = Recipe(patience=2, min_improvement=0.01)
    accuracies = [0.5, 0.505, 0.52, 0.52, 0.529]
    stale = [stale_rounds(accuracies[: made + 1], recipe) for made in range(5)]
    assert stale == [0, 1, 0, 1, 2]
    assert stopped(True, True, accuracies, recipe) == "patience"
    assert stopped(True, True, accuracies[:4], recipe) is None
    assert stopped(True, True, accuracies, dataclasses.replace(recipe, patience=None)) is None
    assert stale_rounds([math.nan], recipe) == 1


def blobs(seed, size, classes=(0, 1, 2)):
    rng = np.random.default_rng(seed)
    labels = rng.choice(classes, size)
    inputs = rng.normal(size=(size, 4)).astype(np.float32) + 2 * np.eye(4, dtype=np.float32)[labels]
    return Samples(inputs, labels.astype(np.int64))


def linear():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))


def job(clients, **recipe):
    settings = {"rounds": 4, "lr": 0.05, "batch_size": 8} | recipe
    federation = Federation(tuple(clients), 3)
    return group_job(federation, range(len(clients)), linear(), Recipe(**settings), seed=1)


def test_one_epoch_is_plain_sgd_over_every_sample_once_with_a_short_last_batch(monkeypatch):
    module = nn.Sequential(nn.Linear(4, 3))
    reference = copy.deepcopy(module)
    net, data, batches = FlatNet(module), Batches.of(blobs(3, 21), 0.0, 1.0), []
    backward = net.backward

    def spy(inputs, labels, key):
        batches.append((inputs, labels))
        backward(inputs, labels, key)

    monkeypatch.setattr(net, "backward", spy)
    zero = torch.zeros_like(net.weights)
    steps = local_epoch(net, data, zero, lr=0.1, batch_size=8, seed=0, client=5, round_=2)
    assert steps == 3
    assert [len(labels) for _, labels in batches] == [8, 8, 5]
    everything = torch.cat([inputs for inputs, _ in batches])
    assert sorted(map(tuple, everything.tolist())) == sorted(map(tuple, data.inputs.tolist()))
    optimiser = torch.optim.SGD(reference.parameters(), lr=0.1)
    for inputs, labels in batches:
        optimiser.zero_grad()
        nn.functional.cross_entropy(reference(inputs), labels).backward()
        optimiser.step()
    expected = torch.cat([p.detach().reshape(-1) for p in reference.parameters()])
    torch.testing.assert_close(net.weights, expected)


@pytest.mark.parametrize("clients", [1, 3])
def test_scaffold_equals_fedavg_when_all_clients_are_alike(clients):
    # Full-batch steps on the same data without dropout: every client sees the same gradients.
    module, client = nn.Sequential(nn.Linear(4, 3)), Client(blobs(0, 16), blobs(1, 10))
    federation = Federation((client,) * clients, 3)
    results = [
        train_group(group_job(federation, range(clients), module, recipe, seed=0)).weights
        for name in ("scaffold", "fedavg")
        for recipe in [Recipe(algorithm=name, rounds=6, batch_size=16)]
    ]
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)


def test_training_learns_and_records_every_round():
    clients = [Client(blobs(i, 40, (i,)), blobs(i + 9, 20, (i,))) for i in range(3)]
    result = train_group(job(clients, rounds=40))
    assert result.stopped == "rounds"
    assert result.rounds == 40
    assert result.accuracy[-1] > 0.8  # a third would be chance
    assert result.votes


def test_early_stop_keeps_the_last_model():
    clients = [Client(blobs(i, 30), blobs(i + 9, 20)) for i in range(2)]
    stopped = train_group(job(clients, rounds=200, patience=3, lr=0.1, lr_min=0.1))
    assert stopped.stopped == "patience"
    assert stopped.rounds < 200
    again = train_group(job(clients, rounds=stopped.rounds, lr=0.1, lr_min=0.1))
    assert torch.equal(stopped.weights, again.weights)


@pytest.mark.parametrize(
    ("sent", "why"), [(lambda w: None, "empty"), (lambda w: w + 3e38, "diverged")]
)
def test_a_group_without_a_usable_model_casts_no_vote(sent, why):
    def respond(client, data, task, net, job):
        update = honest(client, data, task, net, job)
        return Update(sent(update.weights), update.client_control)

    clients = [Client(blobs(i, 20), blobs(i + 9, 10)) for i in range(3)]
    result = train_group(job(clients), respond=respond)
    assert result.stopped == why
    assert result.rounds == (why == "diverged")
    assert not result.votes


def test_the_key_depends_on_everything_the_result_depends_on():
    clients = [Client(blobs(i, 20), blobs(i + 9, 10)) for i in range(2)]
    base, module = job(clients), linear()
    with torch.no_grad():
        module[0].bias[0] += 1
    variants = [
        base,
        job([Client(blobs(7, 20), blobs(9, 10)), clients[1]]),
        job([Client(clients[0].train, blobs(8, 10)), clients[1]]),
        job(clients, lr=0.06),
        job(clients[:1]),
        dataclasses.replace(base, seed=2),
        dataclasses.replace(base, mean=0.5),
        dataclasses.replace(base, members=(0, 5)),
        dataclasses.replace(base, module=module),
    ]
    keys = job_keys(variants)
    assert len(set(keys)) == len(variants)
    assert keys == [variant.key() for variant in variants]
    assert job(clients).key() == base.key()
    assert job_keys([]) == []


def test_a_copy_of_a_result_leaves_out_what_shares_its_memory() -> None:
    together = torch.arange(3000.0).reshape(1000, 3)
    result = GroupResult(together[7], (0.5,), "rounds", {3: "late"})
    copied = copy.deepcopy(result)
    assert torch.equal(copied.weights, result.weights)
    assert copied.weights.untyped_storage().nbytes() == 12
    assert (copied.accuracy, copied.stopped, copied.set_aside) == ((0.5,), "rounds", {3: "late"})
    assert len(pickle.dumps(result)) < 1000
