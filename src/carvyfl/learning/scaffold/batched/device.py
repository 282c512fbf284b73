"""A device's memory, shared out by trying, and its kernels, loaded all at once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from carvyfl.core.environment import usable_cores
from carvyfl.core.errors import CarvyError

T = TypeVar("T")
# Held while a step is recorded or memory given back: PyTorch allows no two of these at once
ALLOCATOR = threading.Lock()


def _give_memory_back() -> None:
    with ALLOCATOR:
        torch.cuda.empty_cache()


def free_memory(device: torch.device) -> int:
    """Return the bytes the engine may use; a CPU serves for tests."""
    if device.type == "cuda":
        _give_memory_back()
        return int(torch.cuda.mem_get_info(device)[0])
    return 4 << 30


def fitting_parts(
    count: int,
    width: int,
    compute: Callable[[slice], T],
    narrow: Callable[[int], object],
    too_large: str,
) -> Iterator[T]:
    """Compute something for successive items of a device, ``width`` at once or what memory allows.

    ``compute`` must not change anything: when memory runs out, ``narrow`` is called with half the
    width, and it is called again. ``too_large`` is the error if not a single item fits.
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
            _give_memory_back()
        else:
            yield result
            done = part.stop


def load_kernels(works: Iterable[Callable[[], object]]) -> None:
    """Compile and load the kernels that some works launch, as many at once as there are cores.

    The works are done without any kernel: their results mean nothing, but they ask for every kernel
    within milliseconds. Else the first step waits for one after the other, for half a minute.
    """
    import triton

    from carvyfl.learning.scaffold.batched.kernels import compiling

    device = (torch.cuda.current_device(),)  # where each thread should load what it compiled
    with ThreadPoolExecutor(usable_cores(), "kernels", torch.cuda.set_device, device) as threads:
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
