"""The `loop` engine: one client after another, one worker process per core.

On a CPU a plain loop already runs near the core's matrix-multiply rate, and
stacking clients only slows it down; so speed comes from using every core, a
group at a time, and from not training what the store already holds.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from carvyfl.core.environment import usable_cores
from carvyfl.core.errors import CarvyError
from carvyfl.learning.job import Checkpoints, GroupJob, GroupResult, GroupState, OnRounds
from carvyfl.learning.scaffold.group import train_group
from carvyfl.learning.scaffold.local import keep_freed_memory

T = TypeVar("T")


def in_worker(parent: int, function: Callable[..., T], *arguments: Any) -> T:
    """Call a function in a worker process that keeps its memory and leaves Ctrl-C to its parent.

    A terminal interrupts the workers too; they would only add tracebacks of their own.
    A parent that was killed takes its workers along.
    """
    keep_freed_memory()
    if os.getpid() != parent:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _end_with(parent)
    return function(*arguments)


@functools.cache
def _end_with(parent: int) -> None:
    """End this process soon after its parent, who is the only one to want its results.

    A killed parent cannot tell its children, but they get another parent.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def cpu_has_bf16() -> bool:
    """Whether the CPU multiplies bf16 itself (AVX-512 BF16 or AMX); emulated it is only slower."""
    with contextlib.suppress(OSError):
        flags = Path("/proc/cpuinfo").read_text()
        return "avx512_bf16" in flags or "amx_bf16" in flags
    return False


@dataclass(frozen=True)
class LoopEngine:
    """Trains groups on worker processes, a group at a time each.

    ``workers`` None is one per core; results do not depend on it. ``precision`` is ``fp32``, or
    ``bf16`` on a CPU that multiplies it.
    """

    name: ClassVar[str] = "loop"
    device: ClassVar[None] = None
    workers: int | None = None
    precision: str = "fp32"

    def __post_init__(self) -> None:
        if self.precision == "bf16" and not cpu_has_bf16():
            raise CarvyError("this CPU has no bf16 arithmetic; use precision fp32")

    def __call__(
        self, jobs: Sequence[GroupJob], on_rounds: OnRounds, checkpoints: Checkpoints | None = None
    ) -> Iterator[tuple[int, GroupResult]]:
        """Train jobs and yield (position, result) as they finish."""
        import joblib

        workers = min(self.workers or usable_cores(), len(jobs))
        parallel = joblib.Parallel(n_jobs=workers, batch_size=1, return_as="generator_unordered")
        with _progress_file(len(jobs), on_rounds) as board:
            yield from parallel(
                joblib.delayed(in_worker)(
                    os.getpid(),
                    _train_one,
                    position,
                    job,
                    board,
                    len(jobs),
                    checkpoints,
                    self.precision,
                )
                for position, job in enumerate(jobs)
            )


def _train_one(
    position: int,
    job: GroupJob,
    board: Path,
    slots: int,
    checkpoints: Checkpoints | None,
    precision: str,
) -> tuple[int, GroupResult]:
    """Train one job in a worker, writing the rounds it made to its place in the progress file."""
    rounds_done = np.memmap(board, dtype=np.int32, mode="r+", shape=(slots,))
    saved = time.monotonic()

    def note(state: GroupState) -> None:
        nonlocal saved
        rounds_done[position] = state.rounds
        if checkpoints is not None and time.monotonic() - saved >= checkpoints.every:
            checkpoints.save(position, state)
            saved = time.monotonic()

    start = None if checkpoints is None else checkpoints.load(position)
    return position, train_group(job, start=start, on_round=note, precision=precision)


@contextlib.contextmanager
def _progress_file(slots: int, on_rounds: OnRounds) -> Iterator[Path]:
    """Share a file to which workers write their rounds, and report changes while it is open."""
    with tempfile.TemporaryDirectory(prefix="carvyfl-") as folder:
        path = Path(folder) / "rounds"
        rounds_done = np.memmap(path, dtype=np.int32, mode="w+", shape=(slots,))
        finished = threading.Event()

        def watch() -> None:
            seen = np.zeros(slots, dtype=np.int32)
            while not finished.wait(0.25):
                now = rounds_done.copy()
                for position in np.flatnonzero(now > seen):
                    on_rounds(int(position), int(now[position]))
                seen = now

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield path
        finally:
            finished.set()
            thread.join()
