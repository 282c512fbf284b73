"""The server's round over an (n, P) array: against double precision, alone and among others."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn

from carvyfl.attacks.untargeted import SignFlip
from carvyfl.learning.job import GroupJob
from carvyfl.learning.recipe import Recipe
from carvyfl.learning.scaffold.arithmetic import Task, Update
from carvyfl.learning.scaffold.group import Participants, server_round

SIZE = 83
GROUPS = ([0], [1, 2, 3, 4, 5], list(range(6, 26)), [26, 27])
REFUSED, ABSENT = (3, 26, 27), frozenset({4, 9})


def job(members: list[int], algorithm: str) -> GroupJob:
    recipe = Recipe(algorithm=algorithm, server_step=0.3)
    return GroupJob(tuple(members), (), nn.Linear(1, 1), recipe, 0, 0.0, 1.0)


def made(groups, algorithm="scaffold", stacked=True):
    """Return participants, task and update; a client's numbers depend on its number alone."""

    def draw(*key: int) -> torch.Tensor:
        return torch.from_numpy(np.random.default_rng(key).normal(size=SIZE).astype(np.float32))

    rows = [(g, number) for g, members in enumerate(groups) for number in members]
    rows.sort(key=lambda row: (row[1] % 3, row[0]))  # the rows of a group lie apart
    numbers = [number for _, number in rows]
    clients = Participants(
        [job(members, algorithm) for members in groups],
        [g for g, _ in rows],
        numbers,
        [5 + number % 4 for number in numbers],
        stacked,
    )
    weights, server = (
        torch.stack([draw(kind, members[0]) for members in groups]) for kind in (1, 2)
    )
    controls_before, models, controls = (
        torch.stack([draw(kind, n) for n in numbers]) for kind in (3, 4, 5)
    )
    for row, number in enumerate(numbers):
        if number in REFUSED:
            models[row, 7] = math.nan
    return clients, Task(weights, server, controls_before, 0.1, 6), Update(models, controls)


def run(groups, algorithm="scaffold", stacked=True):
    clients, task, update = made(groups, algorithm, stacked)
    absent = {row for row, number in enumerate(clients.numbers) if number in ABSENT and not stacked}
    return clients, *server_round(clients, task, update, absent=absent)


@pytest.mark.parametrize("algorithm", ["scaffold", "fedavg"])
@pytest.mark.parametrize("stacked", [True, False])
def test_groups_get_the_mean_of_what_can_be_used(algorithm, stacked):
    clients, task, update = made(GROUPS, algorithm, stacked)
    _, after, set_aside = run(GROUPS, algorithm, stacked)
    assert sorted(clients.numbers[row] for row in set_aside) == list(REFUSED)
    assert set(set_aside.values()) == {"round 6: NaN or infinite values"}
    for group, members in enumerate(GROUPS):
        rows = [clients.numbers.index(n) for n in members if n not in REFUSED]
        heard = [row for row in rows if stacked or clients.numbers[row] not in ABSENT]
        if not heard:
            assert torch.equal(after.weights[group], task.weights[group])
            assert torch.equal(after.server_control[group], task.server_control[group])
            continue
        shares = [clients.samples[row] if algorithm == "fedavg" else 1 for row in heard]
        mean = np.average(update.weights[heard].double().numpy(), axis=0, weights=shares)
        expected = 0.7 * task.weights[group].double().numpy() + 0.3 * mean
        np.testing.assert_allclose(after.weights[group], expected, rtol=1e-5, atol=1e-6)
        controls = task.client_control if algorithm == "fedavg" else update.client_control
        expected = controls[rows].double().numpy().mean(axis=0)
        np.testing.assert_allclose(after.server_control[group], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("algorithm", ["scaffold", "fedavg"])
def test_a_groups_sums_do_not_depend_on_its_company(algorithm):
    _, together, _ = run(GROUPS, algorithm)
    for group, members in enumerate(GROUPS):
        _, alone, _ = run([members], algorithm)
        assert torch.equal(alone.weights[0], together.weights[group])
        assert torch.equal(alone.server_control[0], together.server_control[group])


def test_a_forged_update_stays_in_its_group():
    quiet = run(GROUPS)[1]
    clients, task, update = made(GROUPS)
    attacked = dataclasses.replace(clients.jobs[1], attack=SignFlip(), malicious=(2,))
    jobs = [attacked if g == 1 else one for g, one in enumerate(clients.jobs)]
    clients = Participants(jobs, clients.groups, clients.numbers, clients.samples, True)
    loud, _ = server_round(clients, task, update)
    changed = (loud.weights != quiet.weights).any(dim=1).tolist()
    assert changed == [False, True, False, False]
