"""The examples run, and do what they say."""

from __future__ import annotations

import copy
import re
import runpy
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from carvyfl import CarvyFL, Recipe, build_federation, load
from carvyfl.learning.private.images import IMAGES, VERSIONS, dead_leaves

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name: str) -> Any:
    """Run an example as a user's script would, in a namespace of its own."""
    return runpy.run_path(str(EXAMPLES / name))["main"]()


def test_every_example_is_tested():
    code = Path(__file__).read_text()
    assert all(f'"{path.name}"' in code for path in EXAMPLES.glob("*.py"))


def test_embeddings_of_a_network_are_a_file_that_one_shot_learning_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The network is another one: the example's own comes from packages that are not installed."""
    space = runpy.run_path(str(EXAMPLES / "frozen_network.py"))
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for name, size in {"train": 400, "test": 60}.items():
        arrays[f"y_{name}"] = labels = rng.integers(0, 2, size)
        pictures = rng.integers(0, 128, (size, 3, 8, 8)) + 127 * labels[:, None, None, None]
        arrays[f"x_{name}"] = pictures.astype(np.uint8)
    np.savez(tmp_path / "pictures.npz", **arrays)
    torch.manual_seed(0)
    network = torch.nn.Conv2d(3, 16, 5, stride=4)
    monkeypatch.setitem(space["main"].__globals__, "frozen_network", lambda: network)
    out = tmp_path / "embeddings.npz"
    monkeypatch.setattr(
        "sys.argv", ["example", str(tmp_path / "pictures.npz"), str(out), "--synthetic"]
    )
    space["main"]()
    data = load(out)
    assert data.train.inputs.shape == (400, 16)
    with np.load(out) as written:
        assert written["synthetic"].shape == (IMAGES, VERSIONS, 16)
        drawn = dead_leaves((3, 8, 8), range(7, 8))[0]
        expected = space["embed"](network, drawn)
        np.testing.assert_allclose(written["synthetic"][7], expected, atol=1e-5)
    clients = build_federation(data, "dirichlet", num_clients=10, samples=30, seed=0, alpha=1.0)
    model = CarvyFL(learner="one-shot", features="none", groups=5).fit(clients)
    assert model.score(data.test.inputs, data.test.labels) == 1.0  # bright against dark


@pytest.mark.slow
def test_a_watch_on_an_arm_is_a_client(monkeypatch: pytest.MonkeyPatch):
    """The recordings are made up: each exercise holds the arm in another posture."""
    rng = np.random.default_rng(0)
    kinds = [
        (person, arm, label) for person in range(1, 11) for arm in (0, 1) for label in range(7)
    ]
    series = [10 * np.eye(7, 6)[label] + rng.normal(size=(320, 6)) for _, _, label in kinds]
    people, arms, labels = map(np.array, zip(*kinds, strict=True))
    data = {"X": series, "y": labels, "subject": people, "side": arms.astype(float)}
    module = types.ModuleType("seglearn.datasets")
    monkeypatch.setattr(module, "load_watch", lambda: data, raising=False)
    monkeypatch.setitem(sys.modules, "seglearn", types.ModuleType("seglearn"))
    monkeypatch.setitem(sys.modules, "seglearn.datasets", module)
    ensemble, certificate = run("natural_split.py")
    federation = ensemble.federation_
    assert federation.types.tolist() == [0, 1] * 8
    client = federation.clients[3]  # the right arm of the second person
    starts = range(0, 221, 50)
    mine = [s for s, kind in zip(series, kinds, strict=True) if kind[:2] == (2, 1)]
    wanted = {s[t : t + 100].T.astype(np.float32).tobytes() for s in mine for t in starts}
    held = np.concatenate([client.train.inputs, client.validation.inputs])
    assert {window.tobytes() for window in held} == wanted
    assert len(held) == len(wanted) == 35
    assert certificate.margin.shape == (2 * 2 * 35,)
    assert ensemble.grouping_.mean_diversity(federation.types) == 1
    assert certificate.ca()[0] > 80


@pytest.mark.slow
def test_own_model():
    ensemble, certificate = run("own_model.py")
    assert type(ensemble.models_.module).__name__ == "SmallNet"
    # Even where a client's type is misjudged, every group holds all five true types.
    assert ensemble.grouping_.mean_diversity(ensemble.federation_.types) == 1
    # Far above the 10 % of guessing, although no client has seen more than two classes.
    assert certificate.ca()[0] > 50
    assert certificate.ca()[1] > 40
    assert certificate.basis.readings == ["given_groups"]


def test_own_data():
    from_arrays, from_datasets, certificate = run("own_data.py")
    # The same rows, the same models, bit for bit: it must not matter how data is brought.
    assert from_arrays.models_.weights.equal(from_datasets.models_.weights)
    assert from_arrays.grouping_.mean_diversity(from_arrays.profiles_.types.labels) == 1
    assert certificate.basis.readings == ["given_groups", "honest_only", "all_honest"]
    assert certificate.ca()[0] > 80
    assert certificate.largest_m(70) >= 2


@pytest.mark.slow
def test_own_partition():
    ensemble, certificate = run("own_partition.py")
    truth = ensemble.federation_.types
    held = [np.unique(client.train.labels).tolist() for client in ensemble.federation_.clients]
    wanted = {0: {0, 2, 3, 4, 6}, 1: {5, 7, 9}, 2: {1, 8}}
    assert all(set(classes) <= wanted[kind] for classes, kind in zip(held, truth, strict=True))
    assert ensemble.grouping_.mean_diversity(truth) == 1  # every group has all three ranges
    assert certificate.ca()[0] > 50


@pytest.mark.slow
def test_step_by_step_agrees_with_the_estimator(capsys: pytest.CaptureFixture[str]):
    federation, profiles, grouping, votes, certificate = run("step_by_step.py")
    assert np.array_equal(profiles.types.labels, federation.types)
    assert f"CA(0) = {certificate.ca()[0]:.1f} %" in capsys.readouterr().out

    ensemble = CarvyFL("mlp", training=Recipe(rounds=15, lr=0.05)).fit(federation)
    assert ensemble.grouping_ == grouping
    assert np.array_equal(ensemble.votes(load("embedded").test.inputs).groups, votes.groups)


@pytest.mark.slow
def test_the_tutorial_runs_and_shows_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    stored = nbformat.read(EXAMPLES / "tutorial.ipynb", as_version=4)
    nbformat.validate(stored)
    fresh = nbclient.NotebookClient(
        copy.deepcopy(stored), timeout=300, kernel_name="python3"
    ).execute(cwd=str(tmp_path))
    for before, after in zip(stored.cells, fresh.cells, strict=True):
        if before.cell_type == "code":
            assert shapes(before) == shapes(after) != [], before.source
    printed = "".join(
        output.get("text", "") for cell in fresh.cells for output in cell.get("outputs", [])
    )
    certified = list(map(float, re.findall(r"([\d.]+) % are certain", printed)))
    attacked = re.findall(r"([\d.]+) % under attack, at least ([\d.]+) % certified", printed)
    assert certified[0] > 80
    assert certified == sorted(certified, reverse=True)
    assert [float(least) for _, least in attacked] == certified[: len(attacked)]
    assert all(float(accuracy) >= float(least) for accuracy, least in attacked)


def shapes(cell: Any) -> list[list[str]]:
    """What kinds of output a cell has: printed lines, values, pictures."""
    return [sorted(output.get("data", {"text": 0})) for output in cell.outputs]
