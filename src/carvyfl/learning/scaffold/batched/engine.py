"""The `batched` engine: all clients of all pending groups advance together on a GPU.

Clients of any federation, seed or method are stacked and take their steps in one go. What a group
computes is what CPU cores compute: the same order of samples, dropout masks and arithmetic.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any, ClassVar

import torch

from carvyfl.core.errors import CarvyError
from carvyfl.core.fingerprint import fingerprint
from carvyfl.core.progress import Interrupts, Report, deferred_interrupt, quiet
from carvyfl.core.registry import pick
from carvyfl.data.clients import Client, Samples
from carvyfl.learning.job import Checkpoints, GroupJob, GroupResult, GroupState, OnRounds
from carvyfl.learning.models import num_weights
from carvyfl.learning.scaffold.batched.device import free_memory, load_kernels
from carvyfl.learning.scaffold.batched.net import StackedNet
from carvyfl.learning.scaffold.batched.training import Training

Results = Iterator[tuple[int, GroupResult]]  # (position of a job, its result), as they come
# From a thread: rounds that a group made, a result, why it ends early, or that it ends
News = tuple[int, int] | tuple[int, GroupResult] | BaseException | None


@dataclass(frozen=True)
class Gpus:
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
        if self.device == "cuda":
            if not torch.cuda.is_available():
                raise CarvyError("engine 'batched' needs a CUDA device and finds none; use loop")
            from carvyfl.learning.scaffold.batched import kernels  # no thread should import them

            kernels.import_all()

    def map(self, work: Any, items: Sequence[Any], progress: Report = quiet) -> Any:
        """Do the work for all items together, and return the answers in their order."""
        return work.together(items, torch.device(self.device), progress)

    def train_groups(
        self, jobs: Sequence[GroupJob], on_rounds: OnRounds, checkpoints: Checkpoints | None = None
    ) -> Results:
        """Train jobs and yield (position, result) as groups finish; Ctrl-C waits for the round."""
        lots = compatible_jobs(jobs)
        devices = torch.cuda.device_count() if self.device == "cuda" else 1
        threads = min(self.threads or devices, len(jobs))
        if threads == 1:
            work = _Work(self, jobs, torch.device(self.device), on_rounds, checkpoints)
            yield from work.results(lots)
            return
        reports: SimpleQueue[News] = SimpleQueue()

        def train(share: int, interrupts: Interrupts) -> None:
            device = torch.device(self.device, share % devices)
            listeners = (lambda *rounds: reports.put(rounds), checkpoints, interrupts)
            work = _Work(self, jobs, device, *listeners)
            shares = [part for lot in lots if (part := lot[share::threads])]
            try:
                # Kernels are launched on the thread's current device.
                with torch.cuda.device(device) if self.device == "cuda" else nullcontext():
                    for result in work.results(shares):
                        reports.put(result)
                reports.put(None)
            except BaseException as error:
                reports.put(error)

        yield from _received(threads, train, reports, on_rounds)


@dataclass(frozen=True)
class _Work:
    """What is to be trained on a device, and who hears of it."""

    engine: Gpus
    jobs: Sequence[GroupJob]
    device: torch.device
    on_rounds: OnRounds
    checkpoints: Checkpoints | None
    interrupts: Interrupts | None = None

    def results(self, lots: list[list[int]]) -> Results:
        """Train lots of compatible jobs."""
        for lot in lots:
            net = StackedNet(self.jobs[lot[0]].module, self.device, self.engine.precision)
            if self.device.type == "cuda":
                load_kernels(training_works([self.jobs[p] for p in lot], net))
            for chunk in chunks(self.jobs, lot, free_memory(self.device)):
                saved = self.checkpoints
                states = {p: None if saved is None else saved.load(p) for p in chunk}
                # Groups that were interrupted together go on together.
                made = {p: state.rounds if state else -1 for p, state in states.items()}
                for rounds in sorted(set(made.values())):
                    alike = {p: state for p, state in states.items() if made[p] == rounds}
                    yield from self._chunk(alike, net)

    def _chunk(self, states: dict[int, GroupState | None], net: StackedNet) -> Results:
        """Train groups that have all made the same number of rounds, or none without a state."""
        positions, checkpoints = list(states), self.checkpoints
        begun = [state for state in states.values() if state is not None]
        training = Training([self.jobs[p] for p in positions], net, self.engine.width, begun)
        saved, pause = time.monotonic(), math.inf if checkpoints is None else checkpoints.every
        while training.active:
            with deferred_interrupt(self.interrupts) as interrupts:
                for place, result in training.advance():
                    yield positions[place], result
                for place in training.running:
                    self.on_rounds(positions[place], training.rounds)
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


def _received(
    threads: int,
    train: Callable[[int, Interrupts], None],
    reports: SimpleQueue[News],
    on_rounds: OnRounds,
) -> Results:
    """Run threads and yield the results they report; if one fails, all stop."""
    failure: BaseException | None = None
    with deferred_interrupt() as interrupts:
        for share in range(threads):
            threading.Thread(target=train, args=(share, interrupts), daemon=True).start()
        running = threads
        while running:
            match reports.get():
                case (position, int(rounds)):
                    on_rounds(position, rounds)
                case (position, result):
                    yield position, result
                case error:
                    running -= 1
                    if error is not None:
                        failure, interrupts.requested = failure or error, True
    if failure is not None:
        raise failure


def training_works(jobs: Sequence[GroupJob], net: StackedNet) -> list[Callable[[], object]]:
    """Return what trains and validates the largest client for a step, full batches and its last."""
    pairs = ((job, client) for job in jobs for client in job.clients)
    job, client = max(pairs, key=lambda pair: len(pair[1].train))
    size, batch = len(client.train), job.recipe.batch_size

    def training(samples: int) -> Training:
        train = Samples(client.train.inputs[:samples], client.train.labels[:samples])
        # Two of them: PyTorch gives the weights of a single one other strides, and Triton compiles
        # other kernels for these.
        two = (Client(train, client.validation),) * 2
        return Training([replace(job, clients=two, members=(0, 1), attack=None)], net, width=2)

    sizes = {min(size, batch), size % batch} - {0}
    return [*(lambda n=n: training(n).round() for n in sizes), lambda: training(1).scores([0])]


def compatible_jobs(jobs: Sequence[GroupJob]) -> list[list[int]]:
    """Sort jobs into lots that can train together: one architecture, recipe and kind of input."""
    lots: dict[object, list[int]] = {}
    modules = {id(job.module): job.module for job in jobs}
    described = {key: fingerprint(module) for key, module in modules.items()}
    for position, job in enumerate(jobs):
        inputs = job.clients[0].train.inputs
        kind = (described[id(job.module)], job.recipe, inputs.dtype, inputs.shape[1:])
        lots.setdefault(kind, []).append(position)
    return list(lots.values())


def chunks(jobs: Sequence[GroupJob], lot: list[int], free: int) -> Iterator[list[int]]:
    """Cut a lot of jobs into chunks whose data and state take no more than 40 % of the memory.

    The rest is for the activations of a step, whose size is found by trying.
    """
    weights = 4 * num_weights(jobs[lot[0]].module)
    budget, used, chunk = int(0.4 * free), 0, list[int]()
    for position in lot:
        job = jobs[position]
        data = sum(c.train.inputs.nbytes + c.validation.inputs.nbytes for c in job.clients)
        need = (3 * len(job.members) + 4) * weights + data
        if need > budget:
            raise CarvyError(
                f"a group of {len(job.members)} clients needs {need >> 20} MiB, but only "
                f"{budget >> 20} MiB are free for it; make the group smaller or use engine loop"
            )
        if used + need > budget:
            yield chunk
            chunk, used = [], 0
        chunk.append(position)
        used += need
    yield chunk
