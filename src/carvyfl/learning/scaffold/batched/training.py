"""Groups that train together on a device: Algorithms 3 and 4 for many of them at once."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from carvyfl.core.randomness import derive_each, fold, hash_bits, stem
from carvyfl.data.clients import Samples
from carvyfl.learning.job import GroupJob, GroupResult, GroupState, stopped, validates
from carvyfl.learning.models import flat_weights
from carvyfl.learning.scaffold.arithmetic import Task, Update, client_update
from carvyfl.learning.scaffold.batched import ops
from carvyfl.learning.scaffold.batched.device import ALLOCATOR, fitting_parts
from carvyfl.learning.scaffold.batched.net import StackedNet
from carvyfl.learning.scaffold.group import Participants, mean_accuracy, server_round

T = TypeVar("T")
TAKEN_AT_ONCE = 256  # Models of groups that are copied from the device at a time
VALIDATED_AT_ONCE = 256  # Validation samples of a client that are classified at a time
# Clients up to which steps are recorded, once, as CUDA graphs and then replayed: launching a step's
# kernels takes longer than computing them for few
RECORDED = 1024
BEYOND = 1 << 40  # larger than any hash: positions past a client's data sort last


@dataclass(frozen=True)
class Pool:
    """Samples of many clients on the device, end to end: where each begins, and how many it has."""

    inputs: Tensor
    labels: Tensor
    start: Tensor
    size: Tensor

    @classmethod
    def of(cls, samples: Sequence[Samples], device: torch.device) -> Pool:  # noqa: D102
        sizes = np.array([len(part) for part in samples], dtype=np.int64)
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        inputs = np.concatenate([part.inputs for part in samples])
        labels = np.concatenate([part.labels for part in samples])
        return cls(*(torch.from_numpy(a).to(device) for a in (inputs, labels, starts, sizes)))

    def batch(self, clients: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gather inputs, labels and mask, 0 beyond a client's data, at (n, B) of its positions."""
        there = positions < self.size[clients, None]
        index = self.start[clients, None] + torch.where(there, positions, 0)
        index.clamp_(max=len(self.labels) - 1)
        return self.inputs[index], self.labels[index], there.float()

    def step_batch(
        self,
        clients: Tensor,
        order: Tensor,
        step: Tensor,
        batch_size: int,
        wide: int,
        scale: Tensor,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Draw a step's batch of ``wide`` samples a client, prepared (see :func:`.ops.scaled`)."""
        if ops.by_kernels(self.inputs):
            from carvyfl.learning.scaffold.batched.kernels.steps import gather

            pool = (self.inputs, self.labels, self.start, self.size)
            return gather(pool, clients, order, step, batch_size, wide, scale, dtype)
        places = step * batch_size + torch.arange(wide, device=order.device)
        inputs, labels, mask = self.batch(clients, order.index_select(1, places))
        return ops.scaled(inputs, scale, dtype), labels, mask


class Cohort:
    """The clients of groups that train together, those with most steps first.

    So those still training within an epoch are always the first. ``group`` and ``number`` are each
    client's group, by its position in ``jobs``, and number; ``scale``, (N, 2), its mean and std.
    """

    def __init__(self, jobs: Sequence[GroupJob], device: torch.device) -> None:
        members = [(g, rank) for g, job in enumerate(jobs) for rank in range(len(job.clients))]
        members.sort(key=lambda place: -len(jobs[place[0]].clients[place[1]].train))
        clients = [jobs[g].clients[rank] for g, rank in members]
        scale = [(jobs[g].mean, jobs[g].std) for g, _ in members]
        self.jobs = jobs
        self.group = [g for g, _ in members]
        self.number = [jobs[g].members[rank] for g, rank in members]
        self.train = Pool.of([client.train for client in clients], device)
        self.validation = Pool.of([client.validation for client in clients], device)
        self.sizes = [len(client.train) for client in clients]
        self.validation_sizes = [len(client.validation) for client in clients]
        self.scale = torch.tensor(scale, device=device)

    def keys(self, clients: Sequence[int], round_: int) -> list[list[int]]:
        """Return clients' keys of a round, for the order of samples and for dropout."""
        rounds = itertools.repeat(round_)
        each = ([stems[i] for i in clients] for stems in self._stems)
        return [derive_each(stems, rounds).tolist() for stems in each]

    @cached_property
    def _stems(self) -> list[list[bytes]]:
        """What the keys of every client's rounds begin with, for each purpose."""
        owners = list(zip(self.group, self.number, strict=True))
        return [
            [stem(self.jobs[g].seed, purpose, number) for g, number in owners]
            for purpose in ("order", "dropout")
        ]


@dataclass(frozen=True)
class Epoch:
    """What the steps of an epoch read and write, on the device.

    ``weights``, ``start`` and ``shift`` are y, x and c - c_i, float32 of shape (n, P). ``order``,
    of every client's samples, is int64 of shape (n, most samples); ``dropout``, the keys of every
    step and dropout layer, of shape (steps, L, n). η and the number of the step have shape (1,).
    """

    weights: Tensor
    start: Tensor
    shift: Tensor
    order: Tensor
    dropout: Tensor
    lr: Tensor
    step: Tensor

    def load_(self, other: Epoch) -> None:  # noqa: D102
        for field in fields(self):
            place, new = getattr(self, field.name), getattr(other, field.name)
            if place is not new:
                place.copy_(new)


class LocalSteps:
    """Clients of a cohort, at positions ``part``, whose steps are taken together.

    It computes :func:`~carvyfl.learning.scaffold.client.local_epoch` for many: largest clients
    first, so those with steps left come first, and those with a short last batch stand together.
    ``fixed`` is where recorded steps read and write; None before the first, or if none are
    recorded.
    """

    def __init__(self, net: StackedNet, cohort: Cohort, part: list[int], batch_size: int) -> None:
        self.net, self.cohort, self.part, self.batch_size = net, cohort, part, batch_size
        device = net.device
        sizes = [cohort.sizes[i] for i in part]
        attacks = [cohort.jobs[cohort.group[i]].attack_of(cohort.number[i]) for i in part]
        pulls = [attack.pull if attack else 0.0 for attack in attacks]
        corrected = [[attack is None or attack.corrected] for attack in attacks]
        self.groups = torch.tensor([cohort.group[i] for i in part], device=device)
        self.counts = torch.tensor([[float(-(-n // batch_size))] for n in sizes], device=device)
        self._clients = torch.tensor(part, device=device)
        self._scale = cohort.scale[self._clients]
        self._pull = torch.tensor(pulls, device=device)[:, None] if any(pulls) else None
        self._corrected = (
            None if all(map(all, corrected)) else torch.tensor(corrected, device=device)
        )
        self._schedule = [
            (step, rows, wide)
            for step in range(-(-sizes[0] // batch_size))
            for rows, wide in equal_widths([n - step * batch_size for n in sizes], batch_size)
        ]
        self._records = device.type == "cuda" and len(part) <= RECORDED
        self._stream = torch.cuda.Stream(device) if self._records else None  # type: ignore[no-untyped-call]
        self._ahead: dict[int, list[list[int]]] = {}
        self.fixed: Epoch | None = None
        self._graphs: dict[tuple[int, int, int], torch.cuda.CUDAGraph | None] = {}

    def epoch(self, start: Tensor, shift: Tensor, lr: float, round_: int) -> Tensor:
        """Train every client for an epoch and return y, (n, P); it is good until the next epoch."""
        device = self.net.device
        keys = self._ahead.pop(round_, None) or self.cohort.keys(self.part, round_)
        order, dropout = (torch.tensor(part, device=device) for part in keys)
        epoch = Epoch(
            start if self.fixed is not None else start.clone(),
            start,
            shift if self._corrected is None else torch.where(self._corrected, shift, 0.0),
            self._order(order),
            self._dropout(dropout),
            torch.tensor([lr], device=device),
            torch.zeros(1, dtype=torch.int64, device=device),
        )
        if self.fixed is not None:
            self.fixed.load_(epoch)
            epoch = self.fixed
        elif self._records:  # what is recorded reads and writes the same places every time
            self.fixed = epoch
        for step, rows, wide in self._schedule:
            epoch.step.fill_(step)
            self._take(epoch, rows, wide)
        # Hashing takes the host a while, in which the device is busy with these steps.
        self._ahead[round_ + 1] = self.cohort.keys(self.part, round_ + 1)
        return epoch.weights

    def _take(self, epoch: Epoch, rows: slice, wide: int) -> None:
        """Take a step of some rows: at first as it is, the second time recorded, then replayed."""
        key = (rows.start, rows.stop, wide)
        if self._records and key in self._graphs and self._graphs[key] is None:
            self._graphs[key] = self._recorded(epoch, rows, wide)
        graph = self._graphs.setdefault(key, None)
        if graph is None:
            self._step(epoch, rows, wide)
        else:
            graph.replay()

    def _recorded(self, epoch: Epoch, rows: slice, wide: int) -> torch.cuda.CUDAGraph | None:
        """Record a step without taking it; None if the model does what cannot be recorded."""
        graph = torch.cuda.CUDAGraph()
        # All graphs of a part compute in the same memory: they never run at once.
        pool = next((other.pool() for other in self._graphs.values() if other is not None), None)
        try:
            # Other threads may train on other devices meanwhile.
            with (
                ALLOCATOR,
                torch.cuda.graph(graph, pool, self._stream, capture_error_mode="thread_local"),
            ):
                self._step(epoch, rows, wide)
        except RuntimeError:  # it waits for the device, for instance
            self._records = False
            return None
        return graph

    def _step(self, epoch: Epoch, rows: slice, wide: int) -> None:
        """Take a step y ← y - η (g(y) + c - c_i) of some rows, with batches padded to a width."""
        form = (self.batch_size, wide, self._scale[rows], self.net.dtype)
        order = epoch.order[rows]
        batch = self.cohort.train.step_batch(self._clients[rows], order, epoch.step, *form)
        weights, shift = epoch.weights[rows], epoch.shift[rows]
        views = self.net.views(weights)
        keys = epoch.dropout[..., rows].index_select(0, epoch.step)[0]
        gradients = self.net.gradient(views, keys, *batch)
        if self._pull is not None:
            shift = shift + self._pull[rows] * (weights - epoch.start[rows])
        ops.stacked_step_(views, gradients, self.net.views(shift), epoch.lr)

    def _dropout(self, keys: Tensor) -> Tensor:
        """Return the keys of an epoch's steps and dropout layers, (steps, L, n)."""
        steps = torch.arange(self._schedule[-1][0] + 1, device=keys.device)
        return self.net.dropout_keys(fold(keys, steps[:, None])).transpose(0, 1).contiguous()

    def _order(self, keys: Tensor) -> Tensor:
        """Return the order of samples in an epoch, (n, most samples); padding sorts last."""
        most = int(self._schedule[-1][0] + 1) * self.batch_size
        bits = hash_bits(keys, most).to(torch.int64)
        sizes = self.cohort.train.size[self._clients, None]
        beyond = torch.arange(most, device=bits.device) >= sizes
        return torch.argsort(torch.where(beyond, BEYOND, bits), dim=1, stable=True)


def equal_widths(sizes: list[int], most: int) -> Iterator[tuple[slice, int]]:
    """Cut falling sizes into runs that are padded alike: (rows, padded size), at most ``most``.

    A client's padded size, a multiple of 16 or a power of two below, depends on its own size alone,
    so that not even a rounding error depends on who else is there.
    """

    def padded(size: int) -> int:
        if size < 1:
            return 0
        return min(most, -(-size // 16) * 16 if size > 16 else 1 << (size - 1).bit_length())

    start = 0
    for width, run in itertools.groupby(map(padded, sizes)):
        stop = start + len(list(run))
        if width:
            yield slice(start, stop), width
        start = stop


class Training:
    """The state of groups of one architecture and recipe while they train: Algorithms 3 and 4.

    All have made the same number of rounds; without ``states``, none. At most ``width`` clients
    step at once; it is halved when memory runs out.
    """

    def __init__(
        self,
        jobs: Sequence[GroupJob],
        net: StackedNet,
        width: int,
        states: Sequence[GroupState] = (),
    ) -> None:
        self.net, self.width, self.device = net, width, net.device
        self.recipe = jobs[0].recipe
        self.rounds = states[0].rounds if states else 0
        self.cohort = Cohort(jobs, self.device)
        if states:
            self.weights, self.server = (
                torch.stack([getattr(state, name) for state in states]).to(self.device)
                for name in ("weights", "server")
            )
        else:  # every w⁰ is moved once
            modules = {id(job.module): job.module for job in jobs}
            initial = torch.stack([flat_weights(module) for module in modules.values()])
            place = {key: row for row, key in enumerate(modules)}
            rows = self._tensor([place[id(job.module)] for job in jobs])
            self.weights = initial.to(self.device)[rows]
            self.server = torch.zeros_like(self.weights)
        self.accuracy = [list(state.accuracy) for state in states] or [[] for _ in jobs]
        self.set_aside = [dict(state.set_aside) for state in states] or [{} for _ in jobs]
        owners = enumerate(zip(self.cohort.group, self.cohort.number, strict=True))
        self.active = [i for i, (g, number) in owners if number not in self.set_aside[g]]
        self._steps: dict[tuple[int, int], LocalSteps] = {}
        self._clients = self._participants()
        self.controls = self.weights.new_zeros((len(self.active), self.weights.shape[1]))
        if self.rounds:  # before the first one they are zero
            for g, rows_of_group in self._clients.members.items():
                self.controls[self._tensor(rows_of_group)] = states[g].controls.to(self.device)

    @property
    def running(self) -> list[int]:
        """The positions of the groups still training."""
        return sorted(self._clients.members)

    def _participants(self) -> Participants:
        lists = (self.cohort.group, self.cohort.number, self.cohort.sizes)
        group, number, sizes = ([column[i] for i in self.active] for column in lists)
        return Participants(self.cohort.jobs, group, number, sizes, stacked=True)

    def states(self) -> Iterator[tuple[int, GroupState]]:
        """Yield (position, state) of the groups still training."""
        for group, rows in self._clients.members.items():
            weights, server = self.weights[group].cpu(), self.server[group].cpu()
            controls = self.controls[self._tensor(rows)].cpu()
            history, gone = tuple(self.accuracy[group]), dict(self.set_aside[group])
            yield group, GroupState(weights, server, controls, history, gone)

    def advance(self) -> Iterator[tuple[int, GroupResult]]:
        """Make one round, yielding (position, result) of every group that stops with it."""
        before = self.running
        self.round()
        self.rounds += 1
        running = self.running
        needed = validates(self.rounds, self.recipe)
        scores = self.scores(running) if needed else dict.fromkeys(running, math.nan)
        for group, score in scores.items():
            self.accuracy[group].append(score)
        finite = torch.isfinite(self.weights).all(dim=1).tolist()
        why = {
            group: stopped(group in scores, finite[group], self.accuracy[group], self.recipe)
            for group in before
        }
        self._go_on([row for row, i in enumerate(self.active) if not why[self.cohort.group[i]]])
        ended = [(group, reason) for group, reason in why.items() if reason is not None]
        for first in range(0, len(ended), TAKEN_AT_ONCE):
            part = ended[first : first + TAKEN_AT_ONCE]
            models = self.weights[self._tensor([group for group, _ in part])].cpu()
            for (group, reason), weights in zip(part, models, strict=True):
                history, gone = tuple(self.accuracy[group]), self.set_aside[group]
                yield group, GroupResult(weights, history, reason, gone)

    def round(self) -> None:
        """Run one round of all active clients (Algorithm 4 without line 7)."""
        lr, clients = self.recipe.learning_rate(self.rounds), self._clients
        task = Task(self.weights, self.server, self.controls, lr, self.rounds)
        rows = list(range(len(self.active)))
        sent = [update for _, update in self.in_parts(rows, lambda part: self._update(part, task))]
        pairs = [(part.weights, part.client_control) for part in sent]
        update = Update(*map(torch.cat, zip(*pairs, strict=True))) if len(sent) > 1 else sent[0]
        after, set_aside = server_round(clients, task, update)
        self.weights, self.server = after.weights, after.server_control
        self.controls = after.client_control
        for row, reason in set_aside.items():
            self.set_aside[clients.groups[row]][clients.numbers[row]] = reason
        self._go_on([row for row in rows if row not in set_aside])

    def _go_on(self, rows: list[int]) -> None:
        if len(rows) < len(self.active):
            self.active = [self.active[row] for row in rows]
            self.controls = self.controls[self._tensor(rows).long()]
            self._clients = self._participants()
            self._steps.clear()

    def _update(self, rows: list[int], task: Task) -> Update:
        """Return w_i⁺ and c_i⁺ of successive active clients (line 3), each (n, P)."""
        part = slice(rows[0], rows[-1] + 1)
        if (steps := self._steps.get((part.start, part.stop))) is None:
            steps = LocalSteps(self.net, self.cohort, self.active[part], self.recipe.batch_size)
            self._steps[part.start, part.stop] = steps
        place = None if steps.fixed is None else steps.fixed.start
        start = torch.index_select(task.weights, 0, steps.groups, out=place)
        server = task.server_control.index_select(0, steps.groups)
        each = Task(start, server, task.client_control[part], task.lr, task.round_)

        def epoch(start: Tensor, correction: Tensor) -> tuple[Tensor, Tensor]:
            return steps.epoch(start, correction, task.lr, task.round_), steps.counts

        return client_update(each, epoch, self.recipe.algorithm)

    def scores(self, groups: list[int]) -> dict[int, float]:
        """Return A of each group (line 7); members set aside still judge."""
        accuracies: dict[int, list[float]] = {g: [] for g in groups}
        sizes = self.cohort.validation_sizes
        judges = [i for i, g in enumerate(self.cohort.group) if g in accuracies and sizes[i]]
        judges.sort(key=lambda i: -sizes[i])
        for part, measured in self.in_parts(judges, self._accuracies):
            for i, accuracy in zip(part, measured, strict=True):
                accuracies[self.cohort.group[i]].append(accuracy)
        return {g: mean_accuracy(members) for g, members in accuracies.items()}

    def _accuracies(self, part: list[int]) -> list[float]:
        """Return each client's share of validation samples that its group's model gets right."""
        shares: list[float] = []
        clients = self._tensor(part)
        groups = self._tensor([self.cohort.group[i] for i in part])
        sizes = [self.cohort.validation_sizes[i] for i in part]
        for rows, wide in equal_widths(sizes, sys.maxsize):
            models, judges = self.net.views(self.weights[groups[rows]]), clients[rows]
            right, count = (torch.zeros(len(judges), device=self.device) for _ in range(2))
            for first in range(0, wide, VALIDATED_AT_ONCE):
                last = min(first + VALIDATED_AT_ONCE, wide)
                positions = torch.arange(first, last, device=self.device).expand(len(judges), -1)
                inputs, labels, mask = self.cohort.validation.batch(judges, positions)
                logits = self.net.logits(models, inputs, self.cohort.scale[judges])
                hit = (logits.argmax(-1) == labels) & logits.isfinite().all(-1)
                right += (hit * mask).sum(1)
                count += mask.sum(1)
            shares += (right / count).tolist()
        return shares

    def in_parts(
        self, clients: list[int], compute: Callable[[list[int]], T]
    ) -> Iterator[tuple[list[int], T]]:
        """Compute something that changes nothing for clients, as many at once as memory allows."""

        def narrow(width: int) -> None:
            self.width = width
            self._steps.clear()

        return fitting_parts(
            len(clients),
            self.width,
            lambda part: (clients[part], compute(clients[part])),
            narrow,
            "the device's memory does not hold one client's step; use engine loop, a smaller batch "
            "or a smaller model",
        )

    def _tensor(self, numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, device=self.device)
