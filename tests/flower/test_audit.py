"""The audit of a real federation's folder; its groups and models are made up here."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from carvyfl.core.schema import plain
from carvyfl.data import clients
from carvyfl.data.datasets import DataSet
from carvyfl.flower import server
from carvyfl.flower.server import Plan
from carvyfl.groups.basis import Basis
from carvyfl.groups.hashing import named_ids
from carvyfl.groups.methods import Beforehand, form_groups
from carvyfl.learning.job import GroupResult
from carvyfl.learning.models import build_model, flat_weights
from carvyfl.learning.recipe import Recipe
from carvyfl.pipeline import Setup
from carvyfl.runs.audit import audit, verdict
from carvyfl.runs.evidence import Evidence
from carvyfl.runs.execute import Prepared
from carvyfl.runs.flower_settings import Settings
from carvyfl.runs.folder import RunFolder
from carvyfl.runs.record import Readings, certified_method
from carvyfl.runs.resume import claim
from carvyfl.runs.save import drawn, save
from carvyfl.voting.certificate import certify
from carvyfl.voting.files import save_votes
from carvyfl.voting.votes import votes
from support.cli import carvy
from support.sealing import reseal

KEYED = Settings(keys="keys", groups=3, model="mlp", num_classes=4, training=Recipe(rounds=1))
NAMES = KEYED.numbered(f"key {number}" for number in range(9))
TEST: dict[str, Any] = {
    "x_test": np.random.default_rng(0).random((20, 8), np.float32),
    "y_test": np.arange(20) % 4,
}
TRUST = Basis("trust me", 1, 1, 1)

Write = Callable[[Path, dict[str, Any]], RunFolder]
"""Place, traffic → the folder of the federation that has just been finished."""


def prepared(settings: Settings) -> Prepared:
    pair = TEST["x_test"], TEST["y_test"]
    test = clients.as_samples(pair, num_classes=4, where="test")
    data = DataSet("ours", test.take([]), test, 4, 0.0, 1.0, tuple("abcd"))
    nobody, module = clients.Federation((), 4, 0.0, 1.0), build_model("mlp", (8,), 4, 0)
    return Prepared(data, Setup(nobody, module, settings.training, settings.seed))


@pytest.fixture(scope="module", params=["flcert", "balanced"])
def write(request: pytest.FixtureRequest) -> Write:
    settings = dataclasses.replace(KEYED, method=request.param)
    module = build_model("mlp", (8,), 4, 0)
    known = Beforehand(ids=named_ids(NAMES, settings.seed))
    grouping = form_groups(request.param, num_clients=9, seed=0, num_groups=3, beforehand=known)
    lost = grouping.groups[2].tolist()
    results = [
        GroupResult(flat_weights(build_model("mlp", (8,), 4, g)), (0.5,), "rounds")
        for g in range(2)
    ]
    gone = dict.fromkeys(lost, "no answer 3 times in a row")
    results.append(GroupResult(flat_weights(module), (), "empty", gone))
    plan = Plan(NAMES, (10,) * 9, None, grouping)

    def written(out: Path, traffic: dict[str, Any]) -> RunFolder:
        with claim(out, plain(settings)) as run:
            began = time.monotonic()
            save(server.finish(settings, prepared(settings), plan, results, traffic, began), run)
        return run

    return written


@pytest.fixture(params=["open", "deadline"])
def fate(request: pytest.FixtureRequest, tmp_path: Path) -> RunFolder:
    """A federation of which nothing is certified, though its five groups agree."""
    keys, stopped = ("", "rounds") if request.param == "open" else ("keys", "deadline")
    settings = dataclasses.replace(KEYED, method="balanced", groups=5, keys=keys)
    names = NAMES if keys else settings.numbered(f"partition {i:06d}" for i in range(9))
    module = build_model("mlp", (8,), 4, 0)
    grouping = form_groups("balanced", num_clients=9, seed=0, num_groups=5)
    fates = ["rounds", stopped, "rounds", "rounds", "rounds"]
    results = [GroupResult(flat_weights(module), (0.5,), why) for why in fates]
    plan = Plan(names, (10,) * 9, None, grouping)
    with claim(tmp_path / "run", plain(settings)) as run:
        began = time.monotonic()
        save(server.finish(settings, prepared(settings), plan, results, {}, began), run)
    return run


def test_nothing_is_certified_of_an_open_federation_nor_where_the_deadline_stopped_groups(
    fate: RunFolder, test_data: Path, tmp_path: Path
):
    """No command has a number for any m > 0: the groups' votes alone would give some."""
    (method,) = fate.record().methods
    assert certify(*fate.votes(method)).radius.max() > 0  # as if the groups were all that counted
    entry = fate.record().methods[method]
    assert entry.readings == Readings(None, None, None)
    assert (len(entry.ca), entry.auc) == (1, 0)
    assert fate.certificate(method).radius.max() == 0
    assert not len(fate.to_frame())
    page, inputs = tmp_path / "page.html", tmp_path / "inputs.npy"
    np.save(inputs, TEST["x_test"])
    carvy("report", fate.path, "--out", page)
    said = {
        "show": carvy("show", fate.path).out,
        "certify": carvy("certify", fate.votes_file(method)).out,
        "report": re.sub(r"<(style|script).*?</\1>", "", page.read_text(), flags=re.S),
    }
    for name, text in said.items():
        assert re.search(r"[nN]othing\s(is\s)?certified", text), (name, text)
        for words in (r"AUC \d", "withstands m", "Row m:", r"m\s=\s1", r"^\s*1 "):
            assert not re.search(words, text, re.M), (name, words, text)
    shown, reading = drawn({method: fate.certificate(method)})
    assert ([len(each.ca()) for each in shown.values()], reading) == ([1], "nothing certified")
    rows = carvy("predict", fate.path, inputs, "--workers", 1, "--json").json["predictions"]
    assert {radius for row in rows for radius in row["radius"].values()} == {None}
    answer = carvy("certify", fate.votes_file(method), "--collective")
    assert (answer.code, "nothing is certified" in answer.err) == (2, True)
    assert carvy("verify", fate.path, "--test-data", test_data).code == 0
    rewritten(lambda grouping: grouping.update(basis=TRUST.to_json()))(fate)
    assert mismatch(fate) == "groups"


@pytest.fixture(scope="module")
def finished(write: Write, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("finished") / "run", {}).path


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> RunFolder:
    return RunFolder(shutil.copytree(finished, tmp_path / "run"))


def test_a_server_that_is_started_again_keeps_the_record_and_its_signature(
    write: Write, tmp_path: Path
):
    folder = write(tmp_path, {"training": {"messages": 12}})
    folder.signature_file.write_text("signed")
    before = folder.record_file.read_bytes()
    write(tmp_path, {"training": {}})  # there was nothing left to send
    assert folder.record_file.read_bytes() == before
    assert folder.signature_file.read_text() == "signed"


def mismatch(folder: RunFolder, test_data: Path | None = None) -> str | None:
    """Return where an audit ends, if it finds something."""
    last = list(audit(folder, Evidence(test_data=test_data, workers=1)))[-1]
    return last.what.split(" of ")[0] if last.state == "mismatch" else None


def test_an_untouched_folder_passes(folder: RunFolder, test_data: Path):
    """All is checked with its test data."""
    found = list(audit(folder, Evidence(workers=1)))
    (method,) = folder.record().methods
    assert {check.what: check.state for check in found if check.state != "ok"} == {
        "test data": "not checked",
        f"votes of {method}": "not checked",
        "data": "cannot be derived",
        "training": "cannot be derived",
    }
    assert verdict(found) == "as far as checked"
    (entry,) = folder.record().methods.values()
    assert "1 of 3 groups were lost" in entry.certificate.because
    assert verdict(list(audit(folder, Evidence(test_data=test_data, workers=1)))) == "all checked"
    answer = carvy("verify", folder.path, "--test-data", test_data, "--strict")
    assert answer.code == 0, answer.out


@pytest.fixture
def test_data(tmp_path: Path) -> Path:
    np.savez(tmp_path / "test.npz", x_test=TEST["x_test"], y_test=TEST["y_test"])
    return tmp_path / "test.npz"


def test_resealed_votes_are_found_with_the_test_data(folder: RunFolder, test_data: Path):
    """Without the test data they are not, and the verdict says that votes were not checked."""
    (method,) = folder.record().methods
    ballots, labels = folder.votes(method)
    assert labels is not None
    better = np.where(ballots.groups < 0, -1, labels)
    save_votes(folder.votes_file(method), votes(better, 4), labels)
    reseal(folder.path)
    derived = plain(certified_method(folder.certificate(method)))
    reseal(folder.path, lambda record: record["methods"][method].update(derived))
    assert mismatch(folder, test_data) == "votes"
    assert verdict(list(audit(folder, Evidence(workers=1)))) == "as far as checked"


def rewritten(change: Callable[[dict[str, Any]], object]) -> Callable[[RunFolder], None]:
    def lie(folder: RunFolder) -> None:
        (method,) = folder.record().methods
        file = folder.grouping_file(method)
        content = json.loads(file.read_text())
        change(content)
        file.write_text(json.dumps(content) + "\n")
        reseal(folder.path)

    return lie


def resealed(section: str, **values: Any) -> Callable[[RunFolder], None]:
    return lambda folder: reseal(folder.path, lambda record: record[section].update(values))


def other_clients(change: Callable[[list[str]], object]) -> Callable[[RunFolder], None]:
    return lambda folder: reseal(
        folder.path, lambda record: change(record["deployment"]["clients"])
    )


def deployed(**values: Any) -> Callable[[RunFolder], None]:
    return resealed("deployment", **values)


LIES: dict[str, tuple[Callable[[RunFolder], None], str]] = {
    "one large group": (rewritten(lambda g: g.update(assignment=[0] * 7 + [1, 2])), "groups"),
    "a reason of its own": (rewritten(lambda g: g.update(basis=TRUST.to_json())), "groups"),
    "anybody could join": (deployed(authenticated=False), "federation"),
    "other clients": (deployed(clients=[f"node {i}" for i in range(9)]), "federation"),
    "fewer clients": (other_clients(lambda clients: clients.pop(0)), "federation"),
    "two clients swapped": (other_clients(lambda clients: clients.reverse()), "federation"),
    "a client twice": (deployed(clients=[NAMES[0], NAMES[0], *NAMES[2:]]), "federation"),
    "another identity": (deployed(identity="passports"), "federation"),
    "fewer samples": (deployed(samples=[10] * 8), "configuration"),
    "other samples": (deployed(samples=[500] * 9), "configuration"),
    "less than no samples": (deployed(samples=[-500] * 9), "record"),
    "bytes without messages": (deployed(traffic={"training": {"up": 5}}), "federation"),
    "traffic of another kind": (deployed(traffic={"gossip": {"up": 5}}), "record"),
    "traffic below zero": (deployed(traffic={"types": {"messages": -5}}), "record"),
    "another mean": (resealed("data", mean=0.5), "federation"),
    "a training set": (resealed("data", train_sha256="0" * 64), "federation"),
    "more class names": (resealed("data", class_names=list("abcde")), "federation"),
    "an engine that knows no clients": (resealed("environment", engine="loop"), "record"),
    "no version of Flower": (
        lambda folder: reseal(folder.path, lambda record: record["environment"].pop("flower")),
        "record",
    ),
    "another seed": (resealed("config", seed=7), "configuration"),
    "no settings": (
        lambda folder: reseal(folder.path, lambda record: record.update(deployment={})),
        "record",
    ),
}


@pytest.mark.parametrize("name", LIES)
def test_a_sealed_lie_is_found(folder: RunFolder, name: str):
    lie, where = LIES[name]
    lie(folder)
    assert mismatch(folder) == where
