"""The `batched` engine: all clients of all pending groups advance together on a GPU.

A GPU is idle most of the time when one client of batch 16 trains on it. Here the
clients of every group, whatever federation, seed or method it belongs to, are
stacked (:mod:`carvyfl.learning.scaffold.batched.layers`) and take their steps in one go. What a
group computes is what the loop engine computes: the same order of samples, the
same dropout masks, the same arithmetic (:mod:`carvyfl.learning.scaffold.arithmetic`).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from queue import SimpleQueue
from typing import ClassVar

import torch

from carvyfl.core.errors import CarvyError
from carvyfl.core.interrupt import Interrupts, deferred_interrupt
from carvyfl.core.registry import pick
from carvyfl.learning.job import (
    Checkpoints,
    GroupJob,
    GroupResult,
    GroupState,
    OnRounds,
    initial_states,
)
from carvyfl.learning.scaffold.batched import kernels, warm_up
from carvyfl.learning.scaffold.batched.net import StackedNet
from carvyfl.learning.scaffold.batched.packing import chunks, compatible_jobs, free_memory
from carvyfl.learning.scaffold.batched.training import Training

Heard = tuple[int, int] | tuple[int, GroupResult] | BaseException | None
"""What a thread says: rounds that a group made, a result, why it ends early, or that it ends."""


@dataclass(frozen=True)
class Work:
    """What is to be trained, and whom to tell."""

    jobs: Sequence[GroupJob]
    on_rounds: OnRounds
    checkpoints: Checkpoints | None
    interrupts: Interrupts


@dataclass(frozen=True)
class BatchedEngine:
    """Trains groups on the GPUs of a machine, all groups of a device together.

    ``device`` is ``cuda`` (``CUDA_VISIBLE_DEVICES`` chooses which), or ``cpu`` for tests.
    ``precision`` (``fp32``, ``tf32``, ``bf16``) is that of products; weights, control variates and
    sums of products are float32 always. At most ``width`` clients take a step at once on a device.
    The groups are dealt to ``threads``, each with a device; None is one for every device.
    """

    name: ClassVar[str] = "batched"
    device: str = "cuda"
    precision: str = "bf16"
    width: int = 2048
    threads: int | None = None

    def __post_init__(self) -> None:
        pick({"cuda": None, "cpu": None}, self.device, "device of engine batched")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise CarvyError("engine 'batched' needs a CUDA device and finds none; use loop")
        if self.device == "cuda":
            kernels.import_all()

    def __call__(
        self, jobs: Sequence[GroupJob], on_rounds: OnRounds, checkpoints: Checkpoints | None = None
    ) -> Iterator[tuple[int, GroupResult]]:
        """Train jobs and yield (position, result) as groups finish.

        Between two results Ctrl-C waits for the end of the round, so whoever stops asking should
        close the generator.
        """
        warm_up.wait()
        lots = compatible_jobs(jobs)
        found = torch.cuda.device_count() if self.device == "cuda" else 1
        threads = min(self.threads or found, len(jobs))
        if threads == 1:
            work = Work(jobs, on_rounds, checkpoints, Interrupts())
            yield from self._trained(work, lots, torch.device(self.device))
            return
        heard: SimpleQueue[Heard] = SimpleQueue()

        def train(share: int, interrupts: Interrupts) -> None:
            work = Work(jobs, lambda *rounds: heard.put(rounds), checkpoints, interrupts)
            own = [lot[share::threads] for lot in lots if lot[share::threads]]
            try:
                device = torch.device(self.device, share % found)
                # Kernels are launched on the thread's current device.
                with torch.cuda.device(device) if self.device == "cuda" else nullcontext():
                    for result in self._trained(work, own, device):
                        heard.put(result)
                heard.put(None)
            except BaseException as error:
                heard.put(error)

        yield from _heard(threads, train, heard, on_rounds)

    def _trained(
        self, work: Work, lots: list[list[int]], device: torch.device
    ) -> Iterator[tuple[int, GroupResult]]:
        """Train lots of compatible jobs on a device."""
        jobs, checkpoints = work.jobs, work.checkpoints
        for lot in lots:
            net = StackedNet(jobs[lot[0]].module, device, self.precision)
            for chunk in chunks(jobs, lot, free_memory(device)):
                states = [
                    (None if checkpoints is None else checkpoints.load(p)) or initial
                    for p, initial in zip(
                        chunk, initial_states([jobs[p] for p in chunk]), strict=True
                    )
                ]
                # Groups that were interrupted together go on together.
                for made in sorted({state.rounds for state in states}):
                    here = [
                        (p, state)
                        for p, state in zip(chunk, states, strict=True)
                        if state.rounds == made
                    ]
                    yield from self._chunk(work, here, net)

    def _chunk(
        self, work: Work, here: list[tuple[int, GroupState]], net: StackedNet
    ) -> Iterator[tuple[int, GroupResult]]:
        """Train a chunk of groups that have all made the same number of rounds."""
        positions = [position for position, _ in here]
        states = [state for _, state in here]
        training = Training([work.jobs[p] for p in positions], states, net, self.width)
        checkpoints = work.checkpoints
        saved, pause = time.monotonic(), math.inf if checkpoints is None else checkpoints.every
        while training.active:
            with deferred_interrupt(work.interrupts) as interrupts:
                yield from self._round(positions, training, work.on_rounds)
                if checkpoints is not None and (
                    interrupts.requested or time.monotonic() - saved >= pause
                ):
                    began = time.monotonic()
                    for place, state in training.states():
                        checkpoints.save(positions[place], state)
                    saved = time.monotonic()
                    if checkpoints.every:  # 0 is every round
                        # Thousands of clients take long to write: spend 5 % of the time at most.
                        pause = max(checkpoints.every, 20 * (saved - began))
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


def _heard(
    threads: int,
    train: Callable[[int, Interrupts], None],
    heard: SimpleQueue[Heard],
    on_rounds: OnRounds,
) -> Iterator[tuple[int, GroupResult]]:
    """Run threads and yield the results they put into a queue; if one fails, all stop."""
    failure: BaseException | None = None
    with deferred_interrupt() as interrupts:
        for share in range(threads):
            threading.Thread(target=train, args=(share, interrupts), daemon=True).start()
        running = threads
        while running:
            said = heard.get()
            if isinstance(said, tuple):
                position, what = said
                if isinstance(what, int):
                    on_rounds(position, what)
                else:
                    yield position, what
                continue
            running -= 1
            if said is not None:
                failure, interrupts.requested = failure or said, True
    if failure is not None:
        raise failure
