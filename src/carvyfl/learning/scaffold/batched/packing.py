"""Which jobs train together on a device: those that are alike, as many as fit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

from carvyfl.core.errors import CarvyError
from carvyfl.core.fingerprint import fingerprint
from carvyfl.learning.job import GroupJob
from carvyfl.learning.models.weights import flat_weights

T = TypeVar("T")

ALLOCATOR = threading.Lock()
"""Held while a step is recorded or memory given back: PyTorch allows no two of these at once."""


def give_memory_back() -> None:
    """Give the memory that PyTorch keeps for later back to the GPUs."""
    with ALLOCATOR:
        torch.cuda.empty_cache()


def fitting_parts(
    count: int,
    width: int,
    compute: Callable[[slice], T],
    narrow: Callable[[int], object],
    too_large: str,
) -> Iterator[T]:
    """Compute something for successive items of a device, as many at once as memory allows.

    Parameters
    ----------
    count, width
        How many items there are, and how many are tried at once.
    compute
        It must not change anything: when memory runs out, it is called again with half as many.
    narrow
        Told the new width then.
    too_large
        What the error says if memory does not hold a single item.
    """
    done = 0
    while done < count:
        part = slice(done, min(done + width, count))
        try:
            result = compute(part)
        except torch.OutOfMemoryError as error:
            if part.stop - done == 1:
                raise CarvyError(too_large) from error
            width = (part.stop - done) // 2
            narrow(width)
            give_memory_back()
            continue
        yield result
        done = part.stop


def free_memory(device: torch.device) -> int:
    """Return the bytes the engine may use; a CPU serves for tests."""
    if device.type == "cuda":
        give_memory_back()
        return int(torch.cuda.mem_get_info(device)[0])
    return 4 << 30


def chunks(jobs: Sequence[GroupJob], lot: list[int], free: int) -> Iterator[list[int]]:
    """Cut a lot of jobs into chunks whose data and state take no more than 40 % of the memory.

    The rest is for the activations of a step, whose size depends on the model
    and is found by trying: see :func:`fitting_parts`.
    """
    weights = 4 * len(flat_weights(jobs[lot[0]].module))
    budget, used = int(0.4 * free), 0
    chunk: list[int] = []
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


def compatible_jobs(jobs: Sequence[GroupJob]) -> list[list[int]]:
    """Sort jobs into lots that can train together: one architecture, recipe and kind of input."""
    lots: dict[object, list[int]] = {}
    described: dict[int, str] = {}  # by the identity of modules, which the jobs hold
    for position, job in enumerate(jobs):
        if id(job.module) not in described:
            described[id(job.module)] = fingerprint(job.module)
        inputs = job.clients[0].train.inputs
        kind = (described[id(job.module)], job.recipe, inputs.dtype, inputs.shape[1:])
        lots.setdefault(kind, []).append(position)
    return list(lots.values())
