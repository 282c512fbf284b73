"""Clients laid out on a device, so that many can train at once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from carvyfl.core.arrays import joined
from carvyfl.core.randomness import derive_each, stem
from carvyfl.data.clients import Samples
from carvyfl.learning.job import GroupJob
from carvyfl.learning.scaffold.batched import ops


@dataclass(frozen=True)
class Pool:
    """Samples of many clients on the device, end to end.

    Inputs are uint8 or float32 of shape (total, …), labels int64 of shape (total,); ``start`` and
    ``size``, int64 of shape (N,), are where a client's samples begin, and how many it has.
    """

    inputs: Tensor
    labels: Tensor
    start: Tensor
    size: Tensor

    @classmethod
    def of(cls, samples: Sequence[Samples], device: torch.device) -> Pool:
        """Copy the clients' samples to the device."""
        sizes = np.array([len(part) for part in samples], dtype=np.int64)
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        inputs = joined([part.inputs for part in samples])
        labels = np.concatenate([part.labels for part in samples])
        moved = (torch.from_numpy(a).to(device) for a in (inputs, labels, starts, sizes))
        return cls(*moved)

    def batch(self, clients: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gather samples at (n, B) positions within each client's own data.

        Returns inputs (n, B, …), labels (n, B) and a float32 mask (n, B) that is 0 where a position
        lies beyond the client's data.
        """
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
        """Draw the batch of a step, with inputs prepared for a model.

        Parameters
        ----------
        clients
            n of them, int64.
        order, step
            The order of their samples in this epoch, (n, most), and the number of the step, (1,).
        wide
            How many samples are drawn of each, padding included; at most ``batch_size``.
        scale, dtype
            See :func:`~carvyfl.learning.scaffold.batched.ops.scaled`.
        """
        if ops.by_kernels(self.inputs):
            from carvyfl.learning.scaffold.batched.kernels.gather import gather

            pool = (self.inputs, self.labels, self.start, self.size)
            return gather(pool, clients, order, step, batch_size, wide, scale, dtype)
        places = step * batch_size + torch.arange(wide, device=order.device)
        inputs, labels, mask = self.batch(clients, order.index_select(1, places))
        return ops.scaled(inputs, scale, dtype), labels, mask


@dataclass(frozen=True)
class Cohort:
    """Groups that train together: one recipe, one architecture, one kind of data.

    Clients are in the order of their number of steps, most first, so that those
    still training within an epoch are always the first ones.

    Attributes
    ----------
    group, number
        Of each of the N clients: the position of its group in ``jobs``, and its
        number in its federation.
    scale
        float32 of shape (N, 2): mean and std of each client's inputs.
    """

    jobs: tuple[GroupJob, ...]
    group: tuple[int, ...]
    number: tuple[int, ...]
    train: Pool
    validation: Pool
    sizes: tuple[int, ...]
    validation_sizes: tuple[int, ...]
    scale: Tensor

    @classmethod
    def of(cls, jobs: Sequence[GroupJob], device: torch.device) -> Cohort:
        """Lay the clients of some groups out on the device."""
        members = [
            (len(client.train), g, rank)
            for g, job in enumerate(jobs)
            for rank, client in enumerate(job.clients)
        ]
        members.sort(key=lambda entry: (-entry[0], entry[1], entry[2]))
        clients = [jobs[g].clients[rank] for _, g, rank in members]
        return cls(
            jobs=tuple(jobs),
            group=tuple(g for _, g, _ in members),
            number=tuple(jobs[g].members[rank] for _, g, rank in members),
            train=Pool.of([client.train for client in clients], device),
            validation=Pool.of([client.validation for client in clients], device),
            sizes=tuple(len(client.train) for client in clients),
            validation_sizes=tuple(len(client.validation) for client in clients),
            scale=torch.tensor([(jobs[g].mean, jobs[g].std) for _, g, _ in members], device=device),
        )

    def keys(self, clients: Sequence[int], round_: int) -> tuple[list[int], list[int]]:
        """Return some clients' keys of a round, for the order of samples and for dropout.

        They are those that the loop engine derives.
        """
        order, dropout = (
            derive_each([own[i] for i in clients], itertools.repeat(round_)).tolist()
            for own in self._stems
        )
        return order, dropout

    @cached_property
    def _stems(self) -> list[list[bytes]]:
        """What the keys of every client's rounds begin with, for each purpose."""
        owners = list(zip(self.group, self.number, strict=True))
        return [
            [stem(self.jobs[g].seed, purpose, number) for g, number in owners]
            for purpose in ("order", "dropout")
        ]
