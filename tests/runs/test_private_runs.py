"""Runs whose clients add noise in Step 1: no noise comes again, and none is drawn twice."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from carvyfl import pipeline
from carvyfl.data.clients import Client, Samples
from carvyfl.learning.recipe import Recipe
from carvyfl.pipeline import Compute
from carvyfl.profiles.methods import Profiles, read_profiles
from carvyfl.runs.audit import audit, verdict
from carvyfl.runs.config import RunConfig
from carvyfl.runs.evidence import Evidence
from carvyfl.runs.execute import execute, prepare, regrouping
from carvyfl.runs.folder import RunFolder
from support.cli import assert_refused, carvy

CONFIG = RunConfig(
    types="private-shares",
    dataset="embedded",
    clients=12,
    samples=20,
    model="mlp",
    methods=("carvy", "slots"),
    groups=4,
    training=Recipe(rounds=1),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return executed(tmp_path_factory.mktemp("private") / "run")


def executed(out: Path) -> RunFolder:
    execute(CONFIG, out, Compute.on_cores(1))
    return RunFolder(out)


def rows(folder: RunFolder):
    profiles = folder.profiles()
    assert profiles is not None
    assert profiles.vectors is not None
    return profiles.vectors.rows


def test_a_run_is_audited_and_the_same_seed_elsewhere_sends_something_else(run, tmp_path):
    assert verdict(list(audit(run, Evidence()))) == "all checked"
    other = executed(tmp_path / "other")
    assert not np.isclose(rows(run), rows(other)).all(axis=1).any()


def test_a_run_that_is_repeated_stays_as_it_is(run, tmp_path):
    shutil.copytree(run.path, tmp_path / "run")
    again = executed(tmp_path / "run")
    assert again.record().digest == run.record().digest


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
def test_under_attack_honest_clients_send_what_they_sent(run, method, monkeypatch):
    setup = prepare(CONFIG).setup
    regroup = regrouping(method, CONFIG, setup, Compute.on_cores(1), None, run.profiles())
    assert regroup is not None
    same = regroup(dataclasses.replace(setup.federation))
    assert same.assignment.tolist() == run.grouping(method).assignment.tolist()
    read = []

    def watched(*given: Any) -> Profiles:
        read.append(read_profiles(*given))
        return read[-1]

    monkeypatch.setattr("carvyfl.runs.execute.read_profiles", watched)
    own = setup.federation.clients[3]
    poisoned = Client(Samples(own.train.inputs, own.train.labels[::-1]), own.validation)
    clients = (*setup.federation.clients[:3], poisoned, *setup.federation.clients[4:])
    regroup(dataclasses.replace(setup.federation, clients=clients))
    (heard,) = read
    assert heard.vectors is not None
    equal = (heard.vectors.rows == rows(run)).all(axis=1)
    assert np.flatnonzero(~equal).tolist() == [3]


def test_what_epsilon_covers_is_printed_and_added_up(run, tmp_path):
    covers = "ε = 10 covers what clients sent in Step 1, not training; it adds up over runs with"
    assert covers + " the same clients." in carvy("show", run.path).out
    execute(dataclasses.replace(CONFIG, seed=1), tmp_path / "run", Compute.on_cores(1))
    both = carvy("show", run.path, tmp_path / "run").out
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
