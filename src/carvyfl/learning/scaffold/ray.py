"""The `ray` engine: groups go to the machines of a Ray cluster, the extra ``carvyfl[ray]``.

A group depends on nothing but its own job, so a machine that dies costs the groups it was
training: Ray gives them to another.
"""

from __future__ import annotations

import logging
import math
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from carvyfl.core.errors import CarvyError
from carvyfl.learning.job import Checkpoints, GroupJob, GroupResult, GroupState, OnRounds
from carvyfl.learning.scaffold.batched.engine import BatchedEngine
from carvyfl.learning.scaffold.group import train_group


@dataclass(frozen=True)
class RayEngine:
    """Trains groups on a cluster: one per core, or stacked on its GPUs.

    Attributes
    ----------
    address
        Of the cluster's head, such as ``10.0.0.1:6379``, or ``ray://10.0.0.1:10001`` from
        outside the cluster. Every machine of it needs the same version of carvyfl.
    precision
        Of products. On cores it is ``fp32``: the machines may differ, the results must not.
    stacked_on
        None trains as the loop engine does; ``cuda`` as the batched engine does, each GPU with
        its share of the groups. ``cpu`` is for tests: what Ray takes for a GPU need not be one.
    """

    name: ClassVar[str] = "ray"
    device: ClassVar[None] = None
    address: str
    precision: str = "fp32"
    stacked_on: str | None = None

    def __call__(
        self, jobs: Sequence[GroupJob], on_rounds: OnRounds, checkpoints: Checkpoints | None = None
    ) -> Iterator[tuple[int, GroupResult]]:
        """Train jobs and yield (position, result) as they finish; begun ones from their state."""
        try:
            import ray
        except ImportError as error:
            raise CarvyError("a cluster needs Ray; install carvyfl[ray]") from error
        _check_reachable(self.address)
        ray.init(self.address, logging_level=logging.ERROR, log_to_driver=False)
        try:
            # Groups of a machine that dies are trained again, however many die.
            task, shares = ray.remote(num_cpus=1, max_retries=-1)(_train), len(jobs)
            if self.stacked_on is not None:
                task = ray.remote(num_cpus=1, num_gpus=1, max_retries=-1)(_train)
                shares = int(ray.cluster_resources().get("GPU", 0))  # type: ignore[no-untyped-call]
                if not shares:
                    raise CarvyError(
                        f"the Ray cluster at '{self.address}' has no GPU; set `engine` to loop, "
                        "or start its machines with 'ray start --num-gpus'"
                    )
            running = {}
            for share in range(min(shares, len(jobs))):
                own = range(share, len(jobs), shares)
                starts = [None if checkpoints is None else checkpoints.load(p) for p in own]
                running[task.remote(self, [jobs[p] for p in own], starts)] = own
            while running:
                (done,), _ = ray.wait(list(running), num_returns=1)
                yield from zip(running.pop(done), ray.get(done), strict=True)
        finally:
            ray.shutdown()


@dataclass(frozen=True)
class _Starts:
    """States to go on from; a machine of the cluster saves none."""

    states: Sequence[GroupState | None]
    every: float = math.inf

    def load(self, position: int) -> GroupState | None:
        return self.states[position]

    def save(self, position: int, state: GroupState) -> None:
        pass


def _train(
    how: RayEngine, jobs: Sequence[GroupJob], starts: Sequence[GroupState | None]
) -> list[GroupResult]:
    """Train jobs on a machine of the cluster."""
    if how.stacked_on is None:
        pairs = zip(jobs, starts, strict=True)
        return [train_group(job, start=start, precision=how.precision) for job, start in pairs]
    engine = BatchedEngine(how.stacked_on, how.precision)
    found = dict(engine(jobs, lambda position, rounds: None, _Starts(starts)))
    return [found[position] for position in range(len(jobs))]


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
