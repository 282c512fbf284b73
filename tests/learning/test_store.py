"""The group store: complete or absent, never trusted when damaged, never trained twice."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from carvyfl.core.errors import CarvyError
from carvyfl.core.files import replacing, write_text
from carvyfl.groups.methods import form_groups
from carvyfl.learning.job import GroupResult
from carvyfl.learning.planner import train_groups
from carvyfl.learning.recipe import Recipe
from carvyfl.learning.scaffold.loop.engine import LoopEngine
from carvyfl.learning.store import DamagedEntryWarning, GroupStore
from carvyfl.pipeline import Setup, plan_training
from support.federations import class_disjoint_federation, small_net

RESULT = GroupResult(torch.arange(50.0), (0.25, 0.5), "patience", {7: "round 3: no answer"})


def jobs_of(rounds=2):
    federation = class_disjoint_federation()
    grouping = form_groups("balanced", num_clients=len(federation), seed=0, num_groups=2)
    setup = Setup(federation, small_net(), Recipe(rounds=rounds), seed=0)
    return plan_training(setup, grouping)


def test_what_is_put_is_got(tmp_path):
    store = GroupStore(tmp_path)
    assert store.get("a") is None
    store.put("a", RESULT)
    found = store.get("a")
    assert found
    assert torch.equal(found.weights, RESULT.weights)
    assert (found.accuracy, found.stopped, found.set_aside) == (
        RESULT.accuracy,
        RESULT.stopped,
        RESULT.set_aside,
    )


def test_a_diverged_model_keeps_its_nan_and_still_casts_no_vote(tmp_path):
    store = GroupStore(tmp_path)
    store.put("a", GroupResult(torch.tensor([1.0, torch.nan]), (float("nan"),), "diverged"))
    found = store.get("a")
    assert found
    assert not found.votes


def test_every_flipped_byte_is_noticed(tmp_path):
    store = GroupStore(tmp_path)
    store.put("a", RESULT)
    path = next(tmp_path.iterdir())
    good = path.read_bytes()
    for position in range(len(good)):
        path.write_bytes(good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :])
        with pytest.warns(DamagedEntryWarning, match="trained again"):
            assert store.get("a") is None


def test_every_truncation_is_noticed(tmp_path):
    store = GroupStore(tmp_path)
    store.put("a", RESULT)
    path = next(tmp_path.iterdir())
    good = path.read_bytes()
    for size in range(0, len(good), 7):
        path.write_bytes(good[:size])
        with pytest.warns(DamagedEntryWarning):
            assert store.get("a") is None


def test_nothing_is_trained_twice(tmp_path):
    store = GroupStore(tmp_path)
    first = train_groups(jobs_of(), store=store, engine=LoopEngine(1))
    written = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    progress = []
    jobs = jobs_of() + jobs_of()[:1]
    again = train_groups(
        jobs, store=store, engine=LoopEngine(1), progress=lambda *work: progress.append(work)
    )
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == written
    assert len(progress) == 1  # all of it was there before anything began
    assert progress[0][0] == progress[0][1]
    for one, other in zip([*first, first[0]], again, strict=True):
        assert torch.equal(one.weights, other.weights)


def test_only_a_damaged_group_is_trained_again_and_comes_out_the_same(tmp_path):
    store = GroupStore(tmp_path)
    first = train_groups(jobs_of(), store=store, engine=LoopEngine(1))
    damaged, intact = sorted(tmp_path.iterdir())
    damaged.write_bytes(b"nonsense")
    before = intact.stat().st_mtime_ns
    with pytest.warns(DamagedEntryWarning):
        again = train_groups(jobs_of(), store=store, engine=LoopEngine(1))
    assert intact.stat().st_mtime_ns == before
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one.weights, other.weights)


def test_progress_ends_at_the_whole_work(tmp_path):
    progress = []
    jobs = jobs_of(rounds=3)
    train_groups(jobs, engine=LoopEngine(2), progress=lambda *work: progress.append(work))
    total = sum(job.steps_per_round for job in jobs) * 3
    assert progress[0] == (0, total)
    assert progress[-1] == (total, total)
    assert all(done <= total for done, _ in progress)


def test_a_store_that_cannot_be_a_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CarvyError, match="group store"):
        GroupStore(tmp_path / "file" / "store")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")
def test_a_full_disk_is_one_clear_line_and_leaves_nothing(tmp_path):
    def write_until_the_disk_is_full():
        with replacing(tmp_path / "x") as file:
            os.dup2(os.open("/dev/full", os.O_WRONLY), file.fileno())
            file.write(b"x" * 100_000)

    with pytest.raises(CarvyError, match="cannot write"):
        write_until_the_disk_is_full()
    assert list(tmp_path.iterdir()) == []


def test_threads_may_write_the_same_file(tmp_path):
    ready = threading.Barrier(4)

    def write(text: str) -> None:
        for _ in range(50):
            ready.wait()
            write_text(tmp_path / "x", text)
            assert set((tmp_path / "x").read_text()) < {"a", "b", "c", "d"}

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, [letter * 1000 for letter in "abcd"]))
    assert [file.name for file in tmp_path.iterdir()] == ["x"]
