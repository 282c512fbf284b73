"""Runs of one-shot learning that keep what their clients sent."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file

from carvyfl.core.errors import CarvyError
from carvyfl.learning.store import GroupStore
from carvyfl.runs.config import RunConfig, load_data, split_data
from carvyfl.runs.folder import RunFolder
from support.cli import assert_refused, carvy
from support.points import CLASSES, WIDTH, runs_on_points


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sums")
    runs_on_points(folder, plain=(), kept=("--keep-sums",))
    return folder


def test_keeping_sums_changes_no_model(runs):
    """The plain run filled the store, and the other one trained on its own."""
    for method in ("carvy", "flcert"):
        plain, kept = (RunFolder(runs / name).models_file(method) for name in ("plain", "kept"))
        assert plain.read_bytes() == kept.read_bytes()
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
