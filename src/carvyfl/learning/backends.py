"""Where Steps 1, 3 and 4 are computed: on cores, on GPUs, or on a Ray cluster.

A backend has two verbs. It maps work over clients (Step 1) or models (Step 4), and it trains
groups (Step 3). What is computed does not depend on it, but for the rounding of a precision.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import math
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import torch

from carvyfl.core.environment import usable_cores
from carvyfl.core.errors import CarvyError
from carvyfl.core.progress import Report, quiet
from carvyfl.core.registry import pick
from carvyfl.learning.job import Checkpoints, GroupJob, GroupResult, GroupState, OnRounds
from carvyfl.learning.scaffold.batched.engine import Gpus as Gpus
from carvyfl.learning.scaffold.batched.engine import Results
from carvyfl.learning.scaffold.batched.net import PRECISIONS
from carvyfl.learning.scaffold.group import train_group

T = TypeVar("T")
R = TypeVar("R")
Item = TypeVar("Item", contravariant=True)
Answer = TypeVar("Answer", covariant=True)

BACKENDS = {
    "auto": "a GPU if there is one, else CPU cores",
    "loop": "CPU cores",
    "batched": "the GPUs of this machine",
}

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


class Work(Protocol[Item, Answer]):
    """What is done for each of several items: for one on a core, or for all on a device."""

    def __call__(self, item: Item, /) -> Answer: ...  # noqa: D102

    def together(  # noqa: D102
        self, items: Sequence[Item], device: torch.device, progress: Report, /
    ) -> Sequence[Answer]: ...


class Backend(Protocol):
    """Where things are computed."""

    @property
    def name(self) -> str:
        """The name under which a run's record has it: ``loop``, ``batched`` or ``ray``."""

    @property
    def device(self) -> str | None:
        """The device that it computes on; None for CPU cores."""

    @property
    def precision(self) -> str:
        """What products are computed in when groups train: ``fp32``, ``tf32`` or ``bf16``."""

    def map(self, work: Work[T, R], items: Sequence[T], progress: Report = quiet) -> Sequence[R]:
        """Do the work for every item, and return the answers in their order."""

    def train_groups(
        self, jobs: Sequence[GroupJob], on_rounds: OnRounds, checkpoints: Checkpoints | None = None
    ) -> Results:
        """Train jobs, from their checkpoints where there are any; yield results as they come."""


def make_backend(
    name: str = "auto",
    *,
    workers: int | None = None,
    precision: str | None = None,
    cluster: str | None = None,
) -> Backend:
    """Return a backend.

    Parameters
    ----------
    workers
        Worker processes of CPU cores; None is one per core.
    precision
        ``fp32``, ``tf32`` or ``bf16``; None is the backend's default (cores: fp32, GPUs: bf16,
        whose certified accuracy cannot be told from fp32's).
    cluster
        The address of a Ray cluster, which trains on its cores in fp32, unless ``name`` is
        ``batched``: then on its GPUs.
    """
    pick(BACKENDS, name, "engine")
    if precision is not None:
        pick(PRECISIONS, precision, "precision")
    if cluster:
        if name == "batched":
            return RayCluster(cluster, precision or "bf16", workers, stacked_on="cuda")
        if precision not in (None, "fp32"):
            raise CarvyError(
                "a cluster's cores compute in fp32; drop `precision`, or set `engine` to batched"
            )
        return RayCluster(cluster, workers=workers)
    if name == "batched" or (name == "auto" and torch.cuda.is_available()):
        return Gpus(precision=precision or "bf16")
    if precision == "tf32":
        raise CarvyError("engine 'loop' computes in fp32 or bf16, not tf32")
    return Cores(workers, precision or "fp32")


def _on_cores(function: Callable[..., R], calls: Iterable[Any], **parallel: Any) -> Iterator[R]:
    """Call a function with each of several lists of arguments, on worker processes."""
    import joblib

    call, parent = joblib.delayed(_in_worker), os.getpid()
    results: Iterator[R] = joblib.Parallel(**parallel)(
        call(parent, function, *arguments) for arguments in calls
    )
    return results


def _in_worker(parent: int, function: Callable[..., T], *arguments: Any) -> T:
    """Call a function in a worker that keeps its memory, and leaves Ctrl-C to its parent."""
    keep_freed_memory()
    if os.getpid() != parent:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _end_with(parent)
    return function(*arguments)


def keep_freed_memory() -> None:
    """Have glibc keep up to 256 MB of freed memory: faulting it in again costs 5 % of a step."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 32 << 20)
        mallopt(M_TRIM_THRESHOLD, 256 << 20)


@functools.cache
def _end_with(parent: int) -> None:
    """End this process soon after its parent, which if killed cannot tell its children."""

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
class Cores:
    """The `loop` engine: one client after another, on one worker process per core.

    On a CPU a plain loop runs near the core's matrix-multiply rate, and stacking only slows it
    down. ``workers`` None is one per core; ``precision`` is ``fp32``, or ``bf16`` on a CPU that has
    it.
    """

    name: ClassVar[str] = "loop"
    device: ClassVar[None] = None
    workers: int | None = None
    precision: str = "fp32"

    def __post_init__(self) -> None:
        if self.precision == "bf16" and not cpu_has_bf16():
            raise CarvyError("this CPU has no bf16 arithmetic; use precision fp32")

    def map(self, work: Work[T, R], items: Sequence[T], progress: Report = quiet) -> Sequence[R]:
        """Do the work for every item, and return the answers in their order."""
        workers, answers = min(self.workers or usable_cores(), len(items)), list[R]()
        calls = ((item,) for item in items)
        for answer in _on_cores(work, calls, n_jobs=workers, return_as="generator"):
            answers.append(answer)
            progress(len(answers), len(items))
        return answers

    def train_groups(
        self, jobs: Sequence[GroupJob], on_rounds: OnRounds, checkpoints: Checkpoints | None = None
    ) -> Results:
        """Train jobs and yield (position, result) as they finish."""
        how = {"n_jobs": min(self.workers or usable_cores(), len(jobs)), "batch_size": 1}
        with _progress_file(len(jobs), on_rounds) as board:
            train = functools.partial(_train, board, checkpoints, self.precision)
            yield from _on_cores(train, enumerate(jobs), **how, return_as="generator_unordered")


def _train(
    board: Path, checkpoints: Checkpoints | None, precision: str, position: int, job: GroupJob
) -> tuple[int, GroupResult]:
    """Train one job in a worker, writing the rounds it made to its place in the progress file."""
    rounds_done = np.memmap(board, dtype=np.int32, mode="r+")
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


@dataclass(frozen=True)
class RayCluster:
    """The `ray` engine: groups go to the machines of a Ray cluster, the extra ``carvyfl[ray]``.

    A machine that dies costs the groups it was training: Ray gives them to another. ``address`` is
    that of the cluster's head, such as ``10.0.0.1:6379``, or ``ray://10.0.0.1:10001`` from outside;
    every machine needs the same version of carvyfl. ``stacked_on`` None trains on cores, in fp32
    alone since machines may differ and results must not; ``cuda`` on GPUs, ``cpu`` is for tests.
    Steps 1 and 4 stay on this machine's cores.
    """

    name: ClassVar[str] = "ray"
    device: ClassVar[None] = None
    address: str
    precision: str = "fp32"
    workers: int | None = None
    stacked_on: str | None = None

    def map(self, work: Work[T, R], items: Sequence[T], progress: Report = quiet) -> Sequence[R]:
        """Do the work for every item on this machine, and return the answers in their order."""
        return Cores(self.workers).map(work, items, progress)

    def train_groups(
        self, jobs: Sequence[GroupJob], on_rounds: OnRounds, checkpoints: Checkpoints | None = None
    ) -> Results:
        """Train jobs and yield (position, result) as they finish; begun ones from their state."""
        try:
            import ray
        except ImportError as error:
            raise CarvyError("a cluster needs Ray; install carvyfl[ray]") from error
        _check_reachable(self.address)
        ray.init(self.address, logging_level=logging.ERROR, log_to_driver=False)
        try:
            # Groups of a machine that dies are trained again, however many die.
            task, shares = ray.remote(num_cpus=1, max_retries=-1)(_train_share), len(jobs)
            if self.stacked_on is not None:
                task = ray.remote(num_cpus=1, num_gpus=1, max_retries=-1)(_train_share)
                shares = int(ray.cluster_resources().get("GPU", 0))  # type: ignore[no-untyped-call]
                if not shares:
                    raise CarvyError(
                        f"the Ray cluster at '{self.address}' has no GPU; set `engine` to loop, "
                        "or start its machines with 'ray start --num-gpus'"
                    )
            running = {}
            for share in range(min(shares, len(jobs))):
                positions = range(share, len(jobs), shares)
                starts = [None if checkpoints is None else checkpoints.load(p) for p in positions]
                running[task.remote(self, [jobs[p] for p in positions], starts)] = positions
            while running:
                (done,), _ = ray.wait(list(running), num_returns=1)
                yield from zip(running.pop(done), ray.get(done), strict=True)
        finally:
            ray.shutdown()


def _train_share(
    cluster: RayCluster, jobs: Sequence[GroupJob], starts: Sequence[GroupState | None]
) -> list[GroupResult]:
    """Train jobs on a machine of the cluster."""
    if cluster.stacked_on is None:
        pairs = zip(jobs, starts, strict=True)
        return [train_group(job, start=start, precision=cluster.precision) for job, start in pairs]
    begun = Checkpoints(starts.__getitem__, lambda position, state: None, every=math.inf)
    gpus = Gpus(cluster.stacked_on, cluster.precision)
    results = dict(gpus.train_groups(jobs, quiet, begun))
    return [results[position] for position in range(len(jobs))]


def _check_reachable(address: str) -> None:
    """Refuse an address that does not answer; Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError, OverflowError) as error:
        raise CarvyError(
            f"no Ray cluster at '{address}' ({error}); start one with 'ray start --head', or "
            "correct `address`: HOST:PORT or ray://HOST:PORT"
        ) from error
