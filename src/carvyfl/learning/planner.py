"""From jobs to results: nothing is trained twice, nothing finished is lost."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from carvyfl.core.progress import Report, quiet
from carvyfl.learning.backends import Backend, Cores
from carvyfl.learning.job import GroupJob, GroupResult, job_keys
from carvyfl.learning.learners import learner_of
from carvyfl.learning.models import flat_weights
from carvyfl.learning.store import GroupStore, StoredCheckpoints, StoreWriter

SHOWN_EVERY = 0.1  # Seconds between two reports of progress


def train_groups(
    jobs: Sequence[GroupJob],
    *,
    store: GroupStore | None = None,
    engine: Backend | None = None,
    progress: Report = quiet,
) -> list[GroupResult]:
    """Train groups, each job once, and return their results in the order of the jobs.

    Parameters
    ----------
    jobs
        What to train, of any federations, methods and seeds together; equal jobs
        (equal keys) are trained once. All have the same learner.
    engine
        What computes; by default all cores.
    progress
        Called with (client-steps done, client-steps in all), now and then.
    """
    engine = Cores() if engine is None else engine
    keys = job_keys(jobs, engine.precision)
    distinct = dict(zip(keys, jobs, strict=True))
    results = {} if store is None else store.get_all(distinct)
    for key, job in distinct.items():
        if not job.members:  # a group that random slots left empty
            results[key] = GroupResult(flat_weights(job.module), (), "empty")
    # Long jobs first, so that no core idles while the longest runs alone at the end.
    work = {key: job.steps_per_round * job.recipe.rounds for key, job in distinct.items()}
    missing = sorted(distinct.keys() - results.keys(), key=lambda key: (-work[key], key))
    todo = [distinct[key] for key in missing]
    total = sum(work.values())
    done, shown = total - sum(work[key] for key in missing), time.monotonic()
    progress(done, total)
    if not todo:
        return [results[key] for key in keys]
    per_round, rounds_done = [job.steps_per_round for job in todo], [0] * len(todo)

    def on_rounds(position: int, rounds: int) -> None:
        nonlocal done, shown
        done += (rounds - rounds_done[position]) * per_round[position]
        rounds_done[position] = rounds
        # Thousands of groups advance at once: drawing each would take longer than training.
        if done == total or time.monotonic() - shown >= SHOWN_EVERY:
            progress(done, total)
            shown = time.monotonic()

    checkpoints = None if store is None else StoredCheckpoints(store, missing, todo)
    with contextlib.nullcontext() if store is None else StoreWriter(store) as writer:
        learner = learner_of(todo[0].module)
        for position, result in learner.train(todo, engine, on_rounds, checkpoints):
            results[missing[position]] = result
            if writer is not None:
                writer.put(missing[position], result)
            on_rounds(position, todo[position].recipe.rounds)  # stopped early: no more to do
    return [results[key] for key in keys]
