"""The `batched` engine: all clients of all pending groups advance together on a GPU.

A GPU is idle most of the time when one client of batch 16 trains on it. Here the
clients of every group, whatever federation, seed or method it belongs to, are
stacked (:mod:`carvyfl.learning.scaffold.batched.layers`) and take their steps in one go. What a
group computes is what the loop engine computes: the same order of samples, the
same dropout masks, the same arithmetic (:mod:`carvyfl.learning.scaffold.arithmetic`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from carvyfl.core.errors import CarvyError
from carvyfl.core.interrupt import deferred_interrupt
from carvyfl.core.registry import pick
from carvyfl.learning.job import Checkpoints, GroupJob, GroupResult, GroupState, OnRounds
from carvyfl.learning.scaffold.batched.net import StackedNet
from carvyfl.learning.scaffold.batched.packing import chunks, compatible_jobs, free_memory
from carvyfl.learning.scaffold.batched.training import Training


@dataclass(frozen=True)
class BatchedEngine:
    """Trains groups on one device, all together.

    ``device`` is ``cuda``, the current one (``CUDA_VISIBLE_DEVICES`` chooses it), or ``cpu`` for
    tests. ``precision`` (``fp32``, ``tf32``, ``bf16``) is that of products; weights, control
    variates and sums of products are float32 always. At most ``width`` clients take a step at once.
    """

    name: ClassVar[str] = "batched"
    device: str = "cuda"
    precision: str = "bf16"
    width: int = 2048

    def __post_init__(self) -> None:
        pick({"cuda": None, "cpu": None}, self.device, "device of engine batched")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise CarvyError("engine 'batched' needs a CUDA device and finds none; use loop")

    def __call__(
        self, jobs: Sequence[GroupJob], on_rounds: OnRounds, checkpoints: Checkpoints | None = None
    ) -> Iterator[tuple[int, GroupResult]]:
        """Train jobs and yield (position, result) as groups finish."""
        device = torch.device(self.device)
        for lot in compatible_jobs(jobs):
            net = StackedNet(jobs[lot[0]].module, device, self.precision)
            for chunk in chunks(jobs, lot, free_memory(device)):
                states = [None if checkpoints is None else checkpoints.load(p) for p in chunk]
                # Groups that were interrupted together go on together.
                for made in sorted({0 if state is None else state.rounds for state in states}):
                    here = [
                        (p, state or GroupState.initial(jobs[p]))
                        for p, state in zip(chunk, states, strict=True)
                        if (0 if state is None else state.rounds) == made
                    ]
                    yield from self._train(jobs, here, net, on_rounds, checkpoints)

    def _train(
        self,
        jobs: Sequence[GroupJob],
        here: list[tuple[int, GroupState]],
        net: StackedNet,
        on_rounds: OnRounds,
        checkpoints: Checkpoints | None,
    ) -> Iterator[tuple[int, GroupResult]]:
        """Train a chunk of groups that have all made the same number of rounds."""
        positions = [position for position, _ in here]
        states = [state for _, state in here]
        training = Training([jobs[position] for position in positions], states, net, self.width)
        if checkpoints is None:
            while training.active:
                yield from self._round(positions, training, on_rounds)
            return
        saved, pause = time.monotonic(), checkpoints.every
        while training.active:
            with deferred_interrupt() as interrupts:
                finished = list(self._round(positions, training, on_rounds))
                if interrupts.requested or time.monotonic() - saved >= pause:
                    began = time.monotonic()
                    for place, state in training.states():
                        checkpoints.save(positions[place], state)
                    saved = time.monotonic()
                    if checkpoints.every:  # 0 is every round
                        # Thousands of clients take long to write: spend 5 % of the time at most.
                        pause = max(checkpoints.every, 20 * (saved - began))
            yield from finished
            if interrupts.requested:
                raise KeyboardInterrupt

    def _round(
        self, positions: list[int], training: Training, on_rounds: OnRounds
    ) -> Iterator[tuple[int, GroupResult]]:
        """Make one round of a chunk."""
        for place, result in training.advance():
            yield positions[place], result
        for place in training.running:
            on_rounds(positions[place], training.rounds)
