"""The group store: complete or absent, never trusted when damaged, never trained twice."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from carvyfl.core.errors import CarvyError
from carvyfl.core.files import replacing, write_text
from carvyfl.core.progress import quiet
from carvyfl.groups.methods import form_groups
from carvyfl.learning.backends import Cores, Gpus
from carvyfl.learning.job import GroupJob, GroupResult, GroupState
from carvyfl.learning.recipe import Recipe
from carvyfl.learning.store import (
    FEW,
    SHARED,
    DamagedEntryWarning,
    GroupStore,
    StoreWriter,
    train_groups,
    write_entry,
)
from carvyfl.pipeline import Setup, plan_training
from support.federations import class_disjoint_federation, small_net

RESULT = GroupResult(torch.arange(50.0), (0.25, 0.5), "patience", {7: "round 3: no answer"})
JOB = GroupJob((3, 7, 8), (), nn.Linear(49, 1), Recipe(), 0, 0.0, 1.0)
STATE = GroupState(torch.ones(50), torch.ones(50), torch.ones(2, 50), (0.5,), {7: "no answer"})


@pytest.fixture
def store(tmp_path):
    return GroupStore(tmp_path)


def jobs_of(rounds=2):
    federation = class_disjoint_federation()
    grouping = form_groups("balanced", num_clients=len(federation), seed=0, num_groups=2)
    setup = Setup(federation, small_net(), Recipe(rounds=rounds), seed=0)
    return plan_training(setup, grouping)


def assert_same(one, other):
    assert torch.equal(one.weights, other.weights)
    assert (one.accuracy, one.stopped, one.set_aside) == (
        *(other.accuracy, other.stopped, other.set_aside),
    )


DIVERGED = GroupResult(torch.full((50,), torch.inf), (0.5,), "diverged")


@pytest.mark.parametrize("result", [RESULT, DIVERGED], ids=["trained", "diverged"])
def test_what_is_put_is_got(store, result):
    assert store.get("a", JOB) is None
    store.put("a", result)
    assert_same(store.get("a", JOB), result)
    assert store.get("a", JOB).votes == (result is RESULT)


def damaged(good, step):
    """All versions of a file with a flipped bit, and cut off, every so many bytes."""
    for position in range(0, len(good), step):
        yield good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :]
        yield good[:position]


def test_every_damage_is_noticed(tmp_path, store):
    store.put("a", RESULT)
    (path,) = tmp_path.iterdir()
    for content in damaged(path.read_bytes(), 1):
        path.write_bytes(content)
        with pytest.warns(DamagedEntryWarning, match="trained again"):
            assert store.get("a", JOB) is None


def test_a_file_copied_over_another_is_not_taken_for_it(tmp_path, store):
    jobs = jobs_of()
    results = train_groups(jobs, store=store, engine=Cores(1))
    shutil.copy(*(tmp_path / f"{job.key()}.safetensors" for job in jobs))
    with pytest.warns(DamagedEntryWarning, match="another group's"):
        again = train_groups(jobs, store=store, engine=Cores(1))
    for before, after in zip(results, again, strict=True):
        assert torch.equal(before.weights, after.weights)
    assert not torch.equal(again[0].weights, again[1].weights)
    assert store.get(jobs[1].key(), jobs[1])  # stored again, in its own name


def test_a_state_copied_over_another_is_not_taken_for_it(tmp_path, store):
    store.put_state("a", STATE)
    state = store.get_state("a", JOB)
    assert state
    assert torch.equal(state.controls, STATE.controls)
    shutil.copy(tmp_path / "a.unfinished.safetensors", tmp_path / "b.unfinished.safetensors")
    shutil.copy(tmp_path / "a.unfinished.safetensors", tmp_path / "a.safetensors")
    with pytest.warns(DamagedEntryWarning):
        assert store.get_state("b", JOB) is None
    with pytest.warns(DamagedEntryWarning):
        assert store.get("a", JOB) is None


@pytest.mark.parametrize(
    "result",
    [
        GroupResult(torch.ones(51), (), "rounds"),
        GroupResult(torch.ones(1, 50), (), "rounds"),
        GroupResult(torch.ones(50).double(), (), "rounds"),
        GroupResult(torch.full((50,), torch.nan), (0.5,), "rounds"),
        GroupResult(torch.full((50,), torch.inf), (0.5,), "patience"),
    ],
    ids=["too long", "a matrix", "double", "NaN", "infinity"],
)
def test_a_result_that_no_training_gives_counts_as_damaged(store, result):
    store.put("a", result)
    with pytest.warns(DamagedEntryWarning):
        assert store.get("a", JOB) is None


def test_an_entry_without_weights_counts_as_damaged(tmp_path):
    record = {"accuracy": [], "stopped": "rounds", "set_aside": {}}
    write_entry(tmp_path / "a.safetensors", {}, record)
    with pytest.warns(DamagedEntryWarning, match="no weights"):
        assert GroupStore(tmp_path).get("a", JOB) is None


@pytest.mark.parametrize("name", ["weights", "server", "controls"])
def test_a_state_of_another_shape_counts_as_damaged(store, name):
    longer: Any = torch.cat([getattr(STATE, name)] * 2, dim=-1)
    store.put_state("a", dataclasses.replace(STATE, **{name: longer}))
    with pytest.warns(DamagedEntryWarning):
        assert store.get_state("a", JOB) is None


def test_an_entry_of_the_first_format_is_absent_without_a_warning(tmp_path):
    """Its checksum, as it was then, covered the record and the weights, but not the key."""
    record = '{"accuracy": [0.5], "stopped": "rounds", "set_aside": {}}'
    digest = hashlib.blake2b(record.encode(), digest_size=16)
    digest.update(b"weights(50,)")
    digest.update(RESULT.weights.numpy().data)
    metadata = {"record": record, "checksum": digest.hexdigest()}
    save_file({"weights": RESULT.weights}, tmp_path / "a.safetensors", metadata)
    store = GroupStore(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.get("a", JOB) is None
    store.put("a", RESULT)
    assert store.get("a", JOB)


def test_what_dead_processes_left_is_swept_after_a_day(tmp_path, store):
    store.put("a", RESULT)
    old, fresh = (tmp_path / f".{name}.safetensors.1-1.part" for name in ("old", "fresh"))
    for part in (old, fresh):
        part.write_bytes(b"half")
    for path in (old, tmp_path / "a.safetensors"):
        os.utime(path, (0, time.time() - 2 * 24 * 60 * 60))
    GroupStore(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [fresh.name, "a.safetensors"]


def test_nothing_is_trained_twice(tmp_path, store):
    first = train_groups(jobs_of(), store=store, engine=Cores(1))
    written = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    progress = []
    jobs = jobs_of() + jobs_of()[:1]
    again = train_groups(
        jobs, store=store, engine=Cores(1), progress=lambda *work: progress.append(work)
    )
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == written
    assert len(progress) == 1  # all of it was there before anything began
    assert progress[0][0] == progress[0][1]
    for one, other in zip([*first, first[0]], again, strict=True):
        assert torch.equal(one.weights, other.weights)


def test_only_a_damaged_group_is_trained_again_and_comes_out_the_same(tmp_path, store):
    first = train_groups(jobs_of(), store=store, engine=Cores(1))
    spoilt, intact = sorted(tmp_path.iterdir())
    spoilt.write_bytes(b"nonsense")
    before = intact.stat().st_mtime_ns
    with pytest.warns(DamagedEntryWarning):
        again = train_groups(jobs_of(), store=store, engine=Cores(1))
    assert intact.stat().st_mtime_ns == before
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one.weights, other.weights)


def test_progress_ends_at_the_whole_work(tmp_path):
    progress = []
    jobs = jobs_of(rounds=3)
    train_groups(jobs, engine=Cores(2), progress=lambda *work: progress.append(work))
    total = sum(job.steps_per_round for job in jobs) * 3
    assert progress[0] == (0, total)
    assert progress[-1] == (total, total)
    assert all(done <= total for done, _ in progress)


def many_results():
    return {
        f"key {n}": GroupResult(torch.arange(50.0) + n, (n / 100,), "rounds", {n: "no answer"})
        for n in range(FEW)
    }


def test_results_that_share_a_file_are_got_one_by_one_and_together(tmp_path):
    GroupStore(tmp_path).put_all(many_results())
    assert len(list(tmp_path.iterdir())) == 1
    store = GroupStore(tmp_path)
    together = store.get_all(dict.fromkeys([*many_results(), "another"], JOB))
    assert together.keys() == many_results().keys()
    for key, result in many_results().items():
        assert_same(together[key], result)
        assert_same(store.get(key, JOB), result)
        assert store.begun(key)
    assert not store.begun("another")


def test_another_process_sees_what_is_stored_later(tmp_path):
    other = GroupStore(tmp_path)
    assert other.get("key 3", JOB) is None
    GroupStore(tmp_path).put_all(many_results())
    assert other.get("key 3", JOB)


def test_every_damage_to_a_shared_file_is_noticed(tmp_path):
    wanted = many_results()
    GroupStore(tmp_path).put_all(wanted)
    (path,) = tmp_path.iterdir()
    for content in damaged(path.read_bytes(), 11):
        path.write_bytes(content)
        with pytest.warns(DamagedEntryWarning, match="trained again"):
            results = GroupStore(tmp_path).get_all(dict.fromkeys(wanted, JOB))
        assert len(results) < len(wanted)
        for key, result in results.items():  # the others can still be had, if any
            assert_same(result, wanted[key])


def test_a_damaged_result_of_a_shared_file_is_replaced_by_the_next_one(tmp_path):
    results = many_results()
    store = GroupStore(tmp_path)
    store.put_all(results)
    path = next(tmp_path.glob(f"*{SHARED}"))
    path.write_bytes(path.read_bytes()[:-1] + b"x")  # in the weights of one of them
    with pytest.warns(DamagedEntryWarning):
        (lost,) = results.keys() - store.get_all(dict.fromkeys(results, JOB)).keys()
    store.put(lost, results[lost])
    assert store.get_all(dict.fromkeys(results, JOB)).keys() == results.keys()


def test_a_writer_has_stored_everything_when_it_is_left(tmp_path):
    results = {f"{n:04}": RESULT for n in range(700)}
    store = GroupStore(tmp_path)

    def interrupted() -> None:
        with StoreWriter(store) as writer:
            for key, result in results.items():
                writer.put(key, result)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert GroupStore(tmp_path).get_all(dict.fromkeys(results, JOB)).keys() == results.keys()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    store = GroupStore(tmp_path / "store")
    (tmp_path / "store").rmdir()
    (tmp_path / "store").write_text("in the way")
    refused = r"cannot write .*; move away what is in its place or choose another folder"
    with pytest.raises(CarvyError, match=refused), StoreWriter(store) as writer:
        writer.put("a", RESULT)
    with pytest.raises(CarvyError, match="group store"):
        GroupStore(tmp_path / "store" / "inside")


def test_many_groups_that_finish_together_share_few_files(tmp_path):
    federation = class_disjoint_federation(per_type=20)
    grouping = form_groups("balanced", num_clients=len(federation), seed=0, num_groups=40)
    jobs = plan_training(Setup(federation, small_net(), Recipe(rounds=1), seed=0), grouping)
    engine, progress = Gpus(device="cpu", precision="fp32"), []
    results = [
        train_groups(jobs, store=GroupStore(tmp_path), engine=engine, progress=report)
        for report in (quiet, lambda *work: progress.append(work))
    ]
    assert len(list(tmp_path.glob("*.safetensors"))) < len(jobs)
    assert len(progress) == 1  # nothing was trained the second time
    for one, other in zip(*results, strict=True):
        assert torch.equal(one.weights, other.weights)


@pytest.mark.parametrize("name", ["a", "a.unfinished", "shared"])
def test_a_folder_in_an_entrys_place_is_absent_and_not_in_the_way(tmp_path, name):
    results = {f"{n:04}": RESULT for n in range(FEW)} if name == "shared" else {"a": RESULT}
    wanted = dict.fromkeys(results, JOB)
    store = GroupStore(tmp_path)
    store.put_all(results)
    (entry,) = tmp_path.iterdir()
    entry.unlink()
    place = entry if name == "shared" else tmp_path / f"{name}.safetensors"
    (place / "of somebody").mkdir(parents=True)
    store = GroupStore(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DamagedEntryWarning)
        assert not store.begun("a")
        assert store.get_all(wanted) == {}
        assert store.get_state("a", JOB) is None
        store.put_state("a", STATE)
        store.put_all(results)
        assert GroupStore(tmp_path).get_all(wanted).keys() == results.keys()
    assert len(list(tmp_path.glob("*/of somebody"))) == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")
def test_a_full_disk_is_one_clear_line_and_leaves_nothing(tmp_path):
    def write_until_the_disk_is_full():
        with replacing(tmp_path / "x") as file:
            os.dup2(os.open("/dev/full", os.O_WRONLY), file.fileno())
            file.write(b"x" * 100_000)

    with pytest.raises(CarvyError, match=r"cannot write .* No space left on device; free some"):
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
