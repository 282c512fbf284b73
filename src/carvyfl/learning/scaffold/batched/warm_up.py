"""Have kernels compiled and loaded while something else is computed.

The first step on a GPU waits for them: seconds where they were compiled before, and half a minute
where they were not. Steps 1 and 2 take a while, so threads do it meanwhile, all kernels at once,
and the engine waits for them before it trains. Their modules are imported before any thread
starts (:func:`~carvyfl.learning.scaffold.batched.kernels.import_all`).
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch

from carvyfl.core.environment import usable_cores
from carvyfl.data.clients import Client, Samples
from carvyfl.learning.job import GroupJob, initial_states
from carvyfl.learning.scaffold.batched.net import StackedNet
from carvyfl.learning.scaffold.batched.training import Training

_threads: list[threading.Thread] = []


def start(work: Callable[[], object]) -> None:
    """Start something on a thread. If it fails it says nothing: training will, with its reason."""

    def quietly() -> None:
        with contextlib.suppress(Exception):
            work()

    _threads.append(threading.Thread(target=quietly))
    _threads[-1].start()


def wait() -> None:
    """Wait for all that was started."""
    while _threads:
        _threads.pop().join()


def load_kernels(works: Sequence[Callable[[], object]]) -> None:
    """Compile and load the kernels that some works launch, as many at once as there are cores.

    The works are done without any kernel: their results mean nothing, but they ask for every kernel
    within milliseconds, instead of one after the other.
    """
    import triton

    from carvyfl.learning.scaffold.batched.kernels.launch import compiling

    with ThreadPoolExecutor(usable_cores()) as threads:
        at_once = getattr(triton, "AsyncCompileMode", None)  # older versions lack it
        with (
            contextlib.nullcontext() if at_once is None else at_once(threads),
            compiling() as kernels,
            # Backward passes stay on this thread.
            torch.autograd.set_multithreading_enabled(False),
        ):
            for work in works:
                work()
        distinct = {id(kernel): kernel for kernel in kernels}
        list(threads.map(_load, distinct.values()))


def _load(kernel: Any) -> None:
    """Move a compiled kernel to the GPU, and compile what launches it."""
    compiled = kernel.result() if hasattr(kernel, "result") else kernel
    _ = compiled.run


def training_works(job: GroupJob, device: str, precision: str) -> list[Callable[[], object]]:
    """Return what trains and validates the one client of a job for a step, by shape of batches.

    The shapes are those of full batches and of the client's last one.
    """
    (client,), size = job.clients, len(job.clients[0].train)
    batch = job.recipe.batch_size
    net = StackedNet(job.module, torch.device(device), precision)

    def training(own: Client) -> Training:
        # Two of them: PyTorch gives the weights of a single one other strides, and Triton compiles
        # other kernels for these.
        two = replace(job, clients=(own, own), members=(0, 1))
        return Training([two], initial_states([two]), net, width=2)

    def step(samples: int) -> None:
        train = Samples(client.train.inputs[:samples], client.train.labels[:samples])
        training(Client(train, client.validation)).round()

    def score() -> None:
        training(client).scores([0])

    return [functools.partial(step, n) for n in {min(size, batch), size % batch} if n] + [score]
