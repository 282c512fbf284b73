"""Training one group, alone (Algorithm 3): nothing here knows another group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from carvyfl.learning.job import GroupJob, GroupResult, GroupState, validates
from carvyfl.learning.scaffold.arithmetic import Task, Update
from carvyfl.learning.scaffold.client import Batches, FlatNet, honest, one_thread
from carvyfl.learning.scaffold.server import group_round, mean_accuracy

# A member's behaviour: its number, its data, the task, a scratch model, the job
Respond = Callable[[int, Batches, Task, FlatNet, GroupJob], Update]


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
    start
        A state to go on from; default the initial one. The result is the same.
    respond
        How members answer; attacks and tests replace it.
    precision
        ``fp32`` or ``bf16``: what products are computed in.
    """
    with one_thread():
        net = FlatNet(job.module, precision)
        training = [Batches.of(client.train, job.mean, job.std) for client in job.clients]
        validation = [
            Batches.of(client.validation, job.mean, job.std)
            for client in job.clients
            if len(client.validation)
        ]
        data = dict(zip(job.members, training, strict=True))
        samples = {number: len(batches) for number, batches in data.items()}
        state = start or GroupState.initial(job)
        while (why := state.stopped(job.recipe)) is None:
            lr = job.recipe.learning_rate(state.rounds)
            answers = {}
            for number, control in zip(state.active(job.members), state.controls, strict=True):
                task = Task(state.weights, state.server, control, lr, state.rounds)
                answers[number] = respond(number, data[number], task, net, job)
            state = group_round(job, state, answers, samples)
            if len(state.controls):
                net.load(state.weights)
                judges = validation if validates(state.rounds + 1, job.recipe) else []
                accuracy = mean_accuracy([net.accuracy(batches) for batches in judges])
                state = replace(state, accuracy=(*state.accuracy, accuracy))
                on_round(state)
    return GroupResult(state.weights, state.accuracy, why, state.set_aside)
