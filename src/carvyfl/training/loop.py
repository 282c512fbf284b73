"""The `loop` engine: one client after another, one worker process per core.

On a CPU a plain loop already runs near the core's matrix-multiply rate, and
stacking clients only slows it down; so speed comes from using every core, a
group at a time, and from not training what the store already holds.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from carvyfl.training.group import train_group
from carvyfl.training.job import GroupJob, GroupResult
from carvyfl.training.store import GroupStore

Progress = Callable[[int, int], None]
"""Told (client-steps done, client-steps in all), now and then."""


def usable_cores() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def train_groups(
    jobs: Sequence[GroupJob],
    *,
    store: GroupStore | None = None,
    workers: int | None = None,
    progress: Progress = lambda done, total: None,
) -> list[GroupResult]:
    """Train groups, each job once, and return their results in the order of the jobs.

    Parameters
    ----------
    jobs
        What to train; equal jobs (equal keys) are trained once.
    store
        Where results are looked up and kept; None keeps them in memory only.
    workers
        Worker processes; default one per core. The result does not depend on it.
    progress
        Told how far the work is.
    """
    keys = [job.key() for job in jobs]
    distinct = dict(zip(keys, jobs, strict=True))
    results: dict[str, GroupResult] = {}
    if store is not None:
        for key in distinct:
            stored = store.get(key)
            if stored is not None:
                results[key] = stored
    # Long jobs first, so that no core idles while the longest runs alone at the end.
    missing = sorted(distinct.keys() - results.keys(), key=lambda key: (-_work(distinct[key]), key))
    total = sum(_work(job) for job in distinct.values())
    done_before = total - sum(_work(distinct[key]) for key in missing)
    progress(done_before, total)
    if missing:
        todo = [distinct[key] for key in missing]
        with _board(todo, done_before, total, progress) as board:
            for index, result in _run(todo, workers or usable_cores(), board):
                results[missing[index]] = result
                if store is not None:
                    store.put(missing[index], result)
        progress(total, total)
    return [results[key] for key in keys]


def _work(job: GroupJob) -> int:
    return job.steps_per_round * job.recipe.rounds


def _run(jobs: list[GroupJob], workers: int, board: Path) -> Iterator[tuple[int, GroupResult]]:
    """Train jobs on worker processes and yield (position, result) as they finish."""
    import joblib

    parallel = joblib.Parallel(
        n_jobs=min(workers, len(jobs)), batch_size=1, return_as="generator_unordered"
    )
    yield from parallel(
        joblib.delayed(_train_one)(index, job, board, len(jobs)) for index, job in enumerate(jobs)
    )


def _train_one(index: int, job: GroupJob, board: Path, slots: int) -> tuple[int, GroupResult]:
    """Train one job in a worker, noting its progress in slot ``index`` of the board."""
    rounds_done = np.memmap(board, dtype=np.int32, mode="r+", shape=(slots,))

    def note(rounds: int) -> None:
        rounds_done[index] = rounds

    result = train_group(job, on_round=note)
    rounds_done[index] = job.recipe.rounds  # stopped early: the rest need not be done
    return index, result


@contextlib.contextmanager
def _board(jobs: list[GroupJob], before: int, total: int, progress: Progress) -> Iterator[Path]:
    """Share a small file in which workers note their rounds, and report it four times a second."""
    per_round = np.array([job.steps_per_round for job in jobs])
    with tempfile.TemporaryDirectory(prefix="carvyfl-") as folder:
        path = Path(folder) / "rounds"
        rounds_done = np.memmap(path, dtype=np.int32, mode="w+", shape=(len(jobs),))
        finished = threading.Event()

        def watch() -> None:
            while not finished.wait(0.25):
                progress(before + int(rounds_done @ per_round), total)

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield path
        finally:
            finished.set()
            thread.join()
