"""`carvy verify`: a changed byte is found, and so is a lie that was sealed again."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import typing
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import save_file

from carvyfl.core.schema import plain
from carvyfl.data.datasets import load
from carvyfl.data.partitions import PARTITIONS
from carvyfl.groups.basis import Basis
from carvyfl.groups.coins import Coins, draw_coins
from carvyfl.groups.grouping import Grouping
from carvyfl.groups.methods import GROUPINGS
from carvyfl.learning.models import MODELS
from carvyfl.profiles.methods import PROFILE_METHODS
from carvyfl.profiles.types import given_types
from carvyfl.runs.audit import audit, verdict
from carvyfl.runs.config import to_yaml
from carvyfl.runs.evidence import Evidence
from carvyfl.runs.folder import RunFolder
from carvyfl.runs.record import FORMAT, Check, RunRecord, certified_method, sealed
from carvyfl.voting.certificate import certify
from carvyfl.voting.files import load_votes, save_votes
from carvyfl.voting.group_models import ABOUT, CHECKSUM, _checksum
from carvyfl.voting.votes import votes
from support.cli import QUICK, assert_refused, assert_valid, carvy
from support.records import attack_result
from support.registries import registered
from support.sealing import reseal

METHODS = "slots,flcert"
KINDS = (
    "config.yaml",
    "run.json",
    "types.json",
    "profiles.npz",
    "ca.png",
    "groups/slots.json",
    "models/slots.safetensors",
    "votes/slots.npz",
    "groups/flcert.json",
    "models/flcert.safetensors",
    "votes/flcert.npz",
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audit")
    out = folder / "run"
    run = ("run", *QUICK, "--clients", 15, "--rounds", 1, "--methods", METHODS, "--groups", 3)
    answer = carvy(*run, "--out", out, "--store", folder / "store")
    assert answer.code == 0, answer.err
    return out


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "copy")


def failed(folder: Path, evidence: Evidence | None = None) -> Check | None:
    """Return the mismatch an audit ends with, if it does."""
    checks = list(audit(RunFolder(folder), evidence or Evidence(workers=1)))
    assert all(check.state != "mismatch" for check in checks[:-1])
    return checks[-1] if checks[-1].state == "mismatch" else None


def test_an_untouched_run_passes_and_says_what_was_not_checked(finished: Path):
    answer = carvy("verify", finished, "--workers", 1, "--json")
    assert_valid(answer.json, "verify")
    found = answer.json
    assert found["verdict"] == "all checked"
    checked = [check["what"] for check in found["checks"] if check["state"] == "ok"]
    for method in METHODS.split(","):
        for part in ("groups", "models", "votes", "certificate"):
            assert f"{part} of {method}" in checked
    left = {check["what"]: check["state"] for check in found["checks"] if check["state"] != "ok"}
    assert left == {"training": "cannot be derived"}
    for_people = carvy("verify", finished, "--workers", 1)
    assert for_people.code == 0
    assert "which is no proof of training" in " ".join(for_people.out.split())
    assert carvy("verify", finished, "--workers", 1, "--strict").code == 0


def test_every_kind_of_file_is_flipped(finished: Path):
    """If a run writes another kind of file, it belongs into KINDS."""
    written = {f.relative_to(finished).as_posix() for f in finished.rglob("*") if f.is_file()}
    assert written == set(KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_a_flipped_byte_is_found(copy: Path, name: str):
    file = copy / name
    content = file.read_bytes()
    rng = np.random.default_rng(len(content))
    for place in (0, len(content) - 1, *rng.integers(0, len(content), 30).tolist()):
        changed = bytearray(content)
        changed[place] ^= 1 << int(rng.integers(8))
        file.write_bytes(changed)
        assert failed(copy), f"byte {place} of {name}"
    file.write_bytes(content[:-1])
    assert failed(copy)
    file.write_bytes(content + b"\n")
    assert failed(copy)
    file.unlink()
    if name == "run.json":
        assert_refused(carvy("verify", copy), "not finished")
    else:
        assert failed(copy)


@pytest.fixture
def attacked(copy: Path) -> Path:
    """A run with the result of an attack."""
    entry = json.loads((copy / "run.json").read_text())["methods"]["flcert"]
    asr = (0.0, 1.0)
    result = attack_result(
        "flcert",
        [entry["ca"][0], 100.0],
        entry["ca"][:2],
        settings={"step_one": "honest"},
        asr=asr,
        asr_if_lost_votes_target=asr,
    )
    RunFolder(copy).add_attacks([result])
    return copy


def test_results_of_attacks_are_audited(attacked: Path):
    found = list(audit(RunFolder(attacked), Evidence(workers=1)))
    (line,) = [check for check in found if check.what == "attacks"]
    assert line.state == "ok"
    assert "1 results on this run" in line.detail
    assert "not part of the run" not in next(c.detail for c in found if c.what == "files")


@pytest.mark.slow
def test_a_flipped_byte_in_results_of_attacks_is_found(attacked: Path):
    file = attacked / "attacks.json"
    content = file.read_bytes()
    rng = np.random.default_rng(0)
    for place in (0, len(content) - 1, *rng.integers(0, len(content), 10).tolist()):
        changed = bytearray(content)
        changed[place] ^= 1 << int(rng.integers(8))
        file.write_bytes(changed)
        mismatch = failed(attacked)
        assert mismatch, f"byte {place}"
        assert mismatch.what == "attacks"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"accuracy": [0.0, 0.0]}, "promise"),
        ({"accuracy": [0.0, 0.0], "certified": [0.0, 0.0]}, "not this run's"),
        ({"method": "balanced"}, "no such method"),
        ({"m": [-4, 1]}, "no such numbers"),
        ({"accuracy": [500.0, 100.0]}, "no such numbers"),
        ({"promise_kept": False}, "promise"),
        ({"accuracy": [1.0]}, "damaged"),
    ],
    ids=str,
)
def test_false_results_of_attacks_sealed_again_are_found(
    attacked: Path, change: dict[str, Any], word: str
):
    file = attacked / "attacks.json"
    kept = json.loads(file.read_text())
    kept["attacks"][0] |= change
    del kept["digest"]
    file.write_text(sealed(kept))
    mismatch = failed(attacked)
    assert mismatch
    assert word in mismatch.detail


def test_results_of_another_runs_attacks_are_found(attacked: Path):
    file = attacked / "attacks.json"
    kept = json.loads(file.read_text())
    del kept["digest"]
    file.write_text(sealed(kept | {"run": "0" * 64}))
    mismatch = failed(attacked)
    assert mismatch
    assert "another run" in mismatch.detail


def test_a_mismatch_exits_with_1(copy: Path):
    with (copy / "votes" / "slots.npz").open("ab") as file:
        file.write(b"x")
    answer = carvy("verify", copy)
    assert answer.code == 1
    assert "MISMATCH in files" in answer.out
    assert "votes/slots.npz" in answer.out
    assert "votes of" not in answer.out  # it stops there
    machine = carvy("verify", copy, "--json")
    assert machine.code == 1
    found = json.loads(machine.out)
    assert_valid(found, "verify")
    assert found["verdict"] == "mismatch"


def test_files_that_are_no_part_of_the_run_are_named(copy: Path):
    (copy / "notes.txt").write_text("mine")
    assert failed(copy) is None
    assert "notes.txt" in carvy("verify", copy, "--workers", 1).out


# Lies that were sealed again: every hash fits, the claim does not follow.


def claim(method: str, name: str, value: Any) -> Callable[[Path], None]:
    def lie(folder: Path) -> None:
        reseal(folder, lambda record: record["methods"][method].update({name: value}))

    return lie


def left_out(reading: str) -> Callable[[Path], None]:
    return change_record(
        lambda record: record["methods"]["slots"]["readings"].update({reading: None})
    )


def rewrite_grouping(folder: Path, **changes: Any) -> None:
    file = RunFolder(folder).grouping_file("slots")
    plain = json.loads(file.read_text()) | changes
    file.write_text(json.dumps(plain) + "\n")
    reseal(folder)


def swap_two_clients(folder: Path) -> None:
    plain = json.loads(RunFolder(folder).grouping_file("slots").read_text())
    assignment = plain["assignment"]
    other = next(i for i, g in enumerate(assignment) if g != assignment[0])
    assignment[0], assignment[other] = assignment[other], assignment[0]
    rewrite_grouping(folder, assignment=assignment)


def other_coins(coins: Coins) -> Callable[[Path], None]:
    return lambda folder: rewrite_grouping(folder, coins=coins.to_json())


def stronger_basis(folder: Path) -> None:
    rewrite_grouping(folder, basis=Basis("trust me", 1, 1, 1).to_json())


def change_votes(folder: Path, labels_too: bool = False) -> None:
    """Vote, or label, as suits the claim, and recompute everything that follows."""
    run = RunFolder(folder)
    file = run.votes_file("slots")
    with np.load(file) as archive:
        content = dict(archive)
    if labels_too:
        content["labels"] = np.where(
            np.arange(len(content["labels"])) == 7,
            (content["labels"] + 1) % 10,
            content["labels"],
        )
    else:
        content["votes"] = np.broadcast_to(content["labels"], content["votes"].shape)
    np.savez_compressed(file, **content)
    reseal_certificate(folder)


def reseal_certificate(folder: Path) -> None:
    """Claim what follows from the votes."""
    reseal(folder)
    derived = plain(certified_method(RunFolder(folder).certificate("slots")))
    reseal(folder, lambda record: record["methods"]["slots"].update(derived))


def change_labels(folder: Path) -> None:
    change_votes(folder, labels_too=True)


def change_models(folder: Path) -> None:
    run = RunFolder(folder)
    file = run.models_file("slots")
    weights = run.models("slots").weights
    with safe_open(file, framework="pt") as archive:
        about = json.loads(archive.metadata()[ABOUT])
        tensors = {
            name: -archive.get_tensor(name)
            for name in archive.keys()  # noqa: SIM118 (an archive is no mapping)
        }
    save_file(tensors, file, {ABOUT: json.dumps(about | {CHECKSUM: _checksum(-weights)})})
    reseal(folder)


def with_bias(low: float) -> Callable[[Path], None]:
    """Let one class's logit be so low that all others are close beside it, and vote as suits."""

    def lie(folder: Path) -> None:
        run = RunFolder(folder)
        models = run.models("slots")
        models.weights[:, -1] = low  # the last bias is that of the last class
        models.save(run.models_file("slots"), {})
        change_votes(folder)

    return lie


def more_models_than_groups(folder: Path) -> None:
    run = RunFolder(folder)
    models, (ballots, labels) = run.models("slots"), run.votes("slots")
    weights, casts = models.weights[:1].repeat(19, 1), np.ones(19, dtype=bool)
    dataclasses.replace(models, weights=weights, casts=casts).save(run.models_file("slots"), {})
    save_votes(run.votes_file("slots"), votes(ballots.groups[:1].repeat(19, 0), 10), labels)
    derived = plain(certified_method(certify(*run_votes(run), run_basis(folder))))

    def change(record: dict[str, Any]) -> None:
        entry = record["methods"]["slots"]
        for name in ("rounds", "stopped", "validation_accuracy"):
            entry[name] = entry[name][:1] * 19
        entry.update(derived)

    reseal(folder, change)


def run_votes(run: RunFolder) -> tuple[Any, Any]:
    return load_votes(run.votes_file("slots"))


def run_basis(folder: Path) -> Basis:
    return Grouping.load(RunFolder(folder).grouping_file("slots")).basis


def drop_a_group(folder: Path) -> None:
    """Say of a group that votes badly that it diverged."""
    run = RunFolder(folder)
    models, (ballots, labels) = run.models("slots"), run.votes("slots")
    models.casts[0] = False
    models.save(run.models_file("slots"), {})
    silenced = ballots.groups.astype(np.int16)
    silenced[0] = -1
    save_votes(run.votes_file("slots"), votes(silenced, 10), labels)
    reseal(folder, lambda record: record["methods"]["slots"]["stopped"].__setitem__(0, "diverged"))
    reseal_certificate(folder)


def duplicate_key(folder: Path) -> None:
    file = RunFolder(folder).types_file
    file.write_text('{"num_types": 99, ' + file.read_text()[1:])
    reseal(folder)


def nested(name: str) -> Callable[[Path], None]:
    def lie(folder: Path) -> None:
        (folder / name).write_text("[" * 100_000)
        reseal(folder)

    return lie


def unreadable_configuration(folder: Path) -> None:
    (folder / "config.yaml").write_bytes(b"\xff\xfe")
    reseal(folder)


def change_record(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    return lambda folder: reseal(folder, change)


def relabel_types(folder: Path) -> None:
    file = RunFolder(folder).types_file
    plain = json.loads(file.read_text())
    other = next(i for i, kind in enumerate(plain["labels"]) if kind != plain["labels"][0])
    labels = plain["labels"]
    labels[0], labels[other] = labels[other], labels[0]
    file.write_text(json.dumps(plain))
    reseal(folder)


def jointly_found(folder: Path) -> None:
    """Say of the types that they come from all clients' messages together, or the reverse."""
    file = RunFolder(folder).types_file
    plain = json.loads(file.read_text())
    file.write_text(json.dumps(plain | {"local": not plain["local"]}))
    reseal(folder)


def more_clients(folder: Path) -> None:
    run = RunFolder(folder)
    run.config_file.write_text(run.config_file.read_text().replace("clients: 15", "clients: 16"))
    reseal(folder, lambda record: record["config"].update(clients=16))


def other_seed(folder: Path) -> None:
    run = RunFolder(folder)
    run.config_file.write_text(run.config_file.read_text().replace("seed: 0", "seed: 1"))
    reseal(folder, lambda record: record["config"].update(seed=1))


LIES: dict[str, tuple[Callable[[Path], None], str]] = {
    "higher CA": (claim("slots", "ca", [99.0, 98.0, 0.0]), "certificate of slots"),
    "higher AUC": (claim("flcert", "auc", 1e4), "certificate of flcert"),
    "another interval": (claim("flcert", "ca_low", [1.0]), "certificate of flcert"),
    "a reading left out": (left_out("honest_only"), "certificate of slots"),
    "another number of groups": (claim("slots", "num_groups", 4), "groups of slots"),
    "more models than groups": (more_models_than_groups, "groups of slots"),
    "near ties by one low logit": (with_bias(-1e7), "votes of slots"),
    "near ties by one infinite logit": (with_bias(-3e38), "votes of slots"),
    "a group dropped": (drop_a_group, "models of slots"),
    "impossible rounds": (claim("slots", "rounds", [-5, 10**30, 7]), "record"),
    "rounds that were not made": (claim("slots", "rounds", [0, 0, 0]), "models of slots"),
    "an early stop without patience": (
        claim("slots", "stopped", ["patience"] * 3),
        "models of slots",
    ),
    "a reason to stop that is none": (claim("slots", "stopped", ["done"] * 3), "record"),
    "types each client's own": (jointly_found, "types"),
    "fields of one's own": (
        change_record(lambda record: record.update(approved="by everybody")),
        "record",
    ),
    "other true types": (
        change_record(lambda record: record["types"]["true_types"].reverse()),
        "types",
    ),
    "more clients": (more_clients, "types"),
    "a stranger set aside": (claim("slots", "set_aside", {"999": "x"}), "models of slots"),
    "another data set": (
        change_record(lambda record: record["data"].update(name="imagenet")),
        "data",
    ),
    "other class names": (
        change_record(lambda record: record["data"].update(class_names=["cat"] * 10)),
        "data",
    ),
    "a baseline hidden": (
        change_record(lambda record: record["methods"].pop("flcert")),
        "configuration",
    ),
    "a field twice": (duplicate_key, "types"),
    "endless types": (nested("types.json"), "types"),
    "endless groups": (nested("groups/slots.json"), "groups of slots"),
    "a configuration that is no text": (unreadable_configuration, "configuration"),
    "no true types": (change_record(lambda record: record["types"].pop("true_types")), "record"),
    "huge inputs": (
        change_record(lambda record: record["data"].update(input_shape=[10**9, 10**9])),
        "data",
    ),
    "a federation of nobody": (
        change_record(lambda record: record.update(deployment=None)),
        "record",
    ),
    "somebody benched": (claim("slots", "benched", [3]), "groups of slots"),
    "two clients swapped": (swap_two_clients, "groups of slots"),
    "coins that are not the seed's": (
        other_coins(Coins("ab" * 32, "simulated")),
        "groups of slots",
    ),
    "coins drawn elsewhere": (other_coins(draw_coins()), "groups of slots"),
    "a stronger basis": (stronger_basis, "groups of slots"),
    "better votes": (change_votes, "votes of slots"),
    "another label": (change_labels, "votes of slots"),
    "other models": (change_models, "votes of slots"),
    "other types": (relabel_types, "profiles"),
    "another seed": (other_seed, "profiles"),
    "another configuration": (
        lambda folder: reseal(folder, lambda record: record["config"].update(samples=21)),
        "configuration",
    ),
}


def test_sealing_again_is_no_fault_by_itself(copy: Path):
    reseal(copy)
    assert failed(copy) is None


@pytest.mark.parametrize("name", LIES)
def test_a_sealed_lie_is_found(copy: Path, name: str):
    lie, where = LIES[name]
    lie(copy)
    found = failed(copy)
    assert found is not None
    assert found.what == where


def test_coins_that_were_not_committed_to_are_found(finished: Path):
    coins = Grouping.load(finished / "groups" / "slots.json").coins
    assert coins is not None
    assert failed(finished, Evidence(commitment=coins.commitment, workers=1)) is None
    found = failed(finished, Evidence(commitment=draw_coins().commitment, workers=1))
    assert found is not None
    assert found.what == "commitment"


@pytest.mark.slow
def test_every_grouping_is_derived_again(tmp_path: Path):
    methods = (
        "--methods",
        "carvy,slots,balanced,cluster,single",
        "--groups",
        3,
        "--types",
        "oracle",
    )
    run = ("run", *QUICK, "--rounds", 1, *methods, "--out", tmp_path / "run")
    assert carvy(*run, "--store", tmp_path / "store").code == 0
    found = carvy("verify", tmp_path / "run", "--workers", 1, "--json").json
    states = {check["what"]: check["state"] for check in found["checks"]}
    assert found["verdict"] == "all checked"
    assert [what for what, state in states.items() if state != "ok"] == ["training"]
    assert len([what for what in states if what.startswith("groups of")]) == 5


@pytest.mark.slow
def test_empty_groups_cast_no_vote_and_are_part_of_the_run(tmp_path: Path):
    """Five types of two clients in ten groups: some group stays empty."""
    run = ("run", *QUICK, "--rounds", 1, "--methods", "slots", "--groups", 10)
    answer = carvy(*run, "--out", tmp_path / "run", "--store", tmp_path / "store", "--json")
    assert_valid(answer.json, "run")
    entry = answer.json["methods"]["slots"]
    grouping = RunFolder(tmp_path / "run").grouping("slots")
    empty = np.flatnonzero(grouping.sizes == 0)
    assert len(empty) > 0
    assert [entry["stopped"][g] for g in empty] == ["empty"] * len(empty)
    with np.load(tmp_path / "run" / "votes" / "slots.npz") as archive:
        assert (archive["votes"][empty] == -1).all()
    assert carvy("verify", tmp_path / "run", "--workers", 1).code == 0

    run_folder = RunFolder(tmp_path / "run")
    models = run_folder.models("slots")  # let the empty groups vote as the first one does
    models.weights[empty], models.casts[empty] = models.weights[0].clone(), True
    models.save(run_folder.models_file("slots"), {})
    reseal(tmp_path / "run", lambda r: r["methods"]["slots"].update(stopped=["rounds"] * 10))
    mismatch = failed(tmp_path / "run")
    assert mismatch
    assert mismatch.what == "models of slots"
    groups = (
        "groups",
        *QUICK,
        "--method",
        "slots",
        "--groups",
        10,
        "--plot",
        tmp_path / "groups.png",
    )
    assert carvy(*groups).code == 0


def test_a_crowded_bench_is_mentioned(tmp_path: Path):
    """Five types of three clients in two groups: a third sits out."""
    methods = ("--methods", "slots,balanced", "--groups", 2)
    run = ("run", *QUICK, "--clients", 15, "--rounds", 1, *methods)
    answer = carvy(*run, "--out", tmp_path / "run", "--store", tmp_path / "store")
    assert answer.code == 0
    assert "slots: 5 of 15 clients sit out" in answer.err
    assert "balanced: " not in answer.err


@pytest.fixture(scope="module")
def own_data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run on somebody's own data, whose file is gone, and what was in it."""
    folder = tmp_path_factory.mktemp("own")
    data = load("embedded")
    arrays: dict[str, Any] = {
        "x_train": data.train.inputs[:600],
        "y_train": data.train.labels[:600],
        "x_test": data.test.inputs[:50],
        "y_test": data.test.labels[:50],
    }
    file, out = folder / "own.npz", folder / "run"
    np.savez(file, **arrays)
    run = ("run", *QUICK, "--rounds", 1, "--methods", "flcert", "--groups", 2, "--dataset", file)
    own = ("--partition", "iid", "--num-classes", 10, "--mean", 0.1, "--std", 0.9)
    answer = carvy(*run, *own, "--out", out, "--store", folder / "store")
    assert answer.code == 0, answer.err
    assert carvy("verify", out, "--workers", 1).code == 0
    file.unlink()
    return out, arrays


def verified(*words: object) -> tuple[int, str, dict[str, str]]:
    """Return the exit code, the verdict and the state of every check."""
    answer = carvy("verify", *words, "--workers", 1, "--json")
    found = json.loads(answer.out)
    assert_valid(found, "verify")
    return answer.code, found["verdict"], {c["what"]: c["state"] for c in found["checks"]}


def test_without_the_data_votes_are_not_checked(own_data: tuple[Path, dict[str, Any]]):
    out, _ = own_data
    code, found, states = verified(out)
    assert (code, found) == (3, "as far as checked")
    for what in ("data", "test data", "votes of flcert"):
        assert states[what] == "not checked"
    assert states["certificate of flcert"] == "ok"
    assert verified(out, "--strict")[:2] == (1, "as far as checked")
    for_people = carvy("verify", out, "--workers", 1)
    assert for_people.code == 3
    assert "Holds as far as checked. Not checked: data, test data, votes of" in for_people.out
    assert "--test-data" in for_people.out


def test_test_data_can_be_supplied(own_data: tuple[Path, dict[str, Any]], tmp_path: Path):
    out, arrays = own_data
    test = {"x_test": arrays["x_test"], "y_test": arrays["y_test"]}
    file = tmp_path / "test.npz"
    np.savez(file, **test)
    code, found, states = verified(out, "--test-data", file)
    assert (code, found) == (3, "as far as checked")  # the training set is still unknown
    assert [what for what, state in states.items() if state == "not checked"] == ["data"]
    assert states["votes of flcert"] == "ok"
    np.savez(file, x_test=test["x_test"][:, 0], y_test=test["y_test"])  # images without a channel
    assert verified(out, "--test-data", file)[2]["votes of flcert"] == "ok"


@pytest.mark.parametrize(
    "change",
    [
        {"y_test": lambda y: (y + 1) % 10},
        {"x_test": lambda x: x ^ (np.arange(50) == 7)[:, None, None, None]},
        {"x_test": lambda x: x[:49], "y_test": lambda y: y[:49]},
        {"x_test": lambda x: x.astype(np.float32)},
        {"x_test": lambda x: x[:, :, 1:]},
    ],
    ids=["labels", "one input", "fewer", "another type", "another shape"],
)
def test_other_test_data_is_a_mismatch(
    own_data: tuple[Path, dict[str, Any]], tmp_path: Path, change: dict[str, Any]
):
    out, arrays = own_data
    test: dict[str, Any] = {name: arrays[name] for name in ("x_test", "y_test")}
    np.savez(tmp_path / "t.npz", **test | {name: f(test[name]) for name, f in change.items()})
    code, found, states = verified(out, "--test-data", tmp_path / "t.npz")
    assert (code, found) == (1, "mismatch")
    assert states["test data"] == "mismatch"


def test_a_file_that_holds_no_test_data_is_bad_input(finished: Path, tmp_path: Path):
    assert_refused(carvy("verify", finished, "--test-data", tmp_path / "none.npz"), "none.npz")
    (tmp_path / "text.npz").write_text("text")
    assert_refused(carvy("verify", finished, "--test-data", tmp_path / "text.npz"), "npz")
    np.savez(tmp_path / "half.npz", x_test=np.zeros((2, 2)))
    assert_refused(carvy("verify", finished, "--test-data", tmp_path / "half.npz"), "y_test")


def test_other_training_data_is_a_mismatch(own_data: tuple[Path, dict[str, Any]]):
    """Also if classes, mean and standard deviation are the same."""
    out, arrays = own_data
    file = Path(RunFolder(out).config().dataset)
    swapped = arrays["x_train"][[1, 0, *range(2, 600)]]
    np.savez(file, **arrays | {"x_train": swapped})
    try:
        code, found, states = verified(out)
    finally:
        file.unlink()
    assert (code, found) == (1, "mismatch")
    assert states["data"] == "mismatch"


def test_small_files_cannot_ask_for_much_memory(copy: Path):
    """Votes of 3 groups on 10¹¹ inputs, as a header says: they are never made room for."""
    file = copy / "votes" / "slots.npz"
    with np.load(file) as archive:
        content = dict(archive)
    reseal(copy)
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in content.items():
            with archive.open(f"{name}.npy", "w") as member:
                shape = (3, 10**11) if name == "votes" else array.shape
                header = {"descr": array.dtype.str, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(member, header)
                member.write(array.tobytes())
    reseal(copy)
    found = failed(copy)
    assert found is not None
    assert found.what == "votes of slots"
    assert "not those of 3 groups" in found.detail


@pytest.mark.slow
@pytest.mark.parametrize(
    ("registry", "name", "options", "unchecked"),
    [
        (GROUPINGS, "flcert", ("--methods", "own"), ["configuration", "groups of own", "pictures"]),
        (MODELS, "mlp", ("--model", "own"), ["configuration", "profiles", "models of", "votes of"]),
        (
            PROFILE_METHODS,
            "oracle",
            ("--types", "own"),
            ["configuration", "types", "profiles", "groups of"],
        ),
    ],
    ids=["grouping", "model", "types"],
)
def test_a_plug_in_that_is_not_registered_here_is_no_mismatch(
    tmp_path: Path, registry: Any, name: str, options: tuple[str, str], unchecked: list[str]
):
    out = tmp_path / "run"
    run = ("run", *QUICK, "--rounds", 1, "--methods", "slots", "--groups", 2, *options)
    own = dataclasses.replace(registry[name], name="own")
    if registry is PROFILE_METHODS:
        own = dataclasses.replace(own, read_types=lambda known: given_types(known.truth, "own"))
    with registered(registry, own):
        made = carvy(*run, "--out", out, "--store", tmp_path / "store")
        assert made.code == 0, made.err
        assert verified(out)[:2] == (0, "all checked")
    code, found, states = verified(out)
    assert (code, found) == (3, "as far as checked")
    left = [what for what, state in states.items() if state == "not checked"]
    assert len(left) == len(unchecked)
    assert all(what.startswith(words) for what, words in zip(left, unchecked, strict=True))


def test_a_partition_of_somebody_elses_is_no_mismatch(tmp_path: Path):
    out = tmp_path / "run"
    run = ("run", *QUICK, "--rounds", 1, "--methods", "flcert", "--groups", 2)
    own = dataclasses.replace(PARTITIONS["iid"], name="own")
    with registered(PARTITIONS, own):
        made = carvy(*run, "--partition", "own", "--out", out, "--store", tmp_path / "store")
        assert made.code == 0, made.err
        assert verdict(list(audit(RunFolder(out), Evidence()))) == "all checked"
    states = {check.what: check for check in audit(RunFolder(out), Evidence())}
    assert states["configuration"].state == "not checked"
    assert "'own' is not registered" in states["configuration"].detail
    for what in ("groups", "models", "votes", "certificate"):
        assert states[f"{what} of flcert"].state == "ok"
    assert verdict(list(states.values())) == "as far as checked"


# Every field of the record.

VERIFY = Path(__file__).parents[2] / "docs" / "howto" / "verify.md"
FIELDS = dict(
    re.findall(r"^\| `(.+?)` \| (derived|validated|as recorded) \|", VERIFY.read_text(), re.M)
)
"""How the documentation says that an audit checks each field."""


def fields(kind: Any, prefix: str = "") -> Iterator[str]:
    """Yield the fields of a record by their paths, down to those that FIELDS has as a whole."""
    for name, hint in typing.get_type_hints(kind).items():
        path = prefix + name
        classes = [part for part in parts(hint) if is_record(part)]
        if path in FIELDS or not classes:
            yield path
        for part in () if path in FIELDS else classes:
            yield from fields(part, f"{path}.*." if "dict" in str(hint) else f"{path}.")


def parts(hint: Any) -> Iterator[Any]:
    yield hint
    for part in typing.get_args(hint):
        yield from parts(part)


def is_record(kind: Any) -> bool:
    return isinstance(kind, type) and (
        dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct)
    )


def test_every_field_of_the_record_is_in_the_table():
    """A new field is derived, validated, or listed as unchecked."""
    assert sorted(set(fields(RunRecord))) == sorted(FIELDS)


def changed(value: Any) -> Any:
    """Return another value of the same kind."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return f"{value[:-1]}{'0' if value[-1:] != '0' else '1'}"
        case list():
            return [changed(value[0]), *value[1:]] if value else [0]
        case dict():
            name = next(iter(value), None)
            return {"0": "because"} if name is None else value | {name: changed(value[name])}
        case _:
            return 3


IMPOSSIBLE = {
    "config.partition": "iid",
    "config.partition_options": {"classes_per_type": 1},
    "config.samples": 0,
    "config.validation": 0,
    "config.validation_share": 1.5,
    "config.projection": 0,
    "config.features": "smell",
    "config.ridge": 0,
    "config.aim": "most",
    "config.least_accuracy": 101,
    "config.epsilon": 0,
    "config.training": {"rounds": 2},
    "methods.*.rounds": [0, 0, 0],
    "methods.*.stopped": ["empty", "rounds", "rounds"],
    "methods.*.validation_accuracy": [[1.5], [0.5], [0.5]],
    "methods.*.set_aside": {"99": "no answer"},
    "seconds": -1,
    "environment.cores": 0,
    "environment.engine": "flower",
    "environment.precision": "fp8",
    "environment.flower": "1.41.0",
}
"""For every field that is validated, a value that cannot be."""

OTHER = {
    "config.dataset": "other.npz",
    "config.data_dir": "a folder",
    "config.model": "compact-cnn",
    "environment.gpu": "a device",
}
"""Other values of fields for which none can be made up by changing the one there is."""

SIMULATED = [name for name in FIELDS if not name.startswith(("deployment.", "group_count."))]


@pytest.mark.parametrize("field", SIMULATED)
def test_every_field_is_checked_as_the_table_says(
    copy: Path, field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The forger changes config.yaml, too, and seals everything again."""
    how = FIELDS[field]
    monkeypatch.chdir(tmp_path)
    images, labels = np.zeros((4, 28, 28), np.uint8), np.arange(4)
    np.savez("other.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    if field in ("files", "digest", "format"):  # no forger could seal these again
        file = copy / "run.json"
        record = json.loads(file.read_text())
        if field == "format":
            reseal(copy, lambda record: record.update(format=FORMAT + 1))
        else:
            file.write_text(json.dumps(record | {field: changed(record[field])}, indent=1))
        assert failed(copy)
        return

    def lie(record: dict[str, Any]) -> None:
        *above, name = field.replace("*", "slots").split(".")
        for key in above:
            record = record[key]
        if how == "validated":
            new = IMPOSSIBLE[field]
            record[name] = record[name] | new if isinstance(new, dict) else new
        else:
            record[name] = OTHER.get(field) or changed(record.get(name))

    reseal(copy, lie)
    config = json.loads((copy / "run.json").read_text())["config"]
    (copy / "config.yaml").write_text(to_yaml(config))
    reseal(copy)
    assert (failed(copy) is None) == (how == "as recorded")


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose number of groups was chosen."""
    folder = tmp_path_factory.mktemp("chosen")
    run = ("run", "--learner", "one-shot", "--features", "none", "--workers", 1)
    answer = carvy(*run, "--clients", 12, "--samples", 20, "--out", folder / "run")
    assert answer.code == 0, answer.err
    return folder / "run"


def test_a_chosen_number_of_groups_is_found_to_be_the_best(chosen: Path):
    checks = {check.what: check for check in audit(RunFolder(chosen), Evidence(workers=1))}
    assert {check.state for check in checks.values()} == {"ok", "cannot be derived"}
    groups = RunFolder(chosen).grouping("carvy").num_groups
    assert checks["number of groups"].detail.startswith(f"{groups} is the best")


def more_area(count: dict[str, Any]) -> None:
    """Claim more of a candidate that was not chosen."""
    others = [each for each in count["candidates"] if each["groups"] != count["groups"]]
    others[0]["auc"] = 1e6


def other_choice(count: dict[str, Any]) -> None:
    others = [each for each in count["candidates"] if each["groups"] != count["groups"]]
    count["groups"] = count["balanced"]["groups"] = others[0]["groups"]


FALSE_CHOICES: dict[str, Callable[[dict[str, Any]], object]] = {
    "aim": lambda count: count.update(aim="m60"),
    "least_accuracy": lambda count: count.update(least_accuracy=50),
    "groups": other_choice,
    "candidates": more_area,
    "a candidate less": lambda count: count["candidates"].pop(),
    "balanced": lambda count: count["balanced"].update(groups=1),
}


def test_every_part_of_the_choice_is_lied_about():
    names = {name.partition(".")[2] for name in FIELDS if name.startswith("group_count.")}
    assert names <= set(FALSE_CHOICES)


@pytest.mark.parametrize("name", FALSE_CHOICES)
def test_a_false_choice_of_the_number_of_groups_is_found(chosen: Path, tmp_path: Path, name: str):
    copy = shutil.copytree(chosen, tmp_path / "copy")
    reseal(copy, lambda record: FALSE_CHOICES[name](record["group_count"]))
    found = failed(copy)
    assert found is not None
    assert found.what == "number of groups"


def test_a_choice_that_is_left_out_or_made_up_is_found(
    chosen: Path, finished: Path, tmp_path: Path
):
    without = shutil.copytree(chosen, tmp_path / "without")
    count = json.loads((chosen / "run.json").read_text())["group_count"]
    reseal(without, lambda record: record.pop("group_count"))
    made_up = shutil.copytree(finished, tmp_path / "made up")
    shutil.copy(chosen / "group-count.png", made_up)
    reseal(made_up, lambda record: record.update(group_count=count))
    for folder in (without, made_up):
        found = failed(folder)
        assert found is not None
        assert found.what == "number of groups"


@pytest.mark.parametrize("method", ["wrap", "seats"])
def test_a_run_with_a_grouping_that_is_gone_is_refused(copy: Path, method: str):
    def rename(record: dict[str, Any]) -> None:
        record["methods"][method] = record["methods"].pop("slots")

    reseal(copy, rename)
    assert_refused(carvy("show", copy), f"grouping '{method}', which is gone")
    found = failed(copy)
    assert found is not None
    assert found.what == "record"
    assert "version that wrote it" in found.detail


def test_settings_of_earlier_versions_are_read_where_nothing_has_changed(copy: Path):
    def former(rule: str) -> None:
        reseal(copy, lambda record: record["config"].update(group_rule=rule, literal=False))
        config = json.loads(RunFolder(copy).record_file.read_text())["config"]
        RunFolder(copy).config_file.write_text(to_yaml(config))
        reseal(copy)

    former("largest")
    assert failed(copy) is None
    former("mean")
    assert_refused(carvy("show", copy), "group_rule to 'mean', which is gone")
    again = ("run", "--config", copy / "config.yaml", "--out", copy / "again")
    assert_refused(carvy(*again), "group_rule to 'mean', which is gone")


def test_there_must_be_a_run(tmp_path: Path):
    assert_refused(carvy("verify", tmp_path / "none"), "does not exist")


@pytest.mark.slow
def test_a_run_that_is_repeated_keeps_its_signature_and_its_attacks(finished: Path, copy: Path):
    store = ("--workers", 1, "--store", finished.parent / "store")
    assert carvy("attack", copy, "-m", "0-1", "--method", "slots", *store).code == 0
    RunFolder(copy).signature_file.write_text("of this record")
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    (copy / "ca.png").write_bytes(b"damaged")
    again = ("run", "--config", copy / "config.yaml", "--out", copy, *store)
    assert carvy(*again).code == 0
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before
    assert carvy("verify", copy).code == 0


@pytest.mark.slow
def test_another_result_takes_the_place_of_the_record_and_its_signature(finished: Path, copy: Path):
    claim("slots", "auc", 1e4)(copy)
    RunFolder(copy).signature_file.write_text("of what was there")
    again = ("run", "--config", copy / "config.yaml", "--out", copy, "--workers", 1)
    assert carvy(*again, "--store", finished.parent / "store").code == 0
    assert not RunFolder(copy).signature_file.exists()
    assert carvy("verify", copy).code == 0
