"""Groups that train together on a device: Algorithms 3 and 4 for a chunk of them at once."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

from carvyfl.learning.job import GroupJob, GroupResult, GroupState, stopped, validates
from carvyfl.learning.scaffold.arithmetic import client_control, correction
from carvyfl.learning.scaffold.batched.cohort import Cohort
from carvyfl.learning.scaffold.batched.local_steps import LocalSteps, equal_widths
from carvyfl.learning.scaffold.batched.net import StackedNet
from carvyfl.learning.scaffold.batched.packing import fitting_parts
from carvyfl.learning.scaffold.round import (
    Participants,
    Task,
    Update,
    mean_accuracy,
    server_round,
)

T = TypeVar("T")
TAKEN_AT_ONCE = 256
"""Models of groups that are copied from the device at a time."""
VALIDATED_AT_ONCE = 256
"""Validation samples of a client that are classified at a time, to bound memory."""


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
        self.weights = self._stacked([state.weights for state in states])
        self.server = self._stacked([state.server for state in states])
        self.accuracy = [list(state.accuracy) for state in states]
        self.set_aside = [dict(state.set_aside) for state in states]
        self.active = [
            i
            for i, g in enumerate(self.cohort.group)
            if self.cohort.number[i] not in self.set_aside[g]
        ]
        self._steps: dict[tuple[int, int], LocalSteps] = {}
        self._clients = self._participants()
        self.controls = self.weights.new_zeros((len(self.active), self.weights.shape[1]))
        if self.rounds:  # before the first one they are zero
            for g, rows in self._clients.members.items():
                self.controls[self._tensor(rows)] = states[g].controls.to(self.device)

    @property
    def running(self) -> list[int]:
        """The positions of the groups still training."""
        return sorted(self._clients.members)

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
        self._keep([row for row, i in enumerate(self.active) if not why[self.cohort.group[i]]])
        ended = [(group, reason) for group, reason in why.items() if reason is not None]
        for first in range(0, len(ended), TAKEN_AT_ONCE):
            some = ended[first : first + TAKEN_AT_ONCE]
            models = self.weights[self._tensor([group for group, _ in some])].cpu()
            for (group, reason), weights in zip(some, models, strict=True):
                history, gone = tuple(self.accuracy[group]), self.set_aside[group]
                yield group, GroupResult(weights, history, reason, gone)

    def round(self) -> None:
        """Run one round of all active clients (Algorithm 4 without line 7)."""
        lr = self.recipe.learning_rate(self.rounds)
        clients = self._clients
        task = Task(self.weights, self.server, self.controls, lr, self.rounds)
        parts = self.in_parts(list(range(len(self.active))), lambda rows: self._updates(rows, task))
        sent = [update for _, update in parts]
        update = sent[0] if len(sent) == 1 else tuple(map(torch.cat, zip(*sent, strict=True)))
        after, set_aside = server_round(clients, task, Update(*update))
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
            self._clients = self._participants()
            self._steps.clear()

    def _updates(self, rows: list[int], task: Task) -> tuple[Tensor, Tensor]:
        """Return w_i⁺ and c_i⁺ of successive active clients (line 3), each (n, P)."""
        part = slice(rows[0], rows[-1] + 1)
        steps = self._steps.get((part.start, part.stop))
        if steps is None:
            steps = LocalSteps(self.net, self.cohort, self.active[part], self.recipe.batch_size)
            self._steps[part.start, part.stop] = steps
        place = None if steps.fixed is None else steps.fixed.start
        start = torch.index_select(task.weights, 0, steps.groups, out=place)
        own = task.client_control[part]
        shift = correction(task.server_control.index_select(0, steps.groups), own)
        end = steps.epoch(start, shift, task.lr, task.round_)
        if self.recipe.algorithm == "fedavg":
            return end, own.clone()  # which attackers may forge
        return end, client_control(shift, start, end, steps.counts, task.lr)

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
        for rows, wide in equal_widths(sizes, sys.maxsize):
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

    def _stacked(self, vectors: list[Tensor]) -> Tensor:
        """Return vectors (P,) as rows on the device; one that several share is moved once."""
        distinct = {id(vector): vector for vector in vectors}
        place = {key: row for row, key in enumerate(distinct)}
        rows = self._tensor([place[id(vector)] for vector in vectors])
        return torch.stack(list(distinct.values())).to(self.device)[rows]

    def _tensor(self, numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, device=self.device)
