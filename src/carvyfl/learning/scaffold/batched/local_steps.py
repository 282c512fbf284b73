"""The local steps of stacked clients: an epoch of each (Algorithm 4, line 3).

Few clients do not keep a GPU busy: launching a step's kernels takes longer than computing them.
Their steps are recorded once, as CUDA graphs, and then replayed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from carvyfl.core.randomness import fold, hash_bits
from carvyfl.learning.scaffold.batched.cohort import Cohort
from carvyfl.learning.scaffold.batched.net import StackedNet
from carvyfl.learning.scaffold.batched.ops import stacked_step_
from carvyfl.learning.scaffold.batched.packing import ALLOCATOR

RECORDED = 1024
"""Clients up to which steps are recorded: more keep the GPU busy while the next is launched."""

BEYOND = 1 << 40  # larger than any hash: positions past a client's data sort last


@dataclass(frozen=True)
class Epoch:
    """What the steps of an epoch read and write, on the device.

    Attributes
    ----------
    weights, start, shift
        y, x and c - c_i, float32 of shape (n, P); the steps change y.
    order
        The order of every client's samples, int64 of shape (n, most samples).
    dropout
        Keys of every step and dropout layer, int64 of shape (steps, L, n).
    lr, step
        η, float32, and the number of the step, int64, each of shape (1,).
    """

    weights: Tensor
    start: Tensor
    shift: Tensor
    order: Tensor
    dropout: Tensor
    lr: Tensor
    step: Tensor

    def load_(self, other: Epoch) -> None:
        """Copy another epoch of the same clients into this one's places."""
        for field in fields(self):
            own, new = getattr(self, field.name), getattr(other, field.name)
            if own is not new:
                own.copy_(new)


class LocalSteps:
    """Some clients of a chunk whose steps are taken together.

    It computes :func:`~carvyfl.learning.scaffold.local.local_epoch` for many. The clients stand
    in the order of their sizes, so those with steps left come first, and those with a short last
    batch stand together.

    ``part`` are their positions in the cohort. ``groups``, int64 of shape (n,), are those of
    their groups, and ``counts``, float32 of shape (n, 1), how many steps an epoch of each has.
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
        self._ahead: dict[int, tuple[list[int], list[int]]] = {}
        self.fixed: Epoch | None = None
        self._graphs: dict[tuple[int, int, int], torch.cuda.CUDAGraph | None] = {}

    def epoch(self, start: Tensor, shift: Tensor, lr: float, round_: int) -> Tensor:
        """Train every client for an epoch and return y, (n, P); it is good until the next epoch."""
        known = round_ in self._ahead
        keys = self._ahead.pop(round_) if known else self.cohort.keys(self.part, round_)
        order, dropout = keys
        epoch = Epoch(
            start if self.fixed is not None else start.clone(),
            start,
            shift if self._corrected is None else torch.where(self._corrected, shift, 0.0),
            self._order(torch.tensor(order, device=self.net.device)),
            self._dropout(torch.tensor(dropout, device=self.net.device)),
            torch.tensor([lr], device=self.net.device),
            torch.zeros(1, dtype=torch.int64, device=self.net.device),
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
        others = next((known for known in self._graphs.values() if known is not None), None)
        # All graphs of a part compute in the same memory: they never run at once.
        pool = None if others is None else others.pool()
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
        """Take a step of some rows, with batches padded to a width."""
        batch = self.cohort.train.step_batch(
            self._clients[rows],
            epoch.order[rows],
            epoch.step,
            self.batch_size,
            wide,
            self._scale[rows],
            self.net.dtype,
        )
        weights, shift = epoch.weights[rows], epoch.shift[rows]
        own = self.net.views(weights)
        keys = epoch.dropout[..., rows].index_select(0, epoch.step)[0]
        gradients = self.net.gradient(own, keys, *batch)
        if self._pull is not None:
            shift = shift + self._pull[rows] * (weights - epoch.start[rows])
        stacked_step_(own, gradients, self.net.views(shift), epoch.lr)

    def _dropout(self, keys: Tensor) -> Tensor:
        """Return the keys of an epoch's steps and dropout layers, (steps, L, n)."""
        steps = torch.arange(self._schedule[-1][0] + 1, device=keys.device)
        return self.net.dropout_keys(fold(keys, steps[:, None])).transpose(0, 1).contiguous()

    def _order(self, keys: Tensor) -> Tensor:
        """Return the order of samples in an epoch, (n, most samples); padding sorts last."""
        most = int(self._schedule[-1][0] + 1) * self.batch_size
        bits = hash_bits(keys, most).to(torch.int64)
        beyond = (
            torch.arange(most, device=bits.device) >= self.cohort.train.size[self._clients, None]
        )
        return torch.argsort(torch.where(beyond, BEYOND, bits), dim=1, stable=True)


def equal_widths(sizes: list[int], most: int) -> Iterator[tuple[slice, int]]:
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
