"""Kernels are loaded ahead: it changes nothing, and its failures are nobody's."""

from __future__ import annotations

import threading

import numpy as np
import torch

from carvyfl.data.clients import Client, Federation, Samples
from carvyfl.learning.job import GroupJob, group_job
from carvyfl.learning.recipe import Recipe
from carvyfl.learning.scaffold.batched import warm_up
from carvyfl.learning.scaffold.batched.engine import BatchedEngine
from carvyfl.learning.scaffold.batched.local_steps import LocalSteps
from support.federations import small_net


def job_of(size: int) -> GroupJob:
    rng = np.random.default_rng(0)

    def draw(count: int) -> Samples:
        return Samples(rng.normal(size=(count, 8)).astype(np.float32), rng.integers(0, 4, count))

    clients = (Client(draw(size), draw(5)),)
    return group_job(Federation(clients, 4), [0], small_net(), Recipe(rounds=2, batch_size=8), 0)


def test_every_size_of_a_clients_batches_is_loaded(monkeypatch):
    sizes: list[int] = []
    plain = LocalSteps._step

    def noted(self, epoch, rows, wide):
        sizes.append(wide)
        plain(self, epoch, rows, wide)

    monkeypatch.setattr(LocalSteps, "_step", noted)
    for size, expected in {19: {8, 4}, 16: {8}, 3: {4}}.items():
        for work in warm_up.training_works(job_of(size), "cpu", "fp32"):
            work()
        ahead, sizes[:] = set(sizes), []
        dict(BatchedEngine("cpu", "fp32")([job_of(size)], lambda position, rounds: None))
        assert ahead == set(sizes) == expected
        sizes.clear()


def test_the_engine_waits_for_what_was_started_and_trains_as_ever():
    job, done = job_of(19), threading.Event()
    (alone,) = dict(BatchedEngine("cpu", "fp32")([job], lambda position, rounds: None)).values()

    def fail() -> None:
        done.set()
        raise RuntimeError("no such kernel")

    for work in (fail, *warm_up.training_works(job, "cpu", "fp32")):
        warm_up.start(work)
    (found,) = dict(BatchedEngine("cpu", "fp32")([job], lambda position, rounds: None)).values()
    assert done.is_set()
    assert torch.equal(found.weights, alone.weights)
