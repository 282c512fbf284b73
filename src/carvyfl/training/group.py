"""Training one group, alone: Algorithms 3 and 4.

Nothing here knows another group. What a member sends is checked before it is
used; what cannot be used sets that member aside, for good, and nobody else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from carvyfl.federation.reports import fault
from carvyfl.training.job import GroupJob, GroupResult
from carvyfl.training.local import Batches, FlatNet, local_epoch, one_thread
from carvyfl.training.recipe import Patience, Recipe
from carvyfl.training.scaffold import client_control, correction, mean


@dataclass(frozen=True)
class Task:
    """What the server sends a member in a round (Algorithm 4, line 1).

    Attributes
    ----------
    weights, server_control, client_control
        w, c and the member's own c_i, float32 of shape (P,). A real client keeps
        c_i itself.
    lr
        η of this round.
    round_
        r, counted from 0.
    """

    weights: Tensor
    server_control: Tensor
    client_control: Tensor
    lr: float
    round_: int


@dataclass(frozen=True)
class Report:
    """What a member sends back: w_i⁺ and c_i⁺, float32 of shape (P,) if it is honest."""

    weights: Tensor
    client_control: Tensor


Respond = Callable[[int, Batches, Task, FlatNet, GroupJob], Report]
"""A member's behaviour: its number, its data, the task, a scratch model, the job."""


def honest(client: int, data: Batches, task: Task, net: FlatNet, job: GroupJob) -> Report:
    """Answer as the protocol says (SCAFFOLDClientUpdate, option II)."""
    recipe = job.recipe
    shift = correction(task.server_control, task.client_control)
    net.load(task.weights)
    steps = local_epoch(
        net,
        data,
        shift,
        lr=task.lr,
        batch_size=recipe.batch_size,
        seed=job.seed,
        client=client,
        round_=task.round_,
    )
    end = net.weights.clone()
    if recipe.algorithm == "fedavg":
        return Report(end, task.client_control)
    return Report(end, client_control(shift, task.weights, end, steps, task.lr))


def train_group(
    job: GroupJob,
    *,
    on_round: Callable[[int], None] = lambda rounds: None,
    respond: Respond = honest,
) -> GroupResult:
    """Train a group's model (Algorithm 3).

    Parameters
    ----------
    job
        The group, its data and the recipe.
    on_round
        Told the number of rounds made, after each.
    respond
        How members answer; attacks and tests replace it.

    Returns
    -------
    GroupResult
        The last model, and what happened.
    """
    with one_thread():
        return _train(job, on_round, respond)


def _train(job: GroupJob, on_round: Callable[[int], None], respond: Respond) -> GroupResult:
    recipe, net = job.recipe, FlatNet(job.module)
    data = {
        number: Batches.of(client.train, job.mean, job.std)
        for number, client in zip(job.members, job.clients, strict=True)
    }
    validation = [
        Batches.of(client.validation, job.mean, job.std)
        for client in job.clients
        if len(client.validation)
    ]
    weights = net.weights.clone()
    server = torch.zeros_like(weights)
    controls = dict.fromkeys(job.members, server)
    set_aside: dict[int, str] = {}
    accuracy: list[float] = []
    patience = Patience()
    for round_ in range(recipe.rounds):
        lr = recipe.learning_rate(round_)
        reports: dict[int, Report] = {}
        for number in controls:
            task = Task(weights, server, controls[number], lr, round_)
            report = respond(number, data[number], task, net, job)
            reason = fault(report.weights, len(weights)) or fault(
                report.client_control, len(weights)
            )
            if reason:
                set_aside[number] = f"round {round_}: {reason}"
            else:
                reports[number] = report
        if not reports:
            return GroupResult(weights, tuple(accuracy), "empty", set_aside)
        controls = {number: report.client_control for number, report in reports.items()}
        weights = mean(
            torch.stack([report.weights for report in reports.values()]),
            _sizes(recipe, data, reports),
        )
        server = mean(torch.stack(list(controls.values())))
        net.load(weights)
        accuracy.append(_mean_accuracy(net, validation))
        on_round(round_ + 1)
        if not torch.isfinite(weights).all():
            return GroupResult(weights, tuple(accuracy), "diverged", set_aside)
        patience = patience.after(accuracy[-1], recipe)
        if patience.exhausted(recipe):
            return GroupResult(weights, tuple(accuracy), "patience", set_aside)
    return GroupResult(weights, tuple(accuracy), "rounds", set_aside)


def _sizes(recipe: Recipe, data: dict[int, Batches], reports: dict[int, Report]) -> Tensor | None:
    """Return FedAvg's weights, the clients' sample counts; SCAFFOLD's mean has none."""
    if recipe.algorithm == "scaffold":
        return None
    return torch.tensor([float(len(data[number])) for number in reports])


def _mean_accuracy(net: FlatNet, validation: list[Batches]) -> float:
    """Return A, the mean over members of their validation accuracy (Algorithm 4, line 8)."""
    if not validation:
        return float("nan")
    return sum(net.accuracy(batches) for batches in validation) / len(validation)
