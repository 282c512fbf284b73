"""Have kernels compiled and loaded while something else is computed.

The first step on a GPU waits for them: seconds where they were compiled before, and half a minute
where they were not. Steps 1 and 2 take a while, so threads do it meanwhile, each for one shape of
batches, and the engine waits for them before it trains.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from carvyfl.data.clients import Client, Samples
from carvyfl.learning.job import GroupJob, initial_states
from carvyfl.learning.scaffold.batched.net import StackedNet
from carvyfl.learning.scaffold.batched.training import Training

_threads: list[threading.Thread] = []


def start(works: Sequence[Callable[[], object]]) -> None:
    """Start works on threads. One that fails says nothing: training will, with its reason."""

    def quietly(work: Callable[[], object]) -> None:
        with contextlib.suppress(Exception):
            work()

    for work in works:
        _threads.append(threading.Thread(target=quietly, args=(work,)))
        _threads[-1].start()


def wait() -> None:
    """Wait for all that was started."""
    while _threads:
        _threads.pop().join()


def training_works(job: GroupJob, device: str, precision: str) -> list[Callable[[], object]]:
    """Return what trains and validates the one client of a job for a step, by shape of batches.

    The shapes are those of full batches and of the client's last one.
    """
    (client,), size = job.clients, len(job.clients[0].train)
    batch = job.recipe.batch_size

    def step(samples: int) -> None:
        train = Samples(client.train.inputs[:samples], client.train.labels[:samples])
        own = replace(job, clients=(Client(train, client.validation),))
        _training(own, device, precision).round()

    def score() -> None:
        _training(job, device, precision).scores([0])

    return [functools.partial(step, n) for n in {min(size, batch), size % batch} if n] + [score]


def _training(job: GroupJob, device: str, precision: str) -> Training:
    net = StackedNet(job.module, torch.device(device), precision)
    return Training([job], initial_states([job]), net, width=1)
