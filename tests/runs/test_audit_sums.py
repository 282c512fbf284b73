"""`carvy verify` of one-shot runs that kept their clients' sums: training itself is audited."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from carvyfl.core.errors import CarvyError
from carvyfl.learning.learners import RIDGE
from carvyfl.learning.store import GroupStore
from carvyfl.runs.audit import audit
from carvyfl.runs.config import RunConfig, load_data, split_data
from carvyfl.runs.evidence import Evidence
from carvyfl.runs.folder import RunFolder
from carvyfl.runs.record import Check
from support.cli import Answer, assert_refused, assert_valid, carvy
from support.sealing import reseal

CLASSES, WIDTH, CLIENTS = 4, 6, 8
SUMS = "sums.safetensors"


@dataclasses.dataclass(frozen=True)
class Runs:
    """A folder with a data set and runs on it."""

    folder: Path

    @property
    def data(self) -> Path:
        return self.folder / "data.npz"

    def run(self, name: str, *more: object, store: str = "store") -> Answer:
        return carvy(
            *("run", "--dataset", self.data, "--learner", "one-shot", "--features", "none"),
            *("--clients", CLIENTS, "--samples", 26, "--groups", 2, "--engine", "loop"),
            *("--out", self.folder / name, "--store", self.folder / store, *more),
        )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Runs on four classes of points around centres; ``kept`` keeps sums, ``plain`` does not."""
    found = Runs(tmp_path_factory.mktemp("one-shot"))
    rng = np.random.default_rng(5)
    arrays: dict[str, Any] = {}
    for part, size in (("train", 600), ("test", 80)):
        labels = np.arange(size) % CLASSES
        noise = rng.normal(scale=0.6, size=(size, WIDTH))
        arrays[f"x_{part}"] = (np.eye(CLASSES, WIDTH)[labels] + noise).astype(np.float32)
        arrays[f"y_{part}"] = labels
    np.savez(found.data, **arrays)
    for name, *more in (("plain",), ("kept", "--keep-sums"), ("other", "--keep-sums", "--seed", 1)):
        answer = found.run(str(name), *more)
        assert answer.code == 0, answer.err
    return found


@pytest.fixture
def copy(runs: Runs, tmp_path: Path) -> Path:
    return shutil.copytree(runs.folder / "kept", tmp_path / "copy")


@pytest.fixture
def no_data(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data set is not at hand."""

    def gone(*_: object) -> None:
        raise CarvyError("no such file")

    monkeypatch.setattr("carvyfl.runs.evidence.load_data", gone)


def audited(folder: Path) -> dict[str, Check]:
    return {check.what: check for check in audit(RunFolder(folder), Evidence(workers=1))}


def mismatch(folder: Path) -> Check | None:
    *before, last = audited(folder).values()
    assert all(check.state != "mismatch" for check in before)
    return last if last.state == "mismatch" else None


def test_training_is_derived_from_the_data_to_the_models(runs: Runs):
    answer = carvy("verify", runs.folder / "kept", "--json")
    assert_valid(answer.json, "verify")
    assert answer.json["verdict"] == "all checked"
    found = {check["what"]: check for check in answer.json["checks"]}
    for what in ("sums", "sums from the data", "training of carvy", "training of flcert"):
        assert found[what]["state"] == "ok", what
    assert "the types follow from the counts" in found["sums"]["detail"]
    assert "training" not in found
    assert found["profiles"]["state"] == "ok"
    for_people = " ".join(carvy("verify", runs.folder / "kept").out.split())
    assert "training of carvy: ok. 2 models follow from their members' sums" in for_people
    assert "All checked: the models follow from the data." in for_people


def test_without_sums_the_audit_says_that_training_was_not_repeated(runs: Runs):
    found = audited(runs.folder / "plain")
    assert not (runs.folder / "plain" / SUMS).exists()
    assert not {"sums", "sums from the data", "training of carvy"} & found.keys()
    assert found["training"].state == "cannot be derived"
    assert "training was not repeated" in found["training"].detail
    with pytest.raises(CarvyError, match="kept no sums"):
        RunFolder(runs.folder / "plain").sums()


def test_keeping_sums_changes_no_model(runs: Runs):
    """The plain run filled the store, and the other one trained on its own."""
    for method in ("carvy", "flcert"):
        names = [
            runs.folder / run / "models" / f"{method}.safetensors" for run in ("plain", "kept")
        ]
        assert names[0].read_bytes() == names[1].read_bytes()


def test_no_head_comes_from_the_store(runs: Runs, monkeypatch: pytest.MonkeyPatch):
    """It may be made of sums that another machine rounded otherwise than those kept."""

    def found(*_: object) -> None:
        raise AssertionError("looked into the store")

    monkeypatch.setattr(GroupStore, "get", found)
    assert runs.run("again", "--keep-sums").code == 0


def test_the_file_holds_the_sums_of_the_clients_samples(runs: Runs):
    config = RunFolder(runs.folder / "kept").config()
    federation = split_data(config, load_data(config))
    found = load_file(runs.folder / "kept" / SUMS)
    for k, client in enumerate(federation.clients):
        x = (client.train.inputs.astype(np.float64) - federation.mean) / federation.std
        for c in range(CLASSES):
            own = x[client.train.labels == c]
            assert found["counts"][k, c] == len(own)
            np.testing.assert_allclose(found["first"][k, c], own.sum(axis=0), atol=1e-4)
        matrix = np.sum([np.outer(row, row) for row in x], axis=0)
        triangle = [matrix[i, j] for i in range(WIDTH) for j in range(i, WIDTH)]
        np.testing.assert_allclose(found["second"][k], triangle, atol=1e-4)


def test_only_one_shot_learning_has_sums_to_keep(tmp_path: Path):
    answer = carvy("run", "--keep-sums", "--learner", "scaffold", "--out", tmp_path / "run")
    assert_refused(answer, "'scaffold'", "leave out --keep-sums", "--learner one-shot")
    with pytest.raises(CarvyError, match="send no sums to keep"):
        RunConfig(keep_sums=True)


def test_groups_without_members_are_derived_too(runs: Runs):
    """Types of four clients in six groups: some group stays empty."""
    assert runs.run("sparse", "--keep-sums", "--groups", 6, "--methods", "slots").code == 0
    folder = RunFolder(runs.folder / "sparse")
    assert "empty" in folder.record().methods["slots"].stopped
    assert mismatch(folder.path) is None


@pytest.mark.parametrize("types", ["class-means", "class-counts"])
def test_types_with_a_warning_of_their_vectors_are_derived(runs: Runs, types: str):
    """Of i.i.d. clients the recorded types say that they differ by chance."""
    run = runs.run(f"alike {types}", "--keep-sums", "--partition", "iid", "--types", types)
    assert run.code == 0
    folder = RunFolder(runs.folder / f"alike {types}")
    found = folder.types()
    assert found is not None
    assert any("chance of sampling" in text for text in found.warnings)
    assert mismatch(folder.path) is None


# Lies that were sealed again: every hash fits, the claim does not follow.


def change_sums(name: str, change: Callable[[np.ndarray], object]) -> Callable[[Path], None]:
    def lie(folder: Path) -> None:
        found = load_file(folder / SUMS)
        array = found[name].copy()
        change(array)
        save_file({**found, name: array}, folder / SUMS)
        reseal(folder)

    return lie


def set_at(place: Any, value: float) -> Callable[[np.ndarray], object]:
    return lambda array: array.__setitem__(place, value)


def no_longer_counted(counts: np.ndarray) -> None:
    held = np.flatnonzero(counts[0])
    counts[0, held[0]] = 0


def one_more(counts: np.ndarray) -> None:
    held = np.flatnonzero(counts[0])
    counts[0, held[0]] += 1


def a_little_more(array: np.ndarray) -> None:
    array[0, 0] *= 1.01


def change_model(change: Callable[[torch.Tensor], object]) -> Callable[[Path], None]:
    def lie(folder: Path) -> None:
        run = RunFolder(folder)
        models = run.models("carvy")
        change(models.weights)
        models.save(run.models_file("carvy"), {})
        reseal(folder)

    return lie


def all_weights_larger(weights: torch.Tensor) -> None:
    """Change no vote: weights and biases of a head grow by a tenth of a percent."""
    weights[0] *= 1.001


def one_bias_larger(weights: torch.Tensor) -> None:
    weights[1, -1] += 1e-4


def another_ridge(folder: Path) -> None:
    file = folder / "config.yaml"
    file.write_text(file.read_text().replace(f"ridge: {RIDGE}", "ridge: 0.29"))
    reseal(folder, lambda record: record["config"].update(ridge=0.29))


def set_aside(folder: Path) -> None:
    reseal(folder, lambda record: record["methods"]["carvy"].update(set_aside={"0": "no reason"}))


def double(folder: Path) -> None:
    found = load_file(folder / SUMS)
    save_file(found | {"first": found["first"].astype(np.float64)}, folder / SUMS)
    reseal(folder)


def clients_left_out(folder: Path) -> None:
    save_file({name: own[1:] for name, own in load_file(folder / SUMS).items()}, folder / SUMS)
    reseal(folder)


def truncated(folder: Path) -> None:
    (folder / SUMS).write_bytes((folder / SUMS).read_bytes()[:-4])
    reseal(folder)


def missing(folder: Path) -> None:
    (folder / SUMS).unlink()
    reseal(folder)


DATA, HEADS = "sums from the data", "training of carvy"
LIES: dict[str, tuple[Callable[[Path], None], str, str, str]] = {
    "a first moment": (
        change_sums("first", a_little_more),
        DATA,
        HEADS,
        "of client 0 are not those of its data",
    ),
    "a second moment": (
        change_sums("second", a_little_more),
        DATA,
        HEADS,
        "of client 0 are not those of its data",
    ),
    "a count": (change_sums("counts", one_more), DATA, HEADS, "class counts of client 0"),
    "no number": (
        change_sums("second", set_at((0, 0), np.nan)),
        DATA,
        HEADS,
        "of client 0 are not those of its data",
    ),
    "infinity": (
        change_sums("first", set_at((0, 0, 0), np.inf)),
        DATA,
        HEADS,
        "of client 0 are not those of its data",
    ),
    "a class less": (change_sums("counts", no_longer_counted), "sums", "sums", "types.json"),
    "negative counts": (change_sums("counts", set_at((0, 0), -5)), "sums", "sums", "types.json"),
    "another model": (
        change_model(all_weights_larger),
        HEADS,
        HEADS,
        "model of group 0 does not follow from its members' sums",
    ),
    "another bias": (
        change_model(one_bias_larger),
        HEADS,
        HEADS,
        "model of group 1 does not follow from its members' sums",
    ),
    "another ridge": (another_ridge, HEADS, HEADS, "model of group 0"),
    "a member set aside": (set_aside, HEADS, HEADS, "other clients were set aside"),
    "another precision": (double, "sums", "sums", "does not hold the sums of 8 clients"),
    "too few clients": (clients_left_out, "sums", "sums", "does not hold the sums of 8 clients"),
    "truncated": (truncated, "sums", "sums", "cannot read the sums"),
    "missing": (missing, "files", "files", f"{SUMS} is missing"),
}
"""What is done, where it is found with the data at hand and without, and what is said then."""


@pytest.mark.parametrize("name", LIES)
def test_a_sealed_lie_is_found(copy: Path, name: str):
    lie, where, _, words = LIES[name]
    lie(copy)
    found = mismatch(copy)
    assert found is not None
    assert found.what == where
    assert words in found.detail
    assert "\n" not in found.detail


@pytest.mark.usefixtures("no_data")
@pytest.mark.parametrize("name", LIES)
def test_a_sealed_lie_is_found_without_the_data(copy: Path, name: str):
    lie, _, where, _ = LIES[name]
    lie(copy)
    found = mismatch(copy)
    assert found is not None
    assert found.what == where


@pytest.mark.usefixtures("no_data")
def test_without_the_data_the_sums_are_taken_as_they_are(runs: Runs):
    found = audited(runs.folder / "kept")
    assert found["sums from the data"].state == "not checked"
    assert found["training of carvy"].state == "ok"
    assert carvy("verify", runs.folder / "kept").code == 3


@pytest.mark.parametrize("at_hand", [True, False])
def test_sums_of_another_run_are_found(
    runs: Runs, copy: Path, at_hand: bool, request: pytest.FixtureRequest
):
    if not at_hand:
        request.getfixturevalue("no_data")
    shutil.copy(runs.folder / "other" / SUMS, copy / SUMS)
    assert "was changed" in str(mismatch(copy))
    reseal(copy)
    found = mismatch(copy)
    assert found is not None
    assert found.what in ({"sums", DATA} if at_hand else {"sums", HEADS})


def test_a_flipped_byte_is_found(copy: Path):
    content = (copy / SUMS).read_bytes()
    rng = np.random.default_rng(1)
    for place in (0, len(content) - 1, *rng.integers(0, len(content), 10).tolist()):
        changed = bytearray(content)
        changed[place] ^= 1 << int(rng.integers(8))
        (copy / SUMS).write_bytes(changed)
        found = mismatch(copy)
        assert found is not None
        assert found.what == "files"
        assert f"{SUMS} was changed" in found.detail
    answer = carvy("verify", copy)
    assert answer.code == 1
    assert "MISMATCH in files" in answer.out


def test_rounding_of_the_last_bit_is_no_mismatch(copy: Path):
    """Another library may solve the same equations in another order."""
    change_model(lambda w: w.copy_(torch.nextafter(w, torch.zeros_like(w))))(copy)
    assert mismatch(copy) is None
    assert "sums, up to rounding" in audited(copy)["training of carvy"].detail
    assert "sums, bit for bit" in audited(copy)["training of flcert"].detail


def test_rounding_of_sums_is_no_mismatch(copy: Path):
    """Another processor rounds features otherwise; heads from the data's own sums vote alike."""
    change_sums("second", lambda a: np.nextafter(a, 0, out=a))(copy)
    assert mismatch(copy) is None
    assert "follow from its data, up to rounding" in audited(copy)["sums from the data"].detail


def test_the_bias_of_a_class_that_nobody_holds_is_a_constant(runs: Runs):
    """It is so low that no share of it may differ: the class would be voted for."""
    assert runs.run("apart", "--keep-sums", "--groups", 8, "--methods", "balanced").code == 0
    run = RunFolder(runs.folder / "apart")
    assert mismatch(run.path) is None
    models = run.models("balanced")
    lowest = int(models.weights[0].argmin())
    models.weights[0, lowest] *= 0.9
    models.save(run.models_file("balanced"), {})
    reseal(run.path)
    found = mismatch(run.path)
    assert found is not None
    assert found.what == "training of balanced"


def test_the_same_command_restores_a_damaged_file(runs: Runs):
    assert runs.run("damaged", "--keep-sums").code == 0
    folder = runs.folder / "damaged"
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    (folder / SUMS).write_bytes(b"damaged")
    with pytest.raises(CarvyError, match="run the same 'carvy run' again to restore it"):
        RunFolder(folder).sums()
    assert runs.run("damaged", "--keep-sums").code == 0
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_the_configuration_says_whether_sums_are_kept(copy: Path):
    """A forger who leaves the file out says so in a record that is another run's."""
    settings = json.loads((copy / "run.json").read_text())["config"]
    assert settings["keep_sums"] is True
    file = copy / "config.yaml"
    file.write_text(file.read_text().replace("keep_sums: true", "keep_sums: false"))
    reseal(copy, lambda record: record["config"].update(keep_sums=False))
    found = audited(copy)
    assert f"not part of the run: {SUMS}" in found["files"].detail
    assert found["training"].state == "cannot be derived"
