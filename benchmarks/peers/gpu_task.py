"""What all peers on the GPU share: the clients, the model, and how a round is timed.

A client-step is one mini-batch of 16, forward and backward, with the step of SGD. A round
that does not fit into the time allowed is timed in part: fewer clients where they come one
after another, fewer steps where they advance together.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

BATCH, LR = 16, 0.01
SHAPE, CLASSES = (1, 28, 28), 10
POOL = 4096
MEAN, STD = 0.286, 0.353
ROUNDS = 3
PROBE = 4


@dataclass(frozen=True)
class Task:
    """One size of the task, for one peer.

    Attributes
    ----------
    clients, samples
        How many clients, and samples of each.
    device
        ``cuda`` or ``cpu``.
    precision
        ``fp32``, or ``bf16``: activations and products in bfloat16, weights in float32.
    seconds
        What timing it may take, roughly.
    weights
        File of the initial weights, by name, for peers without PyTorch.
    """

    clients: int
    samples: int
    device: str
    precision: str
    seconds: float
    weights: str = ""

    @property
    def steps(self) -> int:
        """Steps of a client in a round; the last batch may be shorter."""
        return -(-self.samples // BATCH)


class Meter(Protocol):
    """What a framework says of its device."""

    def wait(self) -> None:
        """Wait until all work is done."""

    def reset(self) -> None:
        """Forget the largest memory so far, if the framework can."""

    def peak_gib(self) -> float | None:
        """Return the largest memory held, None if unknown."""


def arrays(task: Task) -> tuple[np.ndarray, np.ndarray]:
    """Make all clients' normalised inputs (N, n, 1, 28, 28), float32, and labels (N, n).

    They are random images: the time of a step does not depend on what they show.
    """
    random = np.random.default_rng(0)
    pool = random.integers(0, 256, (POOL, *SHAPE), dtype=np.uint8).astype(np.float32)
    labels = random.integers(0, CLASSES, POOL)
    chosen = random.integers(0, POOL, (task.clients, task.samples))
    return ((pool / 255 - MEAN) / STD)[chosen], labels[chosen]


def some_samples() -> tuple[np.ndarray, np.ndarray]:
    """Return samples to show that a peer learns: the loss on them before and after."""
    inputs, labels = arrays(Task(1, 256, "cpu", "fp32", 0))
    return inputs[0], labels[0]


def result(
    task: Task, times: Sequence[float], meter: Meter, *, clients: int, steps: int
) -> dict[str, Any]:
    """Boil the timed rounds, or parts of one, down to the figures."""
    median = statistics.median(times)
    whole = clients == task.clients and steps == task.steps
    return {
        "us_per_client_step": 1e6 * median / (clients * steps),
        "seconds_per_round": median if whole else None,
        "timed": "whole rounds" if whole else "a part of a round",
        "clients_timed": clients,
        "steps_timed": steps,
        "seconds": list(times),
        "peak_gib": meter.peak_gib(),
    }


def time_serial(
    task: Task,
    rounds: Callable[[int, int], list[float]],
    meter: Meter,
    warm_up: float = 0.0,
) -> dict[str, Any]:
    """Time a peer that trains one client after another.

    Parameters
    ----------
    rounds
        (clients, count) → seconds of so many rounds of the first clients.
    warm_up
        What ``rounds`` does on top, in rounds, and does not count.
    """
    probe = min(PROBE, task.clients)
    rounds(probe, 1)
    each = min(rounds(probe, 1)) / probe
    fitting = max(probe, int(task.seconds / each / (1 + warm_up)))
    clients = task.clients if task.clients <= 1.5 * fitting else fitting
    count = int(task.seconds / (each * clients) - warm_up)
    meter.reset()
    times = rounds(clients, max(1, min(ROUNDS, count)))
    return result(task, times, meter, clients=clients, steps=task.steps)


def time_stacked(
    task: Task,
    round_: Callable[[int, int], None],
    meter: Meter,
    chunks: Sequence[int],
) -> dict[str, Any]:
    """Time a peer that advances many clients together.

    Parameters
    ----------
    round_
        (chunk, steps): trains all clients so many steps, a chunk of them at a time, and takes
        the mean of their weights.
    chunks
        Sizes of a chunk to try; the fastest is timed.
    """

    def timed(chunk: int, steps: int) -> float:
        meter.wait()
        start = time.perf_counter()
        round_(chunk, steps)
        meter.wait()
        return time.perf_counter() - start

    tried = _try_chunks(chunks, lambda chunk: timed(chunk, 1), task.seconds)
    step, chunk = min((seconds, chunk) for chunk, seconds in tried.items())
    # A first run does not count; it may compile what steps need.
    fitting = max(1, int(task.seconds / step / 2))
    steps = task.steps if task.steps <= 1.5 * fitting else fitting
    timed(chunk, steps)
    meter.reset()
    times = [timed(chunk, steps)]
    while len(times) < ROUNDS and sum(times) + times[0] < task.seconds:
        times.append(timed(chunk, steps))
    found = result(task, times, meter, clients=task.clients, steps=steps)
    return {**found, "chunk": chunk, "seconds_of_first_step_by_chunk": tried}


def _try_chunks(
    chunks: Sequence[int], step: Callable[[int], float], allowed: float
) -> dict[int, float]:
    """Return the seconds of a step for every chunk that memory and time suffice for."""
    tried: dict[int, float] = {}
    problem: RuntimeError | None = None
    start = time.perf_counter()
    for chunk in chunks:
        if tried and time.perf_counter() - start > allowed:
            break
        try:
            step(chunk)  # compiles, and chooses algorithms
            tried[chunk] = step(chunk)
        except RuntimeError as error:  # out of memory, in PyTorch and in JAX
            problem = error
    if not tried:
        raise problem or RuntimeError("no chunk was tried")
    return tried


def sizes_of_chunks(clients: int) -> list[int]:
    """Return the sizes of a chunk worth trying."""
    return sorted({min(clients, size) for size in (25, 100, clients)})
