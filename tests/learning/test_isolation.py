"""Group isolation, the contract the certificate rests on.

Whatever one client has or sends, every other group's model is the same to the
bit; and nothing depends on how the work was spread over processes.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from carvyfl.data.clients import Client, Samples
from carvyfl.groups.methods import form_groups
from carvyfl.learning.backends import Cores
from carvyfl.learning.recipe import Recipe
from carvyfl.learning.scaffold.arithmetic import Update
from carvyfl.learning.scaffold.client import honest
from carvyfl.learning.scaffold.group import train_group
from carvyfl.learning.store import train_groups
from carvyfl.pipeline import Setup, plan_training
from carvyfl.profiles.asking import one_epoch_updates
from carvyfl.profiles.methods import read_profiles
from support.federations import blobs, class_disjoint_federation, small_net

RECIPE = Recipe(rounds=4, lr=0.05, batch_size=8, patience=3)
HOSTILE = 1


def jobs_of(federation, module=None):
    grouping = form_groups("balanced", num_clients=len(federation), seed=3, num_groups=3)
    setup = Setup(federation, module or small_net(), RECIPE, seed=5)
    return grouping, plan_training(setup, grouping)


def replaced(federation, number, client):
    clients = list(federation.clients)
    clients[number] = client
    return dataclasses.replace(federation, clients=tuple(clients))


DATA = {
    "noise": lambda old: Client(blobs(77, 50, (0, 1, 2, 3)), old.validation),
    "giants": lambda old: Client(
        Samples(old.train.inputs * np.float32(1e30), old.train.labels), old.validation
    ),
    "flipped": lambda old: Client(Samples(old.train.inputs, 3 - old.train.labels), old.validation),
    "one sample": lambda old: Client(old.train.take([0]), old.validation),
    "no validation": lambda old: Client(old.train, old.validation.take([])),
}


@pytest.mark.parametrize("name", DATA)
def test_changed_data_of_one_client_leaves_other_groups_bit_identical(name):
    federation = class_disjoint_federation()
    hostile = replaced(federation, HOSTILE, DATA[name](federation.clients[HOSTILE]))
    grouping, before = jobs_of(federation)
    _, after = jobs_of(hostile)
    touched = grouping.assignment[HOSTILE]
    results = [train_groups(jobs, engine=Cores(1)) for jobs in (before, after)]
    for group, (old, new) in enumerate(zip(*results, strict=True)):
        if group != touched:
            assert torch.equal(old.weights, new.weights)
            np.testing.assert_array_equal(old.accuracy, new.accuracy)


SENT = {
    "NaN": lambda w: torch.full_like(w, torch.nan),
    "infinity": lambda w: torch.full_like(w, torch.inf),
    "giant": lambda w: w * 1e30,
    "too long": lambda w: torch.cat([w, w]),
    "too short": lambda w: w[:-1],
    "a matrix": lambda w: w.reshape(1, -1),
    "a word": lambda w: "weights",
    "silence": lambda w: None,
}


@pytest.mark.parametrize("name", SENT)
def test_a_hostile_report_leaves_other_groups_bit_identical_and_stops_nothing(name):
    def respond(client, data, task, net, job):
        update = honest(client, data, task, net, job)
        if client != HOSTILE or task.round_ == 0:
            return update
        return Update(SENT[name](update.weights), update.client_control)

    grouping, jobs = jobs_of(class_disjoint_federation())
    quiet = [train_group(job) for job in jobs]
    attacked = [train_group(job, respond=respond) for job in jobs]
    touched = grouping.assignment[HOSTILE]
    for group, (old, new) in enumerate(zip(quiet, attacked, strict=True)):
        assert torch.equal(old.weights, new.weights) == (group != touched)
    if name != "giant":
        assert attacked[touched].set_aside[HOSTILE].startswith("round 1: ")
        assert attacked[touched].votes


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3])
def test_results_do_not_depend_on_the_number_of_workers(workers):
    _, jobs = jobs_of(class_disjoint_federation())
    alone, together = (train_groups(jobs, engine=Cores(n)) for n in (1, workers))
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(one.weights, other.weights)
        np.testing.assert_array_equal(one.accuracy, other.accuracy)


@pytest.mark.parametrize("threads", [1, 3])
def test_training_computes_on_one_thread_and_gives_the_others_back(threads):
    """Sums are ordered alike on every machine."""
    seen: set[int] = set()

    class Watched(nn.Linear):
        def forward(self, x):
            seen.add(torch.get_num_threads())
            return super().forward(x)

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        _, jobs = jobs_of(class_disjoint_federation(), nn.Sequential(Watched(8, 4)))
        train_groups(jobs, engine=Cores(1))
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert seen == {1}


def test_results_do_not_depend_on_the_order_or_company_of_jobs():
    _, jobs = jobs_of(class_disjoint_federation())
    expected = train_groups(jobs, engine=Cores(1))
    backwards = train_groups(jobs[::-1], engine=Cores(1))[::-1]
    alone = [train_groups([job], engine=Cores(1))[0] for job in jobs]
    for results in (backwards, alone):
        for one, other in zip(expected, results, strict=True):
            assert torch.equal(one.weights, other.weights)


def test_training_leaves_the_global_generators_and_the_users_module_alone():
    module = small_net()
    weights = [p.detach().clone() for p in module.parameters()]
    torch.manual_seed(11)
    np.random.seed(11)
    before = torch.get_rng_state(), np.random.get_state(legacy=False)["state"]["key"].copy()
    _, jobs = jobs_of(class_disjoint_federation(), module)
    train_groups(jobs, engine=Cores(1))
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state(legacy=False)["state"]["key"]).all()
    for old, new in zip(weights, module.parameters(), strict=True):
        assert torch.equal(old, new)
    assert all(p.grad is None for p in module.parameters())


@pytest.mark.parametrize("name", ["NaN", "infinity", "giant", "too long", "silence"])
def test_a_hostile_update_in_step_one_changes_no_other_type(name):
    federation = class_disjoint_federation()
    updates = one_epoch_updates(federation, small_net(), RECIPE, seed=5, engine=Cores(1))
    reports = [torch.from_numpy(row.copy()) for row in updates.values]
    reports[HOSTILE] = SENT[name](reports[HOSTILE])
    attacked = updates.replaced([None if r is None else r.numpy() for r in reports])
    quiet, loud = (read_profiles("bias-profile", sent).types for sent in (updates, attacked))
    others = np.arange(len(federation)) != HOSTILE
    same = quiet.labels[others][:, None] == quiet.labels[others]
    assert (same == (loud.labels[others][:, None] == loud.labels[others])).all()
    assert (HOSTILE in loud.set_aside) == (name != "giant")


@pytest.mark.slow
def test_step_one_finds_the_types_of_this_federation():
    federation = class_disjoint_federation()
    updates = one_epoch_updates(federation, small_net(), RECIPE, seed=5, engine=Cores(2))
    assert federation.types is not None
    found = read_profiles("bias-profile", updates).types
    assert found.labels.tolist() == federation.types.tolist()
