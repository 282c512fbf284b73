"""The `ray` engine: groups go to the machines of a Ray cluster, the extra ``carvyfl[ray]``.

A group is the unit of work and depends on nothing but its own job, so a machine that
dies costs the groups it was training: Ray gives them to another.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from carvyfl.core.errors import CarvyError
from carvyfl.learning.job import Checkpoints, GroupJob, GroupResult, GroupState, OnRounds
from carvyfl.learning.scaffold.group import train_group


@dataclass(frozen=True)
class RayEngine:
    """Trains groups on a cluster, one per core, with the loop engine's arithmetic.

    Attributes
    ----------
    address
        Of the cluster's head, such as ``10.0.0.1:6379``, or ``ray://10.0.0.1:10001`` from
        outside the cluster. Every machine of it needs the same version of carvyfl.
    precision
        ``fp32``: the machines may differ, the results must not.
    """

    name: ClassVar[str] = "ray"
    device: ClassVar[None] = None
    address: str
    precision: str = "fp32"

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
            task = ray.remote(num_cpus=1, max_retries=-1)(_train)
            running = {}
            for position, job in enumerate(jobs):
                start = None if checkpoints is None else checkpoints.load(position)
                running[task.remote(job, start, self.precision)] = position
            while running:
                (done,), _ = ray.wait(list(running), num_returns=1)
                yield running.pop(done), ray.get(done)
        finally:
            ray.shutdown()


def _train(job: GroupJob, start: GroupState | None, precision: str) -> GroupResult:
    """Train one job on a machine of the cluster."""
    return train_group(job, start=start, precision=precision)


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
