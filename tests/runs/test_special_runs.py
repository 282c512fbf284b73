"""Runs that keep sums, add noise in Step 1, or vote on shifted inputs."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from carvyfl import pipeline
from carvyfl.core.errors import CarvyError
from carvyfl.data.clients import Client, Samples
from carvyfl.data.datasets import load
from carvyfl.data.partitions import PARTITIONS, PartitionRule
from carvyfl.data.rules import feature_shift
from carvyfl.learning.backends import Cores
from carvyfl.learning.recipe import Recipe
from carvyfl.learning.store import GroupStore
from carvyfl.pipeline import Compute
from carvyfl.profiles.methods import Profiles, read_profiles
from carvyfl.report.finished_run import read_runs
from carvyfl.report.sections import extreme_images
from carvyfl.runs.audit import audit, verdict
from carvyfl.runs.config import RunConfig, load_data, load_voted_data, split_data
from carvyfl.runs.evidence import Evidence
from carvyfl.runs.execute import execute, prepare, regrouping
from carvyfl.runs.folder import RunFolder
from support.cli import QUICK, assert_refused, carvy
from support.points import CLASSES, WIDTH, runs_on_points
from support.registries import registered


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sums")
    runs_on_points(folder, plain=(), kept=("--keep-sums",))
    return folder


def test_keeping_sums_changes_no_model(runs):
    """The plain run filled the store, and the other one trained on its own."""
    for method in ("carvy", "flcert"):
        plain, full = (RunFolder(runs / name).models_file(method) for name in ("plain", "kept"))
        assert plain.read_bytes() == full.read_bytes()
    with pytest.raises(CarvyError, match="kept no sums"):
        RunFolder(runs / "plain").sums()


def test_no_head_comes_from_the_store(runs, monkeypatch):
    """It may be made of sums that another machine rounded otherwise than those kept."""

    def looked(*_: object) -> None:
        raise AssertionError("looked into the store")

    monkeypatch.setattr(GroupStore, "get", looked)
    runs_on_points(runs, again=("--keep-sums",))


def test_the_file_holds_the_sums_of_the_clients_samples(runs):
    run = RunFolder(runs / "kept")
    federation = split_data(run.config(), load_data(run.config()))
    tensors = load_file(run.sums_file)
    for k, client in enumerate(federation.clients):
        x = (client.train.inputs.astype(np.float64) - federation.mean) / federation.std
        for c in range(CLASSES):
            of_class = x[client.train.labels == c]
            assert tensors["counts"][k, c] == len(of_class)
            np.testing.assert_allclose(tensors["first"][k, c], of_class.sum(axis=0), atol=1e-4)
        matrix = np.sum([np.outer(row, row) for row in x], axis=0)
        triangle = [matrix[i, j] for i in range(WIDTH) for j in range(i, WIDTH)]
        np.testing.assert_allclose(tensors["second"][k], triangle, atol=1e-4)


def test_only_one_shot_learning_has_sums_to_keep(tmp_path):
    answer = carvy("run", "--keep-sums", "--learner", "scaffold", "--out", tmp_path / "run")
    assert_refused(answer, "'scaffold'", "leave out --keep-sums", "--learner one-shot")
    with pytest.raises(CarvyError, match="send no sums to keep"):
        RunConfig(keep_sums=True)


def test_the_same_command_restores_damaged_sums(runs):
    run = RunFolder(runs / "kept")
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    run.sums_file.write_bytes(b"damaged")
    with pytest.raises(CarvyError, match="run the same 'carvy run' again to restore it"):
        run.sums()
    runs_on_points(runs, kept=("--keep-sums",))
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


# Runs whose clients add noise in Step 1: no noise comes again, and none is drawn twice.

CONFIG = RunConfig(
    types="private-shares",
    epsilon=10.0,
    dataset="embedded",
    clients=12,
    samples=20,
    model="mlp",
    methods=("carvy", "slots"),
    groups=4,
    training=Recipe(rounds=1),
)


@pytest.fixture(scope="module")
def private(tmp_path_factory):
    return executed(tmp_path_factory.mktemp("run") / "run")


def executed(out: Path) -> RunFolder:
    execute(CONFIG, out, Compute.on_cores(1))
    return RunFolder(out)


def rows_of(folder: RunFolder):
    profiles = folder.profiles()
    assert profiles is not None
    assert profiles.vectors is not None
    return profiles.vectors.rows


def test_a_run_is_audited_and_the_same_seed_elsewhere_sends_something_else(private, tmp_path):
    assert verdict(list(audit(private, Evidence()))) == "all checked"
    other = executed(tmp_path / "other")
    same = np.isclose(rows_of(private), rows_of(other)).all(axis=1)
    assert same.mean() < 0.8  # the simplex has few corners, and noise takes two rows to one


def test_a_run_that_is_repeated_stays_as_it_is(private, tmp_path):
    shutil.copytree(private.path, tmp_path / "run")
    again = executed(tmp_path / "run")
    assert again.record().digest == private.record().digest


def test_an_interrupted_run_goes_on_with_what_was_sent(monkeypatch, tmp_path):
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("carvyfl.runs.execute.train", stopped)
        with pytest.raises(KeyboardInterrupt):
            executed(tmp_path / "run")
    sent = (tmp_path / "run" / "profiles.npz").read_bytes()
    finished = executed(tmp_path / "run")
    assert finished.profiles_file.read_bytes() == sent
    assert verdict(list(audit(finished, Evidence()))) == "all checked"


@pytest.mark.parametrize("method", CONFIG.methods)
def test_under_attack_honest_clients_send_what_they_sent(private, method, monkeypatch):
    setup = prepare(CONFIG).setup
    regroup = regrouping(method, CONFIG, setup, Compute.on_cores(1), None, private.profiles())
    assert regroup is not None
    same = regroup(setup)
    assert same.assignment.tolist() == private.grouping(method).assignment.tolist()
    read = []

    def watched(*given: Any) -> Profiles:
        read.append(read_profiles(*given))
        return read[-1]

    monkeypatch.setattr("carvyfl.runs.execute.read_profiles", watched)
    client = setup.federation.clients[3]
    poisoned = Client(Samples(client.train.inputs, client.train.labels[::-1]), client.validation)
    clients = (*setup.federation.clients[:3], poisoned, *setup.federation.clients[4:])
    federation = dataclasses.replace(setup.federation, clients=clients)
    regroup(dataclasses.replace(setup, federation=federation))
    (heard,) = read
    assert heard.vectors is not None
    equal = (heard.vectors.rows == rows_of(private)).all(axis=1)
    assert np.flatnonzero(~equal).tolist() == [3]


def test_what_epsilon_covers_is_printed_and_added_up(private, tmp_path):
    covers = "ε = 10 covers what clients sent in Step 1, not training; it adds up over runs with"
    assert covers + " the same clients." in carvy("show", private.path).out
    execute(dataclasses.replace(CONFIG, seed=1), tmp_path / "run", Compute.on_cores(1))
    both = carvy("show", private.path, tmp_path / "run").out
    assert covers + " the same clients: 20 for these 2." in both
    unasked = dataclasses.replace(CONFIG, methods=("single",))
    execute(unasked, tmp_path / "single", Compute.on_cores(1))
    assert "ε" not in carvy("show", tmp_path / "single").out


def test_a_command_without_a_number_of_groups_is_refused(tmp_path):
    out = tmp_path / "run"
    assert_refused(
        carvy("run", "--types", "private-shares", "--out", out), "--groups", "exact sums"
    )
    assert not out.exists()
    assert_refused(
        carvy("run", "--types", "private-shares", "--epsilon", "1e13", "-g", 4, "--out", out),
        "--epsilon",
        "from 0.01 to 100",
    )


def test_methods_that_ask_no_client_may_leave_the_number_of_groups_open():
    config = dataclasses.replace(CONFIG, methods=("single",), groups=None)
    pipeline.check_methods(config.methods, config, prepare(config).setup)


# Runs, audits and reports vote on, check and show the same test inputs.

SHIFTED = ("run", *QUICK, "--rounds", "1", "--methods", "carvy,flcert", "--groups", "2")
OWN = PartitionRule("own", "a package's", feature_shift)


@pytest.fixture(scope="module")
def shifted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shifted")
    options = ("--partition", "feature-shift", "-p", "shifts=[rotate-0, rotate-90, invert]")
    out = folder / "run"
    made = carvy(*SHIFTED, *options, "--types", "oracle", "--out", out, "--store", folder / "store")
    assert made.code == 0, made.err
    return out


def test_the_run_votes_on_shifted_inputs_that_everybody_finds_again(shifted):
    folder, raw = RunFolder(shifted), load("embedded").test
    record = folder.record()
    assert record.types is not None
    assert record.types.true_types == (0, 0, 0, 0, 1, 1, 1, 2, 2, 2)
    for test in (prepare(folder.config()).dataset.test, load_voted_data(record.config).test):
        assert test.sha256() == record.data.test_sha256 != raw.sha256()
        for before, after in zip(raw.inputs, test.inputs, strict=True):
            ways = (before, np.rot90(before, axes=(1, 2)), 255 - before)
            assert any(np.array_equal(after, way) for way in ways)
        again = folder.models("flcert").votes(test.inputs, Cores(1))
        assert np.array_equal(again.groups, folder.votes("flcert")[0].groups)


def test_an_audit_checks_all(shifted, tmp_path):
    assert verdict(list(audit(RunFolder(shifted), Evidence(workers=1)))) == "all checked"
    raw = load("embedded").test  # as it is published: the audit shifts it
    np.savez(tmp_path / "test.npz", x_test=raw.inputs, y_test=raw.labels)
    evidence = Evidence(workers=1, test_data=tmp_path / "test.npz")
    assert verdict(list(audit(RunFolder(shifted), evidence))) == "all checked"
    np.savez(tmp_path / "test.npz", x_test=255 - raw.inputs, y_test=raw.labels)
    assert verdict(list(audit(RunFolder(shifted), evidence))) == "mismatch"


def test_attacks_and_reports_work(shifted):
    attacked = carvy("attack", shifted, "-m", "0-1", "--attack", "sign-flip", "--method", "flcert")
    assert attacked.code == 0, attacked.err
    assert RunFolder(shifted).attacks()[0].promise_kept
    (run,) = read_runs([shifted])
    assert "cannot be shown" not in extreme_images(run, None)


@pytest.mark.slow
def test_shifts_of_a_partition_that_is_not_registered_here(tmp_path):
    """The published test data is not what the run voted on: no mismatch, but not checked."""
    out = tmp_path / "run"
    with registered(PARTITIONS, OWN):
        made = carvy(*SHIFTED, "--partition", "own", "--out", out, "--store", tmp_path / "store")
        assert made.code == 0, made.err
        assert verdict(list(audit(RunFolder(out), Evidence(workers=1)))) == "all checked"
    states = {check.what: check for check in audit(RunFolder(out), Evidence(workers=1))}
    for what in ("configuration", "data", "test data", "votes of flcert"):
        assert states[what].state == "not checked"
        assert "'own' is not registered here" in states[what].detail
    assert states["certificate of flcert"].state == "ok"
    (run,) = read_runs([out])
    assert "cannot be shown" in extreme_images(run, None)


def test_other_partitions_vote_on_the_data_sets_own():
    config = RunConfig(clients=10, samples=20)
    for name in ("iid", "dirichlet"):
        test = load_voted_data(dataclasses.replace(config, partition=name)).test
        assert test.sha256() == load("embedded").test.sha256()
