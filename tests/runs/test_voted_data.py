"""Runs, audits and reports vote on, check and show the same test inputs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from carvyfl.data.datasets import load
from carvyfl.data.partitions import PARTITIONS, PartitionRule
from carvyfl.data.rules import feature_shift
from carvyfl.learning.backends import Cores
from carvyfl.report.finished_run import read_runs
from carvyfl.report.sections import extreme_images
from carvyfl.runs.audit import audit, verdict
from carvyfl.runs.config import RunConfig, load_voted_data
from carvyfl.runs.evidence import Evidence
from carvyfl.runs.execute import prepare
from carvyfl.runs.folder import RunFolder
from support.cli import QUICK, carvy
from support.registries import registered

RUN = ("run", *QUICK, "--rounds", "1", "--methods", "carvy,flcert", "--groups", "2")
OWN = PartitionRule("own", "a package's", feature_shift)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shifted")
    options = ("--partition", "feature-shift", "-p", "shifts=[rotate-0, rotate-90, invert]")
    out = folder / "run"
    made = carvy(*RUN, *options, "--types", "oracle", "--out", out, "--store", folder / "store")
    assert made.code == 0, made.err
    return out


def test_the_run_votes_on_shifted_inputs_that_everybody_finds_again(finished):
    folder, raw = RunFolder(finished), load("embedded").test
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


def test_an_audit_checks_all(finished, tmp_path):
    assert verdict(list(audit(RunFolder(finished), Evidence(workers=1)))) == "all checked"
    raw = load("embedded").test  # as it is published: the audit shifts it
    np.savez(tmp_path / "test.npz", x_test=raw.inputs, y_test=raw.labels)
    evidence = Evidence(workers=1, test_data=tmp_path / "test.npz")
    assert verdict(list(audit(RunFolder(finished), evidence))) == "all checked"
    np.savez(tmp_path / "test.npz", x_test=255 - raw.inputs, y_test=raw.labels)
    assert verdict(list(audit(RunFolder(finished), evidence))) == "mismatch"


def test_attacks_and_reports_work(finished):
    attacked = carvy("attack", finished, "-m", "0-1", "--attack", "sign-flip", "--method", "flcert")
    assert attacked.code == 0, attacked.err
    assert RunFolder(finished).attacks()[0].promise_kept
    (run,) = read_runs([finished])
    assert "cannot be shown" not in extreme_images(run, None)


@pytest.mark.slow
def test_shifts_of_a_partition_that_is_not_registered_here(tmp_path):
    """The published test data is not what the run voted on: no mismatch, but not checked."""
    out = tmp_path / "run"
    with registered(PARTITIONS, OWN):
        made = carvy(*RUN, "--partition", "own", "--out", out, "--store", tmp_path / "store")
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
        found = load_voted_data(dataclasses.replace(config, partition=name)).test
        assert found.sha256() == load("embedded").test.sha256()
