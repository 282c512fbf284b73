"""Interrupted inside a group: training goes on from the last saved round and ends the same."""

from __future__ import annotations

import dataclasses
import os
import signal
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from carvyfl.core.progress import deferred_interrupt, quiet
from carvyfl.learning.backends import Backend, Cores, Gpus
from carvyfl.learning.job import Checkpoints, GroupJob, GroupState, group_job
from carvyfl.learning.recipe import Recipe
from carvyfl.learning.scaffold.arithmetic import Update
from carvyfl.learning.scaffold.client import honest
from carvyfl.learning.scaffold.group import train_group
from carvyfl.learning.store import DamagedEntryWarning, GroupStore, train_groups
from support.federations import class_disjoint_federation, small_net

RECIPE = Recipe(rounds=6, lr=0.05, batch_size=8)
ENGINES: dict[str, Backend] = {
    "loop": Cores(1),
    "batched": Gpus("cpu", "fp32"),
    "two devices": Gpus("cpu", "fp32", threads=2),
}
if torch.cuda.is_available():
    ENGINES["gpu"] = Gpus("cuda", "fp32")
    ENGINES["two gpus"] = Gpus("cuda", "fp32", threads=2)


class PowerCutError(Exception):
    pass


def jobs_of():
    federation = class_disjoint_federation()
    return [group_job(federation, group, small_net(), RECIPE, 5) for group in ([0, 3], [1, 4, 5])]


def rounds_saved(store: GroupStore, key: str, job: GroupJob) -> int:
    state = store.get_state(key, job)
    assert state
    return state.rounds


def assert_equal(results, expected):
    for one, other in zip(results, expected, strict=True):
        assert torch.equal(one.weights, other.weights)
        np.testing.assert_array_equal(one.accuracy, other.accuracy)
        assert one.stopped == other.stopped


EVERY_ENGINE = pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)


@EVERY_ENGINE
def test_a_run_cut_off_inside_its_groups_goes_on_and_ends_the_same(engine, tmp_path):
    jobs, store = jobs_of(), GroupStore(tmp_path)
    expected = train_groups(jobs, engine=engine)
    keys = tuple(job.key(engine.precision) for job in jobs)

    stored = store.checkpoints(keys, jobs, every=0)

    def cut_off(position: int, state: GroupState) -> None:
        stored.save(position, state)
        if state.rounds == 3 and position == 1:
            raise PowerCutError

    with pytest.raises(PowerCutError):
        dict(engine.train_groups(jobs, quiet, dataclasses.replace(stored, save=cut_off)))
    assert rounds_saved(store, keys[1], jobs[1]) == 3
    made = []
    results = train_groups(
        jobs, store=store, engine=engine, progress=lambda done, total: made.append(done)
    )
    assert_equal(results, expected)
    assert not list(tmp_path.glob("*unfinished*"))


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_on_a_device_saves_the_round_before_it_stops(kind, tmp_path):
    jobs, store, engine = jobs_of(), GroupStore(tmp_path), ENGINES["batched"]
    expected = train_groups(jobs, engine=engine)
    keys = tuple(job.key(engine.precision) for job in jobs)

    def interrupt(position, rounds):
        if (position, rounds) == (0, 4):
            os.kill(os.getpid(), kind)

    with pytest.raises(KeyboardInterrupt):
        dict(engine.train_groups(jobs, interrupt, store.checkpoints(keys, jobs)))
    assert [rounds_saved(store, *pair) for pair in zip(keys, jobs, strict=True)] == [4, 4]
    assert_equal(train_groups(jobs, store=store, engine=engine), expected)


def test_an_interrupt_on_several_devices_saves_what_each_has(tmp_path):
    recipe = dataclasses.replace(RECIPE, rounds=60)
    jobs = [dataclasses.replace(job, recipe=recipe) for job in jobs_of()]
    store, engine = GroupStore(tmp_path), ENGINES["two devices"]
    keys = tuple(job.key(engine.precision) for job in jobs)
    heard: list[tuple[int, int]] = []

    def interrupt(position, rounds):
        if not heard:
            os.kill(os.getpid(), signal.SIGINT)
        heard.append((position, rounds))

    with pytest.raises(KeyboardInterrupt):
        dict(engine.train_groups(jobs, interrupt, store.checkpoints(keys, jobs)))
    made = [rounds_saved(store, *pair) for pair in zip(keys, jobs, strict=True)]
    assert all(0 < rounds < 60 for rounds in made)
    assert made == [max(r for p, r in heard if p == position) for position in (0, 1)]
    expected = train_groups(jobs, engine=ENGINES["batched"])
    assert_equal(train_groups(jobs, store=store, engine=engine), expected)


def test_a_second_interrupt_does_not_wait():
    with deferred_interrupt() as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


@EVERY_ENGINE
def test_training_starts_from_the_saved_round(engine, tmp_path):
    job, store = jobs_of()[1], GroupStore(tmp_path)
    states: list[GroupState] = []
    expected = train_group(job, on_round=states.append)
    store.put_state(job.key(), states[3])
    seen = []
    saved = store.checkpoints([job.key()], [job], every=0)
    results = dict(engine.train_groups([job], lambda _, rounds: seen.append(rounds), saved))
    torch.testing.assert_close(results[0].weights, expected.weights, rtol=1e-5, atol=1e-6)
    assert results[0].rounds == 6
    assert min(seen, default=5) >= 5  # rounds 1 to 4 were not made again


def test_members_set_aside_stay_so_after_a_restart():
    job = jobs_of()[1]

    nothing: Any = None

    def respond(client, data, task, net, job):
        update = honest(client, data, task, net, job)
        return Update(nothing, nothing) if client == 4 and task.round_ == 1 else update

    states: list[GroupState] = []
    expected = train_group(job, on_round=states.append, respond=respond)
    assert list(states[2].set_aside) == [4]
    assert len(states[2].controls) == 2
    assert_equal([train_group(job, start=states[2])], [expected])
    fixed = Checkpoints(lambda _: states[2], lambda *_: pytest.fail("too early to save"), 1e9)
    resumed = dict(ENGINES["batched"].train_groups([job], quiet, fixed))[0]
    torch.testing.assert_close(resumed.weights, expected.weights, rtol=1e-5, atol=1e-6)
    assert resumed.set_aside == expected.set_aside


def test_a_damaged_checkpoint_is_not_trusted(tmp_path):
    job, store = jobs_of()[0], GroupStore(tmp_path)
    states: list[GroupState] = []
    expected = train_group(job, on_round=states.append)
    store.put_state(job.key(), states[2])
    (path,) = tmp_path.glob("*unfinished*")
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.warns(DamagedEntryWarning):
        results = train_groups([job], store=store, engine=Cores(1))
    assert_equal(results, [expected])


@pytest.mark.slow
@EVERY_ENGINE
def test_memory_does_not_grow_over_a_hundred_rounds(engine):
    # Three members of 25,000 weights: keeping one state a round would take 40 MB in 100 rounds.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(8, 2000), nn.ReLU(), nn.Linear(2000, 4))
    recipe = dataclasses.replace(RECIPE, rounds=120)
    job = group_job(class_disjoint_federation(), [1, 4, 5], module, recipe, 5)
    if engine is ENGINES["loop"]:
        sizes = []
        train_group(job, on_round=lambda state: sizes.append(resident_bytes()))
    else:
        sizes = [0]
        dict(engine.train_groups([job], lambda _, rounds: sizes.append(resident_bytes())))
    assert max(sizes[110:]) - max(sizes[5:15]) < 8 << 20


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
