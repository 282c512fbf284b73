"""Training one group, alone: Algorithms 3 and 4.

Nothing here knows another group. What a member sends is checked before it is
used; what cannot be used sets that member aside, for good, and nobody else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from carvyfl.core.messages import fault
from carvyfl.learning.job import GroupJob, GroupResult, GroupState
from carvyfl.learning.recipe import Recipe
from carvyfl.learning.scaffold.adversary import Attack, RoundView, forged
from carvyfl.learning.scaffold.aggregation import combined
from carvyfl.learning.scaffold.arithmetic import client_control, correction, server_step
from carvyfl.learning.scaffold.local import Batches, FlatNet, local_epoch, one_thread


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
    """Answer as the protocol says (SCAFFOLDClientUpdate, option II).

    A malicious member trains here too, in its own way; what it sends is forged
    afterwards, when all members have trained.
    """
    recipe = job.recipe
    shift = correction(task.server_control, task.client_control)
    attack = job.attack if client in job.malicious else None
    net.load(task.weights)
    steps = local_epoch(
        net,
        data,
        shift if attack is None or attack.corrected else torch.zeros_like(shift),
        lr=task.lr,
        batch_size=recipe.batch_size,
        seed=job.seed,
        client=client,
        round_=task.round_,
        pull=0.0 if attack is None else attack.pull,
    )
    end = net.weights.clone()
    if recipe.algorithm == "fedavg":
        return Report(end, task.client_control)
    return Report(end, client_control(shift, task.weights, end, steps, task.lr))


def train_group(
    job: GroupJob,
    *,
    start: GroupState | None = None,
    on_round: Callable[[GroupState], None] = lambda state: None,
    respond: Respond = honest,
    precision: str = "fp32",
) -> GroupResult:
    """Train a group's model (Algorithm 3).

    Parameters
    ----------
    job
        The group, its data and the recipe.
    start
        A state to go on from; default the initial one. The result is the same.
    on_round
        Told the state after every round.
    respond
        How members answer; attacks and tests replace it.
    precision
        ``fp32`` or ``bf16``: what products are computed in.

    Returns
    -------
    GroupResult
        The last model, and what happened.
    """
    with one_thread():
        net = FlatNet(job.module, precision)
        data = [Batches.of(client.train, job.mean, job.std) for client in job.clients]
        validation = [
            Batches.of(client.validation, job.mean, job.std)
            for client in job.clients
            if len(client.validation)
        ]
        state = start or GroupState.initial(job)
        while (why := state.stopped(job.recipe)) is None:
            state = _round(job, state, net, dict(zip(job.members, data, strict=True)), respond)
            if len(state.controls):
                net.load(state.weights)
                accuracy = (*state.accuracy, _mean_accuracy(net, validation))
                state = replace(state, accuracy=accuracy)
                on_round(state)
    return GroupResult(state.weights, state.accuracy, why, state.set_aside)


def _round(
    job: GroupJob, state: GroupState, net: FlatNet, data: dict[int, Batches], respond: Respond
) -> GroupState:
    """Run one round (Algorithm 4, without the accuracy of line 8)."""
    lr = job.recipe.learning_rate(state.rounds)
    answers: dict[int, Report] = {}
    for number, control in zip(state.active(job.members), state.controls, strict=True):
        task = Task(state.weights, state.server, control, lr, state.rounds)
        answers[number] = respond(number, data[number], task, net, job)
    if job.attack is not None:
        answers |= _forged(job, job.attack, state, data, answers)
    return aggregate(
        job, state, answers, {number: len(batches) for number, batches in data.items()}
    )


def aggregate(
    job: GroupJob,
    state: GroupState,
    answers: Mapping[int, Report | str | None],
    sizes: Mapping[int, int],
) -> GroupState:
    """Check what members sent and make the group's next state of it (Algorithm 4, lines 5-7).

    A member whose answer cannot be used is set aside for good. One that has not
    answered keeps its control variate and sits this round out; if no answer can
    be used, the model stays as it is.

    Parameters
    ----------
    job, state
        The group, and where it stands.
    answers
        By member: its report, or why what it sent is none.
    sizes
        By member: how many samples it trains on, FedAvg's weights.
    """
    size, set_aside = len(state.weights), dict(state.set_aside)
    controls: list[Tensor] = []
    models: dict[int, Tensor] = {}
    fedavg = job.recipe.algorithm == "fedavg"
    for number, control in zip(state.active(job.members), state.controls, strict=True):
        answer = answers.get(number)
        if answer is None:
            controls.append(control)
            continue
        reason = answer if isinstance(answer, str) else _fault(answer, size)
        if isinstance(answer, str) or reason is not None:
            set_aside[number] = f"round {state.rounds}: {reason}"
        else:
            models[number] = answer.weights
            # FedAvg has no control variates, whatever somebody sends as one.
            controls.append(control if fedavg else answer.client_control)
    kept = torch.stack(controls) if controls else state.controls[:0]
    if not models:
        return replace(state, controls=kept, set_aside=set_aside)
    weights = combined(
        job.recipe,
        torch.stack(list(models.values())),
        state.weights,
        _sizes(job.recipe, sizes, models),
    )
    weights = server_step(state.weights, weights, job.recipe.server_step)
    server = combined(job.recipe, kept, state.server)
    return GroupState(weights, server, kept, state.accuracy, set_aside)


def _forged(
    job: GroupJob,
    attack: Attack,
    state: GroupState,
    data: dict[int, Batches],
    reports: Mapping[int, Report],
) -> dict[int, Report]:
    """Return what the malicious members send instead, by client number."""
    active = list(reports)
    chosen = [number for number in reports if number in job.malicious]
    if not chosen:
        return {}
    others = [reports[number] for number in reports if number not in job.malicious]
    by_size = job.recipe.weighs_samples
    weight = {number: float(len(data[number])) if by_size else 1.0 for number in reports}
    view = RoundView(
        weights=state.weights,
        server_control=state.server,
        trained=torch.stack([reports[number].weights for number in chosen]),
        controls=torch.stack([state.controls[active.index(number)] for number in chosen]),
        steps=torch.tensor([[float(data[n].steps(job.recipe.batch_size))] for n in chosen]),
        benign_weights=_stacked([report.weights for report in others], state.weights),
        benign_controls=_stacked([report.client_control for report in others], state.weights),
        members=tuple(chosen),
        own_weight=sum(weight[n] for n in chosen),
        all_weight=sum(weight.values()),
        lr=job.recipe.learning_rate(state.rounds),
        server_step=job.recipe.server_step,
        round_=state.rounds,
        seed=job.seed,
    )
    models, controls = forged(attack, view)
    return {n: Report(w, c) for n, w, c in zip(chosen, models, controls, strict=True)}


def _stacked(vectors: list[Tensor], like: Tensor) -> Tensor:
    """Stack vectors of shape (P,), of which there may be none."""
    return torch.stack(vectors) if vectors else like.new_empty((0, len(like)))


def _fault(report: Report, size: int) -> str | None:
    """Say why a report cannot be used, if it cannot."""
    return fault(report.weights, size) or fault(report.client_control, size)


def _sizes(recipe: Recipe, sizes: Mapping[int, int], members: Iterable[int]) -> Tensor | None:
    """Return FedAvg's weights, the clients' sample counts; SCAFFOLD's mean has none."""
    if recipe.algorithm == "scaffold":
        return None
    return torch.tensor([float(sizes[number]) for number in members])


def _mean_accuracy(net: FlatNet, validation: list[Batches]) -> float:
    """Return A, the mean over members of their validation accuracy (Algorithm 4, line 8)."""
    if not validation:
        return float("nan")
    return sum(net.accuracy(batches) for batches in validation) / len(validation)
