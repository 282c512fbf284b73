"""Training a group (Algorithm 3), and what its server does in a round (Algorithm 4).

What n clients send is an (n, P) array, one row per client, in any order of their G groups. Engines
compute local steps and validation accuracies; the rest of a round is here. What a client sends is
checked before it is used; what cannot be used sets that client aside, for good, and nobody else.
Nothing that a client sends reaches another group.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from carvyfl.core.arrays import NOT_FINITE, vector
from carvyfl.core.errors import CarvyError
from carvyfl.learning.job import GroupJob, GroupResult, GroupState, validates
from carvyfl.learning.scaffold.adversary import Attack, RoundView
from carvyfl.learning.scaffold.aggregation import AGGREGATION_RULES, combined
from carvyfl.learning.scaffold.arithmetic import Task, Update, server_step
from carvyfl.learning.scaffold.batched.ops import member_sums
from carvyfl.learning.scaffold.client import Batches, FlatNet, honest, one_thread

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
    """Train a group's model (Algorithm 3), alone.

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
        batches = functools.partial(Batches.of, mean=job.mean, std=job.std)
        validation = [batches(c.validation) for c in job.clients if len(c.validation)]
        training = [batches(client.train) for client in job.clients]
        data = dict(zip(job.members, training, strict=True))
        samples = {number: len(part) for number, part in data.items()}
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
                accuracy = mean_accuracy(list(map(net.accuracy, judges)))
                state = replace(state, accuracy=(*state.accuracy, accuracy))
                on_round(state)
    return GroupResult(state.weights, state.accuracy, why, state.set_aside)


@dataclass(frozen=True)
class Participants:
    """The n clients of a round, one row each, of G groups of one recipe.

    ``groups``, ``numbers`` and ``samples`` are, of each client, its group's position in ``jobs``,
    its number, and how many samples it trains on. ``stacked`` sums run over all groups at once, for
    a device; others over one group at a time. The two round differently, so the engine decides,
    never the number of groups: a model must not depend on which groups train beside it.
    """

    jobs: Sequence[GroupJob]
    groups: Sequence[int]
    numbers: Sequence[int]
    samples: Sequence[int]
    stacked: bool = False

    @functools.cached_property
    def members(self) -> dict[int, list[int]]:
        """The rows of each group's members, in member order."""
        rows: dict[int, list[int]] = {}
        for row in sorted(range(len(self.numbers)), key=self.numbers.__getitem__):
            rows.setdefault(self.groups[row], []).append(row)
        return rows


def group_round(
    job: GroupJob,
    state: GroupState,
    answers: Mapping[int, Update | str | None],
    samples: Mapping[int, int],
) -> GroupState:
    """Make the next state of one group from what its members sent (Algorithm 4, lines 5-6).

    ``answers``: by member, its update, or why what it sent is not one. A member that has not
    answered keeps its control variate and sits this round out.
    """
    active = state.active(job.members)
    clients = Participants((job,), [0] * len(active), active, [samples.get(n, 0) for n in active])
    lr = job.recipe.learning_rate(state.rounds)
    task = Task(state.weights[None], state.server[None], state.controls, lr, state.rounds)
    models, controls = np.zeros(state.controls.shape, np.float32), state.controls.numpy().copy()
    faults: dict[int, str] = {}
    for row, answer in enumerate(map(answers.get, active)):
        if isinstance(answer, str):
            faults[row] = answer
        elif answer is not None:
            for sent, rows in ((answer.weights, models), (answer.client_control, controls)):
                numbers = vector(sent, rows.shape[1])
                if isinstance(numbers, str):
                    faults.setdefault(row, numbers)
                else:
                    with np.errstate(over="ignore"):  # infinite then, and refused as that
                        rows[row] = numbers
    absent = {row for row, number in enumerate(active) if answers.get(number) is None}
    update = Update(torch.from_numpy(models), torch.from_numpy(controls))
    after, set_aside = server_round(clients, task, update, faults, absent)
    left = [row for row in range(len(active)) if row not in set_aside]
    return replace(
        state,
        weights=after.weights[0],
        server=after.server_control[0],
        controls=after.client_control[left],
        set_aside=state.set_aside | {active[row]: why for row, why in set_aside.items()},
    )


def server_round(
    clients: Participants,
    task: Task,
    update: Update,
    faults: Mapping[int, str] | None = None,
    absent: Set[int] = frozenset(),
) -> tuple[Task, dict[int, str]]:
    """Check and aggregate what the clients of a round sent (Algorithm 4, lines 5-6).

    ``update`` is what they trained or sent, (n, P); what malicious members send instead is put in
    its place. ``faults`` says by row why a message was refused when it was received; ``absent``
    clients have not answered, and keep c_i. Returns the task with w⁺, c⁺ and c_i⁺ in place of w, c
    and c_i, and by row why clients are set aside; their c_i⁺ mean nothing. A group keeps w and c if
    no update could be used.
    """
    _forge_(clients, task, update)
    finite = _finite_rows(update.weights) & _finite_rows(update.client_control)
    # FedAvg has no control variates, whatever somebody sends as one.
    fedavg = clients.jobs[0].recipe.algorithm == "fedavg"
    controls = task.client_control if fedavg else update.client_control
    task = replace(task, client_control=controls)
    rule = AGGREGATION_RULES[clients.jobs[0].recipe.aggregation]
    together, faults = clients.stacked and not rule.robust, faults or {}
    aggregate = _all_groups if together else _each_group
    # As a rule all are finite, so a device adds up while the host waits for its word on that.
    after = aggregate(clients, task, update.weights, faults.keys(), absent) if together else None
    reasons = {row: NOT_FINITE for row, fine in enumerate(finite.tolist()) if not fine} | {**faults}
    if after is None or len(reasons) > len(faults):
        after = aggregate(clients, task, update.weights, reasons.keys(), absent)
    set_aside = {row: f"round {task.round_}: {reasons[row]}" for row in sorted(reasons)}
    return after, set_aside


def _finite_rows(rows: Tensor) -> Tensor:
    largest: Tensor = torch.linalg.vector_norm(rows, torch.inf, dim=1)  # reads each row once
    return largest.isfinite()


def mean_accuracy(accuracies: Sequence[float]) -> float:
    """Return A, the mean of the members' validation accuracies (Algorithm 4, line 7)."""
    return sum(accuracies) / len(accuracies) if accuracies else float("nan")


def _forge_(clients: Participants, task: Task, update: Update) -> None:
    """Put what malicious members send in place of what they trained."""
    for group, job in enumerate(clients.jobs):
        if job.attack is None:
            continue
        members, recipe = clients.members.get(group, []), job.recipe
        liars = [row for row in members if clients.numbers[row] in job.malicious]
        if not liars:
            continue
        others = [row for row in members if row not in liars]
        share = [float(size) if recipe.weighs_samples else 1.0 for size in clients.samples]
        steps = [[float(-(-clients.samples[row] // recipe.batch_size))] for row in liars]
        view = RoundView(
            weights=task.weights[group],
            server_control=task.server_control[group],
            trained=_rows(update.weights, liars),
            controls=_rows(task.client_control, liars),
            steps=task.weights.new_tensor(steps),
            benign_weights=_rows(update.weights, others),
            benign_controls=_rows(update.client_control, others),
            members=tuple(clients.numbers[row] for row in liars),
            own_weight=sum(share[row] for row in liars),
            all_weight=sum(share[row] for row in members),
            lr=task.lr,
            server_step=recipe.server_step,
            round_=task.round_,
            seed=job.seed,
        )
        rows = _index(liars, task.weights)
        update.weights[rows], update.client_control[rows] = _forged(job.attack, view)


def _forged(attack: Attack, view: RoundView) -> tuple[Tensor, Tensor]:
    sent = attack.forge(view)
    if not isinstance(sent, tuple | list) or list(map(type, sent)) != [type(view.trained)] * 2:
        raise CarvyError(
            f"attack '{attack.name}': forge must return models and control variates, two tensors"
        )
    for rows in sent:
        if rows.shape != view.trained.shape:
            raise CarvyError(
                f"attack '{attack.name}': forge returned shape {tuple(rows.shape)}, not "
                f"{tuple(view.trained.shape)}, a row for each attacker"
            )
    models, controls = sent
    return models.to(view.trained.dtype), controls.to(view.trained.dtype)


def _each_group(
    clients: Participants, task: Task, models: Tensor, refused: Set[int], absent: Set[int]
) -> Task:
    """Aggregate by the recipe's rule, a group at a time (Algorithm 4, lines 5 and 6)."""
    recipe = clients.jobs[0].recipe
    weights, server = task.weights.clone(), task.server_control.clone()
    for group, members in clients.members.items():
        usable = [row for row in members if row not in refused]
        heard = [row for row in usable if row not in absent]
        if heard:
            sizes = weights.new_tensor([clients.samples[row] for row in heard])
            by_size = sizes if recipe.weighs_samples else None
            model = combined(recipe, _rows(models, heard), weights[group], by_size)
            weights[group] = server_step(weights[group], model, recipe.server_step)
            server[group] = combined(recipe, _rows(task.client_control, usable), server[group])
    return replace(task, weights=weights, server_control=server)


def _all_groups(
    clients: Participants, task: Task, models: Tensor, refused: Set[int], absent: Set[int]
) -> Task:
    """Aggregate by the mean, all groups at once (Algorithm 4, lines 5 and 6)."""
    recipe = clients.jobs[0].recipe
    heard: list[list[int]] = [[] for _ in task.weights]
    for row, group in enumerate(clients.groups):
        if row not in refused and row not in absent:
            heard[group].append(row)
    most = max(map(len, heard))
    if not most:
        return task
    members = _index([[*rows, *[-1] * (most - len(rows))] for rows in heard], models)
    ones = models.new_ones(len(models))
    shares = models.new_tensor(clients.samples) if recipe.weighs_samples else ones
    counts, total = (member_sums(row[:, None], members, ones) for row in (ones, shares))
    there = counts > 0
    aggregate = member_sums(models, members, shares) / total
    weights = server_step(task.weights, aggregate, recipe.server_step)
    server = member_sums(task.client_control, members, ones) / counts
    return replace(
        task,
        weights=torch.where(there, weights, task.weights),
        server_control=torch.where(there, server, task.server_control),
    )


def _index(rows: Sequence[int] | Sequence[Sequence[int]], like: Tensor) -> Tensor:
    return torch.tensor(rows, dtype=torch.long, device=like.device)


def _rows(vectors: Tensor, rows: Sequence[int]) -> Tensor:
    return vectors.index_select(0, _index(rows, vectors))
