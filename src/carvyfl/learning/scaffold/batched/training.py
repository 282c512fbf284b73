"""Groups that train together on a device: Algorithms 3 and 4 for a chunk of them at once."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

from carvyfl.core.errors import CarvyError
from carvyfl.core.randomness import fold, hash_bits
from carvyfl.learning.job import GroupJob, GroupResult, GroupState, stopped
from carvyfl.learning.scaffold.adversary import Attack
from carvyfl.learning.scaffold.arithmetic import client_control, correction
from carvyfl.learning.scaffold.batched.cohort import Cohort
from carvyfl.learning.scaffold.batched.net import StackedNet
from carvyfl.learning.scaffold.batched.ops import stacked_step_
from carvyfl.learning.scaffold.round import (
    Participants,
    Task,
    Update,
    mean_accuracy,
    server_round,
)

T = TypeVar("T")
VALIDATED_AT_ONCE = 256
"""Validation samples of a client that are classified at a time, to bound memory."""

BEYOND = 1 << 40  # larger than any hash: positions past a client's data sort last


class Training:
    """The state of one chunk while it trains: Algorithms 3 and 4, for many groups at once.

    The groups have one architecture and one recipe, and have made the same number of rounds. At
    most ``width`` clients step at once; it is halved when memory runs out.
    """

    def __init__(
        self, jobs: list[GroupJob], states: list[GroupState], net: StackedNet, width: int
    ) -> None:
        self.net, self.width, self.device = net, width, net.device
        self.recipe = jobs[0].recipe
        self.rounds = states[0].rounds
        self.cohort = Cohort.of(jobs, self.device)
        self.weights = torch.stack([state.weights for state in states]).to(self.device)
        self.server = torch.stack([state.server for state in states]).to(self.device)
        self.accuracy = [list(state.accuracy) for state in states]
        self.set_aside = [dict(state.set_aside) for state in states]
        self.active = [
            i
            for i, g in enumerate(self.cohort.group)
            if self.cohort.number[i] not in self.set_aside[g]
        ]
        self.controls = self.weights.new_empty((len(self.active), self.weights.shape[1]))
        for g, rows in self._participants().members.items():
            self.controls[self._tensor(rows)] = states[g].controls.to(self.device)

    @property
    def running(self) -> list[int]:
        """The positions of the groups still training."""
        return sorted({self.cohort.group[i] for i in self.active})

    def _participants(self) -> Participants:
        """Return the active clients, in the order of ``active``."""
        return Participants(
            self.cohort.jobs,
            [self.cohort.group[i] for i in self.active],
            [self.cohort.number[i] for i in self.active],
            [self.cohort.sizes[i] for i in self.active],
            stacked=True,
        )

    def states(self) -> Iterator[tuple[int, GroupState]]:
        """Yield (position, state) of the groups still training."""
        for group, rows in self._participants().members.items():
            weights, server = self.weights[group].cpu(), self.server[group].cpu()
            controls = self.controls[self._tensor(rows)].cpu()
            history, gone = tuple(self.accuracy[group]), dict(self.set_aside[group])
            yield group, GroupState(weights, server, controls, history, gone)

    def advance(self) -> Iterator[tuple[int, GroupResult]]:
        """Make one round, yielding (position, result) of every group that stops with it."""
        before = self.running
        self.round()
        self.rounds += 1
        scores = self.scores(self.running)
        for group, score in scores.items():
            self.accuracy[group].append(score)
        finite = torch.isfinite(self.weights).all(dim=1).tolist()
        why = {
            group: stopped(group in scores, finite[group], self.accuracy[group], self.recipe)
            for group in before
        }
        self._keep([row for row, i in enumerate(self.active) if not why[self.cohort.group[i]]])
        for group, reason in why.items():
            if reason is not None:
                history, gone = tuple(self.accuracy[group]), self.set_aside[group]
                yield group, GroupResult(self.weights[group].cpu(), history, reason, gone)

    def round(self) -> None:
        """Run one round of all active clients (Algorithm 4 without line 7)."""
        lr = self.recipe.learning_rate(self.rounds)
        clients = self._participants()
        task = Task(self.weights, self.server, self.controls, lr, self.rounds)
        sent = Update(torch.empty_like(self.controls), torch.empty_like(self.controls))
        for rows, update in self.in_parts(
            list(range(len(self.active))), lambda rows: self._updates(rows, task)
        ):
            part = slice(rows[0], rows[-1] + 1)
            sent.weights[part], sent.client_control[part] = update
        after, set_aside = server_round(clients, task, sent)
        self.weights, self.server = after.weights, after.server_control
        self.controls = after.client_control
        for row, reason in set_aside.items():
            self.set_aside[clients.groups[row]][clients.numbers[row]] = reason
        self._keep([row for row in range(len(self.active)) if row not in set_aside])

    def _keep(self, rows: list[int]) -> None:
        """Go on with some of the active clients."""
        if len(rows) < len(self.active):
            self.active = [self.active[row] for row in rows]
            self.controls = self.controls[self._tensor(rows).long()]

    def _updates(self, rows: list[int], task: Task) -> tuple[Tensor, Tensor]:
        """Return w_i⁺ and c_i⁺ of successive active clients (line 3), each (n, P)."""
        part = [self.active[row] for row in rows]
        group = self._tensor([self.cohort.group[i] for i in part])
        start, own = task.weights[group], task.client_control[rows[0] : rows[-1] + 1]
        shift = correction(task.server_control[group], own)
        attacks = [self._attack(i) for i in part]
        without = [row for row, attack in enumerate(attacks) if attack and not attack.corrected]
        used = shift.index_fill(0, self._tensor(without), 0.0) if without else shift
        end = self.epoch(part, start, used, task.lr, task.round_)
        if self.recipe.algorithm == "fedavg":
            return end, own
        steps = torch.tensor([[float(self._steps(i))] for i in part], device=self.device)
        return end, client_control(shift, start, end, steps, task.lr)

    def _attack(self, client: int) -> Attack | None:
        """Return the attack of a malicious client, None for an honest one."""
        return self.cohort.jobs[self.cohort.group[client]].attack_of(self.cohort.number[client])

    def epoch(
        self, part: list[int], start: Tensor, shift: Tensor, lr: float, round_: int
    ) -> Tensor:
        """Train one epoch of some clients and return their weights, shape (n, P).

        It is :func:`~carvyfl.learning.scaffold.local.local_epoch` for many: the clients
        stand in the order of their sizes, so those with steps left come first,
        and those with a short last batch stand together.
        """
        cohort, batch_size = self.cohort, self.recipe.batch_size
        clients, scale = self._tensor(part), cohort.scale[self._tensor(part)]
        order = self._order(part, round_)
        dropout = cohort.keys("dropout", part, round_)
        weights = start.clone()
        views = self.net.views(weights)
        attacks = [self._attack(i) for i in part]
        pulls = [attack.pull if attack else 0.0 for attack in attacks]
        pull = torch.tensor(pulls, device=self.device)[:, None] if any(pulls) else None
        for step in range(self._steps(part[0])):
            first = step * batch_size
            left = [min(cohort.sizes[i] - first, batch_size) for i in part]
            for rows, wide in _equal_widths(left, batch_size):
                batch = cohort.train.batch(clients[rows], order[rows, first : first + wide])
                own = {name: view[rows] for name, view in views.items()}
                keys = fold(dropout[rows], step)
                gradients = self.net.gradient(own, keys, *batch, scale[rows])
                own_shift = shift[rows]
                if pull is not None:
                    own_shift = own_shift + pull[rows] * (weights[rows] - start[rows])
                stacked_step_(own, gradients, self.net.views(own_shift), lr)
        return weights

    def _order(self, part: list[int], round_: int) -> Tensor:
        """Return the order of samples in an epoch, (n, most samples); padding sorts last."""
        keys = self.cohort.keys("order", part, round_)
        most = self._steps(part[0]) * self.recipe.batch_size
        bits = hash_bits(keys, most).to(torch.int64)
        size = self.cohort.train.size[self._tensor(part)]
        beyond = torch.arange(most, device=self.device) >= size[:, None]
        return torch.argsort(torch.where(beyond, BEYOND, bits), dim=1, stable=True)

    def scores(self, groups: list[int]) -> dict[int, float]:
        """Return A, the mean of the members' validation accuracies, of each group (line 7).

        Members set aside still judge: their validation data did nothing wrong.
        """
        found: dict[int, list[float]] = {g: [] for g in groups}
        sizes = self.cohort.validation_sizes
        judges = [i for i, g in enumerate(self.cohort.group) if g in found and sizes[i]]
        judges.sort(key=lambda i: -sizes[i])
        for part, accuracies in self.in_parts(judges, self._accuracies):
            for i, accuracy in zip(part, accuracies, strict=True):
                found[self.cohort.group[i]].append(accuracy)
        return {g: mean_accuracy(own) for g, own in found.items()}

    def _accuracies(self, part: list[int]) -> list[float]:
        """Return each client's share of validation samples that its group's model gets right."""
        shares: list[float] = []
        clients = self._tensor(part)
        groups = self._tensor([self.cohort.group[i] for i in part])
        sizes = [self.cohort.validation_sizes[i] for i in part]
        for rows, wide in _equal_widths(sizes, sys.maxsize):
            models = self.net.views(self.weights[groups[rows]])
            right, count = (torch.zeros(len(clients[rows]), device=self.device) for _ in range(2))
            for first in range(0, wide, VALIDATED_AT_ONCE):
                last = min(first + VALIDATED_AT_ONCE, wide)
                positions = torch.arange(first, last, device=self.device)
                inputs, labels, mask = self.cohort.validation.batch(
                    clients[rows], positions.expand(len(clients[rows]), -1)
                )
                logits = self.net.logits(models, inputs, self.cohort.scale[clients[rows]])
                hit = (logits.argmax(-1) == labels) & logits.isfinite().all(-1)
                right += (hit * mask).sum(1)
                count += mask.sum(1)
            shares += (right / count).tolist()
        return shares

    def in_parts(
        self, clients: list[int], compute: Callable[[list[int]], T]
    ) -> Iterator[tuple[list[int], T]]:
        """Compute something for some clients, as many at once as memory allows.

        When memory runs out the width is halved, for good, and the part is
        computed again: ``compute`` must not change anything.
        """
        done = 0
        while done < len(clients):
            part = clients[done : done + self.width]
            try:
                result = compute(part)
            except torch.OutOfMemoryError as error:
                if len(part) == 1:
                    raise CarvyError(
                        "the device's memory does not hold one client's step; use engine loop, "
                        "a smaller batch or a smaller model"
                    ) from error
                self.width = len(part) // 2
                torch.cuda.empty_cache()
                continue
            yield part, result
            done += len(part)

    def _steps(self, client: int) -> int:
        return -(-self.cohort.sizes[client] // self.recipe.batch_size)

    def _tensor(self, numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, device=self.device)


def _equal_widths(sizes: list[int], most: int) -> Iterator[tuple[slice, int]]:
    """Cut falling sizes into runs that are padded alike: (rows, padded size).

    A size is padded to a multiple of 16, or to a power of two below: few shapes
    and little waste. It depends on the client's own size alone, so that not even
    a rounding error depends on who else is there. Nothing is padded beyond
    ``most``, and sizes below 1 are left out.
    """
    padded = [
        min(most, -(-size // 16) * 16 if size > 16 else 1 << max(size - 1, 0).bit_length())
        if size > 0
        else 0
        for size in sizes
    ]
    start = 0
    for width, run in itertools.groupby(padded):
        stop = start + len(list(run))
        if width:
            yield slice(start, stop), width
        start = stop
