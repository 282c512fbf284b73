"""Forgeries that are consistent with every hash and with most of the rest of a folder."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from carvyfl.core.schema import plain
from carvyfl.learning.one_shot.training import head_from
from carvyfl.pipeline import form_method
from carvyfl.plots.pictures import plot
from carvyfl.profiles.vectors import save_vectors
from carvyfl.runs.audit import audit, verdict
from carvyfl.runs.config import load_voted_data, to_yaml
from carvyfl.runs.evidence import Evidence
from carvyfl.runs.folder import RunFolder
from carvyfl.runs.pictures import draw_pictures
from carvyfl.runs.record import certified_method
from carvyfl.voting.files import save_votes
from support.bounded import GIB, bounded
from support.cli import carvy
from support.records import attack_result
from support.sealing import reseal

RUN = ("run", "--learner", "one-shot", "--features", "none", "--partition", "iid", "--workers", 1)
SIZES = ("--clients", 12, "--samples", 40, "--methods", "carvy", "--ridge", 1e-6)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of clients that differ by chance: ``chosen`` chose G, ``kept`` keeps the sums."""
    folder = tmp_path_factory.mktemp("forged")
    for name, *more in (("chosen",), ("kept", "--keep-sums", "--groups", 3)):
        answer = carvy(*RUN, *SIZES, *more, "--out", folder / str(name))
        assert answer.code == 0, answer.err
    return folder


def vote_again(run: RunFolder) -> None:
    """Let the stored models vote, and claim what follows."""
    reseal(run.path)
    test = load_voted_data(run.config()).test
    save_votes(run.votes_file("carvy"), run.models("carvy").votes(test.inputs), test.labels)
    reseal(run.path)
    claimed = plain(certified_method(run.certificate("carvy")))
    reseal(run.path, lambda record: record["methods"]["carvy"].update(claimed))
    draw_pictures(run, {"carvy": run.certificate("carvy")}, run.record())
    reseal(run.path)


def better_sums(run: RunFolder) -> None:
    """Move all first moments by less than a ten-thousandth, for the labels of the test set."""
    test, models = load_voted_data(run.config()).test, run.models("carvy")
    module = models.module
    x = module.features.of(test.inputs).astype(np.float64)  # type: ignore[union-attr, operator]
    aim = np.eye(10)[test.labels] - 0.1
    sums, moments = run.sums(), load_file(run.sums_file)["first"].copy()
    for members in run.grouping("carvy").groups:
        second = sum(sums.of(c).second.astype(np.float64) for c in members.tolist())
        step = aim.T @ x @ np.linalg.inv(second + 1e-6 * np.trace(second) * np.eye(x.shape[1]))
        for c in members.tolist():
            moments[c] += 9e-5 * np.linalg.norm(moments[c]) / np.linalg.norm(step) * step
    save_file({**load_file(run.sums_file), "first": moments}, run.sums_file)
    reseal(run.path)
    forged = run.sums()
    for g, members in enumerate(run.grouping("carvy").groups):
        head = head_from(module, ((c, forged.of(c)) for c in members.tolist()))  # type: ignore[arg-type]
        models.weights[g] = head.weights
    models.save(run.models_file("carvy"), {})
    vote_again(run)


def random_profiles(run: RunFolder) -> None:
    """Form groups from profiles that nobody sent."""
    profiles, saved = run.profiles(), run.grouping("carvy")
    assert profiles is not None
    assert profiles.vectors is not None
    drawn = np.random.default_rng(1).normal(size=profiles.vectors.rows.shape).astype(np.float32)
    vectors = dataclasses.replace(profiles.vectors, rows=drawn)
    save_vectors(run.profiles_file, vectors)
    form_method(
        "carvy",
        run.config().grouping,
        num_clients=12,
        seed=0,
        profiles=dataclasses.replace(profiles, vectors=vectors),
        found=saved.num_groups,
    ).save(run.grouping_file("carvy"))
    reseal(run.path)


def no_warnings(run: RunFolder) -> None:
    types = json.loads(run.types_file.read_text())
    assert types["warnings"]
    run.types_file.write_text(json.dumps(types | {"warnings": []}))
    reseal(run.path, lambda record: record["types"].update(warnings=[]))


def better_picture(run: RunFolder) -> None:
    plot({"carvy": np.full(21, 99.0)}).save(run.picture)
    reseal(run.path)


def better_choice(run: RunFolder) -> None:
    plot({"carvy": np.full(21, 99.0)}).save(run.choice_picture)
    reseal(run.path)


def copied_models(run: RunFolder) -> None:
    """Store the model of the first group for all: margins are as large as can be."""
    models = run.models("carvy")
    models.weights[:] = models.weights[0]
    models.save(run.models_file("carvy"), {})
    vote_again(run)


def attack_with(step_one: str) -> Callable[[RunFolder], None]:
    def forge(run: RunFolder) -> None:
        settings = {"step_one": step_one}
        run.add_attacks([attack_result("carvy", [99.0, 99.0], [99.0, 98.0], settings=settings)])

    return forge


FORGERIES: dict[str, tuple[str, Callable[[RunFolder], None], str, str, str]] = {
    "sums": ("kept", better_sums, "sums from the data", "mismatch", "the data's own sums"),
    "profiles": ("chosen", random_profiles, "profiles", "mismatch", "profile of client 0"),
    "warnings": ("chosen", no_warnings, "profiles", "mismatch", "other types, or warnings"),
    "warnings beside sums": ("kept", no_warnings, "profiles", "mismatch", "warnings"),
    "a picture": ("chosen", better_picture, "pictures", "not checked", "ca.png"),
    "the picture of G": ("chosen", better_choice, "pictures", "not checked", "group-count.png"),
    "an unknown step_one": ("chosen", attack_with("new"), "attacks", "mismatch", "step_one"),
    "a poisoned step_one": ("chosen", attack_with("poisoned"), "attacks", "mismatch", "CA(m)"),
}
"""The run, what is done to it, the check that says so, what it says, and in what words."""


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_does_not_pass(runs: Path, tmp_path: Path, name: str):
    kind, forge, where, state, words = FORGERIES[name]
    run = RunFolder(shutil.copytree(runs / kind, tmp_path / "copy"))
    forge(run)
    answer = carvy("verify", run.path, "--workers", 1, "--strict", "--json")
    assert answer.code == 1
    found = {check["what"]: check for check in json.loads(answer.out)["checks"]}
    assert found[where]["state"] == state
    assert words in found[where]["detail"]
    assert carvy("verify", run.path, "--workers", 1).code == (1 if state == "mismatch" else 3)


def test_identical_models_are_named(runs: Path, tmp_path: Path):
    """They may be honest where groups hold a class each, so they are no mismatch."""
    run = RunFolder(shutil.copytree(runs / "chosen", tmp_path / "copy"))
    copied_models(run)
    checks = list(audit(run, Evidence(workers=1)))
    groups = run.grouping("carvy").num_groups
    (models,) = [check for check in checks if check.what == "models of carvy"]
    assert (
        f"{groups - 1} are copies of another group's, such as group 1 of group 0" in models.detail
    )
    assert verdict(checks) == "all checked", checks
    said = carvy("verify", run.path, "--workers", 1).out
    assert "consistent with itself" in " ".join(said.split())
    assert "no proof of training" in " ".join(said.split())


@pytest.mark.parametrize("forged", ["input_shape", "num_classes"])
@pytest.mark.parametrize("kind", ["chosen", "kept"])
def test_a_small_folder_cannot_ask_for_much_memory(
    runs: Path, tmp_path: Path, kind: str, forged: str
):
    """Also without the data, which would tell that the shape is false."""
    run = RunFolder(shutil.copytree(runs / kind, tmp_path / "copy"))
    value: Any = {"input_shape": [2 * GIB], "num_classes": 4_000_000}[forged]
    settings = json.loads(run.record_file.read_text())["config"] | {"dataset": "gone.npz"}
    run.config_file.write_text(to_yaml(settings))

    def lie(record: dict[str, Any]) -> None:
        record["data"][forged] = value
        record["config"] = settings

    reseal(run.path, lie)
    answer = bounded("verify", run.path, "--workers", 1, memory=6 * GIB)
    assert answer.code == 1, answer.err
    assert "llocate" not in answer.out  # nobody tried to
    assert "MISMATCH in" in answer.out
