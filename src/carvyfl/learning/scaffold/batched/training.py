"""Groups that train together on a device: Algorithms 3 and 4 for a chunk of them at once."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from carvyfl.core.errors import CarvyError
from carvyfl.core.randomness import fold, hash_bits
from carvyfl.learning.job import GroupJob, GroupResult, GroupState, stopped
from carvyfl.learning.scaffold.adversary import Attack, RoundView, forged
from carvyfl.learning.scaffold.aggregation import combined
from carvyfl.learning.scaffold.arithmetic import client_control, correction, server_step
from carvyfl.learning.scaffold.batched.cohort import Cohort
from carvyfl.learning.scaffold.batched.net import StackedNet
from carvyfl.learning.scaffold.batched.ops import stacked_step_

T = TypeVar("T")
JUDGED_AT_ONCE = 256
"""So many validation samples of a client are judged at a time: it bounds memory."""

BEYOND = 1 << 40  # larger than any hash: positions past a client's data sort last


class Training:
    """The state of one chunk while it trains: Algorithms 3 and 4, for many groups at once.

    Parameters
    ----------
    jobs
        The groups: one architecture, one recipe.
    states
        Where each of them stands, after the same number of rounds.
    net
        Their model, stacked.
    width
        The most clients that step at once; halved when memory runs out.
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
        clients = len(self.cohort.group)
        self.controls = torch.zeros((clients, self.weights.shape[1]), device=self.device)
        for g, state in enumerate(states):
            self.controls[self._tensor(self._members(g))] = state.controls.to(self.device)

    @property
    def running(self) -> list[int]:
        """The positions of the groups still training."""
        return sorted({self.cohort.group[i] for i in self.active})

    def _members(self, group: int) -> list[int]:
        """Return the active clients of a group, in member order."""
        own = [i for i in self.active if self.cohort.group[i] == group]
        return sorted(own, key=lambda i: self.cohort.number[i])

    def state(self, group: int) -> GroupState:
        """Return where a group stands."""
        return GroupState(
            self.weights[group].cpu(),
            self.server[group].cpu(),
            self.controls[self._tensor(self._members(group))].cpu(),
            tuple(self.accuracy[group]),
            dict(self.set_aside[group]),
        )

    def advance(self) -> Iterator[tuple[int, GroupResult]]:
        """Make one round, yielding (position, result) of every group that stops with it."""
        before = self.running
        self.round(self.rounds)
        self.rounds += 1
        for group, score in self.scores(self.running).items():
            self.accuracy[group].append(score)
        still = set(self.running)
        finite = torch.isfinite(self.weights).all(dim=1).tolist()
        for group in before:
            why = stopped(group in still, finite[group], self.accuracy[group], self.recipe)
            if why is not None:
                self.active = [i for i in self.active if self.cohort.group[i] != group]
                history = tuple(self.accuracy[group])
                yield (
                    group,
                    GroupResult(self.weights[group].cpu(), history, why, self.set_aside[group]),
                )

    def round(self, round_: int) -> None:
        """Run one round of all active clients (Algorithm 4 without line 8)."""
        lr = self.recipe.learning_rate(round_)
        ends, controls = (
            self.weights.new_empty((len(self.active), self.weights.shape[1])) for _ in range(2)
        )
        done = 0
        for part, reports in self.in_parts(
            self.active, lambda part: self._reports(part, lr, round_)
        ):
            rows = slice(done, done + len(part))
            ends[rows], controls[rows] = reports
            done += len(part)
        self._forge(ends, controls, lr, round_)
        fine = torch.isfinite(ends).all(dim=1) & torch.isfinite(controls).all(dim=1)
        usable = fine.tolist()
        # A refused report is replaced, not multiplied by zero: NaN times zero is NaN.
        for sent in (ends, controls):
            sent[~fine] = 0
        if self.recipe.algorithm == "fedavg":  # has no control variates, whatever was sent as one
            controls = self.controls[self._tensor(self.active)]
        weights, server = self._aggregates(ends, controls, usable)
        self.weights = server_step(self.weights, weights, self.recipe.server_step)
        self.server = server
        self.controls[self._tensor(self.active)] = controls
        self._set_aside(usable, round_)

    def _aggregates(
        self, ends: Tensor, controls: Tensor, usable: list[bool]
    ) -> tuple[Tensor, Tensor]:
        """Return the aggregates of all groups' models and control variates, each (G, P).

        A group that nobody reported for keeps what it has.
        """
        weights, server = self.weights.clone(), self.server.clone()
        if self.recipe.aggregation != "mean":
            for group, members in self._rows_by_group().items():
                fit = self._tensor([row for row in members if usable[row]]).long()
                if len(fit):
                    for sent, kept in ((ends, weights), (controls, server)):
                        kept[group] = combined(self.recipe, sent[fit], kept[group])
            return weights, server
        sums, control_sums = torch.zeros_like(weights), torch.zeros_like(server)
        shares, count = (torch.zeros(len(weights), device=self.device) for _ in range(2))
        fine = torch.tensor(usable, device=self.device).float()
        share = fine
        if self.recipe.algorithm == "fedavg":
            sizes = [float(self.cohort.sizes[i]) for i in self.active]
            share = fine * torch.tensor(sizes, device=self.device)
        for turn, groups in self._one_member_each(self.active):
            sums[groups] += ends[turn] * share[turn, None]
            control_sums[groups] += controls[turn]
            shares[groups] += share[turn]
            count[groups] += fine[turn]
        reached = torch.nonzero(count > 0).squeeze(1)
        weights[reached] = sums[reached] / shares[reached, None]
        server[reached] = control_sums[reached] / count[reached, None]
        return weights, server

    def _rows_by_group(self) -> dict[int, list[int]]:
        """Return the rows of each group's members among the active clients, in member order."""
        found: dict[int, list[int]] = {}
        for row, i in enumerate(self.active):
            found.setdefault(self.cohort.group[i], []).append(row)
        for rows in found.values():
            rows.sort(key=lambda row: self.cohort.number[self.active[row]])
        return found

    def _forge(self, ends: Tensor, controls: Tensor, lr: float, round_: int) -> None:
        """Put what malicious members send in place of what they trained."""
        if all(job.attack is None for job in self.cohort.jobs):
            return
        for group, members in self._rows_by_group().items():
            job = self.cohort.jobs[group]
            clients = {row: self.active[row] for row in members}
            numbers = {row: self.cohort.number[i] for row, i in clients.items()}
            chosen = [row for row in members if numbers[row] in job.malicious]
            if job.attack is None or not chosen:
                continue
            others = self._tensor([row for row in members if row not in chosen]).long()
            rows = self._tensor(chosen)
            steps = [[float(self._steps(clients[row]))] for row in chosen]
            by_size = self.recipe.weighs_samples
            weight = {
                row: float(self.cohort.sizes[i]) if by_size else 1.0 for row, i in clients.items()
            }
            view = RoundView(
                weights=self.weights[group],
                server_control=self.server[group],
                trained=ends[rows],
                controls=self.controls[self._tensor([clients[row] for row in chosen])],
                steps=torch.tensor(steps, device=self.device),
                benign_weights=ends[others],
                benign_controls=controls[others],
                members=tuple(numbers[row] for row in chosen),
                own_weight=sum(weight[row] for row in chosen),
                all_weight=sum(weight.values()),
                lr=lr,
                server_step=self.recipe.server_step,
                round_=round_,
                seed=job.seed,
            )
            ends[rows], controls[rows] = forged(job.attack, view)

    def _reports(self, part: list[int], lr: float, round_: int) -> tuple[Tensor, Tensor]:
        """Return what some clients send: w_i⁺ and c_i⁺, each (n, P)."""
        group = self._tensor([self.cohort.group[i] for i in part])
        start, own = self.weights[group], self.controls[self._tensor(part)]
        shift = correction(self.server[group], own)
        end = self.epoch(part, start, self._trained_with(part, shift), lr, round_)
        if self.recipe.algorithm == "fedavg":
            return end, own
        steps = torch.tensor([[float(self._steps(i))] for i in part], device=self.device)
        return end, client_control(shift, start, end, steps, lr)

    def _trained_with(self, part: list[int], shift: Tensor) -> Tensor:
        """Return the corrections clients really train with: some attackers take none."""
        attacks = [self._attack(i) for i in part]
        without = [row for row, attack in enumerate(attacks) if attack and not attack.corrected]
        if not without:
            return shift
        shift = shift.clone()
        shift[self._tensor(without)] = 0
        return shift

    def _attack(self, client: int) -> Attack | None:
        """Return the attack of a malicious client, None for an honest one."""
        job = self.cohort.jobs[self.cohort.group[client]]
        return job.attack if self.cohort.number[client] in job.malicious else None

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
            for rows, wide in _alike_in_width(left, batch_size):
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
        """Return A, the mean of the members' validation accuracies, of each group.

        Members set aside still judge: their validation data did nothing wrong.
        """
        found: dict[int, list[float]] = {g: [] for g in groups}
        sizes = self.cohort.validation_sizes
        judges = [i for i, g in enumerate(self.cohort.group) if g in found and sizes[i]]
        judges.sort(key=lambda i: -sizes[i])
        for part, accuracies in self.in_parts(judges, self._accuracies):
            for i, accuracy in zip(part, accuracies, strict=True):
                found[self.cohort.group[i]].append(accuracy)
        return {g: float(np.mean(own)) if own else float("nan") for g, own in found.items()}

    def _accuracies(self, part: list[int]) -> list[float]:
        """Return each client's share of validation samples that its group's model gets right."""
        shares: list[float] = []
        clients = self._tensor(part)
        groups = self._tensor([self.cohort.group[i] for i in part])
        sizes = [self.cohort.validation_sizes[i] for i in part]
        for rows, wide in _alike_in_width(sizes, sys.maxsize):
            models = self.net.views(self.weights[groups[rows]])
            right, count = (torch.zeros(len(clients[rows]), device=self.device) for _ in range(2))
            for first in range(0, wide, JUDGED_AT_ONCE):
                last = min(first + JUDGED_AT_ONCE, wide)
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

    def _one_member_each(self, part: list[int]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (rows, groups) that cover a part, at most one member of a group at a time.

        Sums then run over members in their own order, and do not depend on how
        the device orders concurrent additions.
        """
        turns: list[list[int]] = []
        seen: dict[int, int] = {}
        for row, i in enumerate(part):
            turn = seen.get(self.cohort.group[i], 0)
            seen[self.cohort.group[i]] = turn + 1
            if turn == len(turns):
                turns.append([])
            turns[turn].append(row)
        for rows in turns:
            yield self._tensor(rows), self._tensor([self.cohort.group[part[row]] for row in rows])

    def _set_aside(self, usable: list[bool], round_: int) -> None:
        for i, fine in zip(self.active, usable, strict=True):
            if not fine:
                reasons = self.set_aside[self.cohort.group[i]]
                reasons[self.cohort.number[i]] = f"round {round_}: NaN or infinite values"
        self.active = [i for i, fine in zip(self.active, usable, strict=True) if fine]

    def _steps(self, client: int) -> int:
        return -(-self.cohort.sizes[client] // self.recipe.batch_size)

    def _tensor(self, numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, device=self.device)


def _alike_in_width(sizes: list[int], most: int) -> Iterator[tuple[slice, int]]:
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
