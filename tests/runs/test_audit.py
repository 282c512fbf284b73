"""`carvy verify`: a changed byte is found, and so is a forgery that was sealed again."""

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
from unittest import mock

import msgspec
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from carvyfl.core.errors import CarvyError
from carvyfl.core.schema import plain
from carvyfl.core.yaml_text import to_yaml
from carvyfl.data.datasets import load
from carvyfl.data.partitions import PARTITIONS
from carvyfl.groups.basis import Basis
from carvyfl.groups.coins import Coins, draw_coins
from carvyfl.groups.methods import GROUPINGS, form_groups
from carvyfl.learning.models import MODELS
from carvyfl.learning.one_shot.training import head_from
from carvyfl.learning.private.map import make_map, plain_map
from carvyfl.learning.private.model import group_head
from carvyfl.pipeline import asked_groups
from carvyfl.plots.pictures import plot
from carvyfl.profiles.methods import PROFILE_METHODS
from carvyfl.profiles.types import given_types
from carvyfl.profiles.vectors import save_vectors
from carvyfl.runs.audit import audit, verdict
from carvyfl.runs.config import load_voted_data
from carvyfl.runs.evidence import Evidence
from carvyfl.runs.folder import RunFolder
from carvyfl.runs.record import Check, RunRecord, certified_method, sealed
from carvyfl.runs.save import draw_pictures
from carvyfl.voting.files import save_votes
from carvyfl.voting.group_models import ABOUT, CHECKSUM, _checksum
from carvyfl.voting.votes import votes
from support.bounded import GIB, bounded
from support.cli import QUICK, assert_refused, assert_valid, carvy
from support.points import runs_on_points
from support.private import runs_on_corners
from support.records import attack_result
from support.registries import registered
from support.sealing import reseal

ONE_SHOT = ("--learner", "one-shot", "--features", "none", "--workers", 1, "--methods", "carvy")
BY_CHANCE = (*ONE_SHOT, "--partition", "iid", "--clients", 12, "--samples", 40, "--ridge", 1e-6)
RUNS: dict[str, tuple[object, ...]] = {
    "rounds": (*QUICK, "--clients", 15, "--rounds", 1, "--methods", "slots,flcert", "--groups", 3),
    "chosen": BY_CHANCE,
    "kept": (*BY_CHANCE, "--groups", 3, "--keep-sums"),
}
"""Runs that are forged: in rounds; with a G that was chosen, of clients that differ by chance; with
the sums of such clients. Those on points have few features: ``points`` keeps the sums."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audit")
    for name, words in RUNS.items():
        made = carvy("run", *words, "--out", folder / name, "--store", folder / "store")
        assert made.code == 0, made.err
    runs_on_points(folder, points=("--keep-sums",), other=("--keep-sums", "--seed", 1))
    runs_on_corners(folder, private=())
    return folder


@pytest.fixture
def copied(runs, tmp_path):
    return lambda kind: RunFolder(shutil.copytree(runs / kind, tmp_path / kind))


@pytest.fixture
def copy(copied):
    return copied("rounds")


def checks(run: RunFolder, **evidence: Any) -> dict[str, Check]:
    return {check.what: check for check in audit(run, Evidence(workers=1, **evidence))}


def mismatch(run: RunFolder, **evidence: Any) -> str | None:
    """Return the claim with whose mismatch an audit ends, if it does."""
    *before, last = checks(run, **evidence).values()
    assert all(check.state != "mismatch" for check in before)
    return last.what if last.state == "mismatch" else None


def verified(*words: object) -> tuple[int, str, dict[str, str]]:
    """Return the exit code, the verdict and the state of every check."""
    answer = carvy("verify", *words, "--workers", 1, "--json")
    said = json.loads(answer.out)
    assert_valid(said, "verify")
    return answer.code, said["verdict"], {check["what"]: check["state"] for check in said["checks"]}


def configure(run: RunFolder, **settings: Any) -> None:
    """Change settings in the record, write it to config.yaml, and seal again."""
    reseal(run.path, lambda record: record["config"].update(settings))
    run.config_file.write_text(to_yaml(json.loads(run.record_file.read_text())["config"]))
    reseal(run.path)


# What is said of runs that nobody touched.


def test_an_untouched_run_passes_and_says_what_was_not_checked(runs):
    code, said, states = verified(runs / "rounds")
    assert (code, said) == (0, "all checked")
    of_methods = {f"{part} of" for part in ("groups", "models", "votes", "certificate")}
    for method in ("slots", "flcert"):
        assert {states[f"{part} {method}"] for part in of_methods} == {"ok"}
    assert states.pop("training") == "cannot be derived"
    assert set(states.values()) == {"ok"}
    for_people = carvy("verify", runs / "rounds", "--workers", 1, "--strict")
    assert for_people.code == 0
    assert "which is no proof of training" in " ".join(for_people.out.split())


def test_training_is_derived_from_the_data_to_the_models(runs):
    code, said, states = verified(runs / "points")
    assert (code, said) == (0, "all checked")
    for what in ("sums", "sums from the data", "training of carvy", "training of flcert"):
        assert states[what] == "ok", what
    assert "training" not in states
    for_people = " ".join(carvy("verify", runs / "points").out.split())
    assert "the types follow from the counts" in for_people
    assert "training of carvy: ok. 2 models follow from their members' sums" in for_people
    assert "All checked: the models follow from the data." in for_people


def test_a_choice_is_found_the_best_and_without_sums_training_is_not_repeated(runs):
    run = RunFolder(runs / "chosen")
    said = checks(run)
    assert {check.state for check in said.values()} == {"ok", "cannot be derived"}
    groups = run.grouping("carvy").num_groups
    assert said["number of groups"].detail.startswith(f"{groups} is the best")
    assert said["training"].state == "cannot be derived"
    assert "training was not repeated" in said["training"].detail


def test_sealing_again_is_no_fault_by_itself_and_files_beside_the_run_are_named(copy):
    (copy.path / "notes.txt").write_text("mine")
    reseal(copy.path)
    assert mismatch(copy) is None
    assert "not part of the run: notes.txt" in checks(copy)["files"].detail


def test_coins_that_were_not_committed_to_are_found(runs):
    run = RunFolder(runs / "rounds")
    coins = run.grouping("slots").coins
    assert coins is not None
    assert mismatch(run, commitment=coins.commitment) is None
    assert mismatch(run, commitment=draw_coins().commitment) == "commitment"


def test_a_mismatch_exits_with_1(copy):
    with copy.votes_file("slots").open("ab") as file:
        file.write(b"x")
    answer = carvy("verify", copy.path)
    assert answer.code == 1
    assert "MISMATCH in files" in answer.out
    assert "votes/slots.npz" in answer.out
    assert "votes of" not in answer.out  # it stops there
    assert verified(copy.path)[:2] == (1, "mismatch")
    assert_refused(carvy("verify", copy.path / "none"), "does not exist")


@pytest.mark.parametrize("method", ["wrap", "seats"])
def test_a_run_with_a_grouping_that_is_gone_is_refused(copy, method):
    reseal(copy.path, lambda r: r["methods"].update({method: r["methods"].pop("slots")}))
    assert_refused(carvy("show", copy.path), f"grouping '{method}', which is gone")
    assert mismatch(copy) == "record"
    assert "version that wrote it" in checks(copy)["record"].detail


def test_settings_of_earlier_versions_are_read_where_nothing_has_changed(copy):
    configure(copy, group_rule="largest", literal=False)
    assert mismatch(copy) is None
    configure(copy, group_rule="mean", literal=False)
    again = ("run", "--config", copy.config_file, "--out", copy.path / "again")
    for words in (("show", copy.path), again):
        assert_refused(carvy(*words), "group_rule to 'mean', which is gone")


@pytest.mark.slow
def test_every_grouping_is_derived_again(tmp_path):
    methods = ("--methods", "carvy,slots,balanced,cluster,single", "--groups", 3)
    run = ("run", *QUICK, "--rounds", 1, *methods, "--types", "oracle", "--out", tmp_path / "run")
    assert carvy(*run, "--store", tmp_path / "store").code == 0
    code, said, states = verified(tmp_path / "run")
    assert (code, said) == (0, "all checked")
    assert [what for what, state in states.items() if state != "ok"] == ["training"]
    assert len([what for what in states if what.startswith("groups of")]) == 5


@pytest.mark.slow
def test_empty_groups_cast_no_vote_and_are_part_of_the_run(tmp_path):
    """Five types of two clients in ten groups: some group stays empty."""
    run = RunFolder(tmp_path / "run")
    words = (*QUICK, "--rounds", 1, "--methods", "slots", "--groups", 10, "--out", run.path)
    assert carvy("run", *words, "--store", tmp_path / "store").code == 0
    empty = np.flatnonzero(run.grouping("slots").sizes == 0)
    assert len(empty) > 0
    entry = run.record().methods["slots"]
    assert [entry.stopped[g] for g in empty] == ["empty"] * len(empty)
    assert (run.votes("slots")[0].groups[empty] == -1).all()
    assert mismatch(run) is None
    models = run.models("slots")  # let the empty groups vote as the first one does
    models.weights[empty], models.casts[empty] = models.weights[0].clone(), True
    models.save(run.models_file("slots"), {})
    reseal(run.path, lambda r: r["methods"]["slots"].update(stopped=["rounds"] * 10))
    assert mismatch(run) == "models of slots"


@pytest.mark.parametrize(
    "more",
    [
        ("--groups", 6, "--methods", "slots"),  # types of four clients: some group stays empty
        ("--partition", "iid", "--types", "class-means"),  # types with a warning of their vectors
        ("--partition", "iid", "--types", "class-counts"),
    ],
    ids=str,
)
def test_other_runs_with_sums_are_derived_too(tmp_path, more):
    runs_on_points(tmp_path, other=("--keep-sums", *more))
    run = RunFolder(tmp_path / "other")
    types, methods = run.types(), run.record().methods
    assert types is not None
    if "slots" in methods:
        assert "empty" in methods["slots"].stopped
    else:
        assert any("chance of sampling" in text for text in types.warnings)
    assert mismatch(run) is None


# Changed bytes, in files of every kind that a run writes.

WRITTEN = {"config.yaml", "run.json", "types.json", "profiles.npz", "ca.png"} | {
    name.format(method)
    for name in ("groups/{}.json", "models/{}.safetensors", "votes/{}.npz")
    for method in ("slots", "flcert")
}
FILES = [("rounds", name) for name in sorted(WRITTEN)]
FILES += [("points", "sums.safetensors"), ("chosen", "group-count.png")]
FILES += [("private", "messages.safetensors"), ("private", "map.safetensors")]


def flipped(content: bytes, times: int) -> Iterator[bytes]:
    rng = np.random.default_rng(len(content))
    for place in (0, len(content) - 1, *rng.integers(0, len(content), times).tolist()):
        changed = bytearray(content)
        changed[place] ^= 1 << int(rng.integers(8))
        yield bytes(changed)


@pytest.mark.parametrize(("kind", "name"), FILES)
def test_a_changed_byte_is_found(copied, kind, name):
    run = copied(kind)
    if kind == "rounds":
        written = {path.relative_to(run.path).as_posix() for path in run.path.rglob("*.*")}
        assert written == WRITTEN
    file = run.path / name
    content = file.read_bytes()
    for changed in (*flipped(content, 30), content[:-1], content + b"\n"):
        file.write_bytes(changed)
        assert mismatch(run) == "files" or name == "run.json"
        assert mismatch(run)
    assert name == "run.json" or name in checks(run)["files"].detail
    file.unlink()
    if name == "run.json":
        assert_refused(carvy("verify", run.path), "not finished")
    else:
        assert mismatch(run)


# Forgeries: every hash fits (what is forged is sealed again), the claim does not follow.

Forgery = Callable[[RunFolder], object]


def first(run: RunFolder) -> str:
    return next(iter(run.record().methods))


def record(change: Callable[[dict[str, Any]], object]) -> Forgery:
    return lambda run: reseal(run.path, change)


def part(*path: str, **changes: Any) -> Forgery:
    """Change fields of some part of the record."""

    def change(record: dict[str, Any]) -> None:
        for name in path:
            record = record[name]
        record.update(changes)

    return lambda run: reseal(run.path, change)


def entry(method: str, **changes: Any) -> Forgery:
    return part("methods", method, **changes)


def setting(**settings: Any) -> Forgery:
    return lambda run: configure(run, **settings)


def file(name: str, change: Callable[[bytes], bytes]) -> Forgery:
    return lambda run: (run.path / name).write_bytes(change((run.path / name).read_bytes()))


def json_file(name: str, change: Callable[[dict[str, Any]], Any]) -> Forgery:
    def changed(content: bytes) -> bytes:
        value = json.loads(content)
        change(value)
        return json.dumps(value).encode() + (b"\n" if content.endswith(b"\n") else b"")

    return file(name, changed)


def groups(**changes: Any) -> Forgery:
    return json_file("groups/slots.json", lambda content: content.update(changes))


def swap(values: list[int]) -> None:
    other = next(i for i, value in enumerate(values) if value != values[0])
    values[0], values[other] = values[other], values[0]


def set_at(place: Any, value: Any) -> Callable[[Any], object]:
    return lambda array: array.__setitem__(place, value)


def tensors(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Forgery:
    """Change the tensors of the sums."""
    return lambda run: save_file(change(load_file(run.sums_file)), run.sums_file)


def sums(name: str, change: Callable[[Any], object]) -> Forgery:
    def changed(content: dict[str, Any]) -> dict[str, Any]:
        change(array := content[name].copy())
        return {**content, name: array}

    return tensors(changed)


def held_count(more: int) -> Callable[[Any], object]:
    """Change how many samples client 0 has of a class that it holds; there are no fewer than 0."""

    def change(counts: Any) -> None:
        held = counts[0].argmax()
        counts[0, held] = max(0, counts[0, held] + more)

    return change


def claim_what_follows(run: RunFolder) -> None:
    """Record, and draw, the certificate that follows from the votes."""
    reseal(run.path)
    entry(first(run), **plain(certified_method(run.certificate(first(run)))))(run)
    draw_pictures(run, {m: run.certificate(m) for m in run.record().methods}, run.record())


def vote_again(run: RunFolder) -> None:
    """Let the stored models of the first method vote, and claim what follows."""
    reseal(run.path)
    test = load_voted_data(run.config()).test
    save_votes(run.votes_file(first(run)), run.models(first(run)).votes(test.inputs), test.labels)
    claim_what_follows(run)


def ballots(change: Callable[[Any, Any], tuple[Any, Any]]) -> Forgery:
    """Change the votes of slots and the labels, and claim what follows."""

    def forge(run: RunFolder) -> None:
        cast, labels = run.votes("slots")
        changed, labels = change(cast.groups.astype(np.int16), labels)
        save_votes(run.votes_file("slots"), votes(changed, 10), labels)
        claim_what_follows(run)

    return forge


BETTER = ballots(lambda cast, labels: (np.broadcast_to(labels, cast.shape), labels))


def weights(change: Callable[[torch.Tensor], object]) -> Forgery:
    def forge(run: RunFolder) -> None:
        models = run.models(first(run))
        change(models.weights)
        models.save(run.models_file(first(run)), {})
        reseal(run.path)

    return forge


def one_low_logit(low: float) -> Forgery:
    """Let a logit be so low that all others are close beside it, and vote for the labels."""

    def forge(run: RunFolder) -> None:
        weights(set_at((slice(None), -1), low))(run)  # the last bias is that of the last class
        BETTER(run)

    return forge


def negated_models(run: RunFolder) -> None:
    """Change the tensors without the help of the package; the checksum fits."""
    path, checksum = run.models_file("slots"), _checksum(-run.models("slots").weights)
    with safe_open(path, framework="np") as archive:
        about = json.loads(archive.metadata()[ABOUT])
    negated = {name: -tensor for name, tensor in load_file(path).items()}
    save_file(negated, path, {ABOUT: json.dumps(about | {CHECKSUM: checksum})})


def more_models_than_groups(run: RunFolder) -> None:
    models, (cast, labels) = run.models("slots"), run.votes("slots")
    many, casts = models.weights[:1].repeat(19, 1), np.ones(19, dtype=bool)
    dataclasses.replace(models, weights=many, casts=casts).save(run.models_file("slots"), {})
    save_votes(run.votes_file("slots"), votes(cast.groups[:1].repeat(19, 0), 10), labels)
    lists = ("rounds", "stopped", "validation_accuracy")
    known = run.record().methods["slots"]
    entry("slots", **plain({name: getattr(known, name)[:1] * 19 for name in lists}))(run)


def drop_a_group(run: RunFolder) -> None:
    """Say of a group that votes badly that it diverged."""
    models = run.models("slots")
    models.casts[0] = False
    models.save(run.models_file("slots"), {})
    stopped = ["diverged", *run.record().methods["slots"].stopped[1:]]
    entry("slots", stopped=stopped)(run)
    ballots(lambda cast, labels: (set_at(0, -1)(cast) or cast, labels))(run)


def endless_votes(run: RunFolder) -> None:
    """Claim votes on 10¹¹ inputs in a header: room for them must never be made."""
    path = run.votes_file("slots")
    with np.load(path) as archive:
        content = dict(archive)
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in content.items():
            with archive.open(f"{name}.npy", "w") as member:
                shape = (3, 10**11) if name == "votes" else array.shape
                header = {"descr": array.dtype.str, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(member, header)
                member.write(array.tobytes())


def choice(change: Callable[[dict[str, Any]], object]) -> Forgery:
    return record(lambda record: change(record["group_count"]))


def not_chosen(count: dict[str, Any]) -> dict[str, Any]:
    return next(each for each in count["candidates"] if each["groups"] != count["groups"])


def other_choice(count: dict[str, Any]) -> None:
    count["groups"] = count["balanced"]["groups"] = not_chosen(count)["groups"]


def made_up_choice(run: RunFolder) -> None:
    one = {"groups": 3, "auc": 9.0, "accuracy": 60.0, "largest_m": 1}
    about = {"aim": "auc", "least_accuracy": 0.0, "groups": 3, "candidates": [one]}
    plot({"carvy": np.zeros(2)}).save(run.choice_picture)
    reseal(run.path, lambda record: record.update(group_count={**about, "balanced": one}))


def better_sums(run: RunFolder) -> None:
    """Move all first moments by less than a ten-thousandth, for the labels of the test set."""
    test, models = load_voted_data(run.config()).test, run.models("carvy")
    module: Any = models.module
    x = module.features.of(test.inputs).astype(np.float64)
    aim = np.eye(10)[test.labels] - 0.1
    stored, moments = run.sums(), load_file(run.sums_file)["first"].copy()
    members = [clients.tolist() for clients in run.grouping("carvy").groups]
    for group in members:
        second = sum(stored.of(c).second.astype(np.float64) for c in group)
        step = aim.T @ x @ np.linalg.inv(second + 1e-6 * np.trace(second) * np.eye(x.shape[1]))
        for c in group:
            moments[c] += 9e-5 * np.linalg.norm(moments[c]) / np.linalg.norm(step) * step
    tensors(lambda content: {**content, "first": moments})(run)
    reseal(run.path)
    forged = run.sums()
    for g, group in enumerate(members):
        models.weights[g] = head_from(module, ((c, forged.of(c)) for c in group)).weights
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
    forged = dataclasses.replace(profiles, vectors=vectors)
    asked = asked_groups("carvy", run.config(), forged, saved.num_groups)
    form_groups("carvy", num_clients=12, seed=0, profiles=forged, **asked).save(
        run.grouping_file("carvy")
    )
    reseal(run.path)


def no_warnings(run: RunFolder) -> None:
    assert json.loads(run.types_file.read_text())["warnings"]
    json_file("types.json", lambda types: types.update(warnings=[]))(run)
    part("types", warnings=[])(run)


def picture(name: str) -> Forgery:
    return lambda run: plot({"carvy": np.full(21, 99.0)}).save(run.path / name)


def attack(seal: dict[str, Any] | None = None, **changes: Any) -> Forgery:
    """Add the result of an attack on the second method that held, and change it."""

    def forge(run: RunFolder) -> None:
        reseal(run.path)
        ca = run.record().methods["flcert"].ca
        run.add_attacks([attack_result("flcert", [ca[0], 100.0], ca[:2], settings={})])
        content = json.loads(run.attacks_file.read_text())
        del content["digest"]
        content["attacks"][0].update(changes)
        run.attacks_file.write_text(sealed(content | (seal or {})))

    return forge


def poisoned(run: RunFolder) -> None:
    reseal(run.path)
    settings = {"step_one": "poisoned"}  # groups and CA(m) are others for m > 0 only
    run.add_attacks([attack_result("carvy", [99.0, 99.0], [99.0, 98.0], settings=settings)])


def messages(change: Callable[[Any], object], **about: Any) -> Forgery:
    """Change the units of messages, or what is said beside them."""

    def forge(run: RunFolder) -> None:
        path = run.messages_file
        with safe_open(path, framework="np") as archive:
            said = json.loads(archive.metadata()["about"])
        change(units := load_file(path)["units"].copy())
        save_file({"units": units}, path, {"about": json.dumps({**said, **about})})

    return forge


def heads_again(run: RunFolder) -> None:
    """Derive all heads from the messages that are there now, and claim what follows."""
    reseal(run.path)
    for method in run.record().methods:
        models, sent = run.models(method), run.messages()
        for g, members in enumerate(run.grouping(method).groups):
            again = group_head(models.module, members.tolist(), sent.of_clients(members))
            models.weights[g] = again.weights
        models.save(run.models_file(method), {})
    vote_again(run)


def others_profiles(run: RunFolder) -> None:
    """Exchange what two clients sent, and derive all heads again."""
    messages(lambda units: units.__setitem__([0, 7], units[[7, 0]]))(run)
    heads_again(run)


def another_map(run: RunFolder) -> None:
    """Use a map that was made of the clients' own inputs, and say that it was made of others."""
    module: Any = run.module()
    inputs = load(run.config().dataset, num_classes=4).train.inputs
    made = make_map(module.features, inputs.shape[1:], 4, inputs)
    dataclasses.replace(made, origin=module.map.origin).save(run.path / "map.safetensors")
    forged = dataclasses.replace(made, origin=module.map.origin)
    reseal(run.path, lambda record: record["privacy"].update(map=forged.digest))
    heads_again(run)


HEADS, DATA = "training of carvy", "sums from the data"
CERTIFICATE, GROUPS = "certificate of slots", "groups of slots"
MODELS_OF, VOTES = "models of slots", "votes of slots"
NO_COINS = Coins("ab" * 32, "simulated").to_json()
ENDLESS = b"[" * 100_000
READING = ("methods", "slots", "readings")
TABLE: dict[tuple[str, str, str], dict[str, Forgery]] = {
    ("rounds", "record", ""): {
        "impossible rounds": entry("slots", rounds=[-5, 10**30, 7]),
        "a reason to stop that is none": entry("slots", stopped=["done"] * 3),
        "fields of one's own": part(approved="by everybody"),
        "no true types": record(lambda r: r["types"].pop("true_types")),
        "a federation of nobody": part(deployment=None),
    },
    ("rounds", "configuration", ""): {
        "a baseline hidden": record(lambda r: r["methods"].pop("flcert")),
        "a configuration that is no text": file("config.yaml", lambda _: b"\xff\xfe"),
        "another configuration": part("config", samples=21),
    },
    ("rounds", "types", ""): {
        "each client's own": json_file("types.json", lambda t: t.update(local=not t["local"])),
        "other true types": record(lambda r: r["types"]["true_types"].reverse()),
        "more clients": setting(clients=16),
        "a field twice": file("types.json", lambda text: b'{"num_types": 99, ' + text[1:]),
        "endless types": file("types.json", lambda _: ENDLESS),
    },
    ("rounds", "data", ""): {
        "another data set": part("data", name="imagenet"),
        "other class names": part("data", class_names=["cat"] * 10),
        "huge inputs": part("data", input_shape=[10**9, 10**9]),
    },
    ("rounds", "profiles", ""): {
        "other types": json_file("types.json", lambda types: swap(types["labels"])),
        "another seed": setting(seed=1),
    },
    ("rounds", "number of groups", ""): {"a choice made up": made_up_choice},
    ("rounds", GROUPS, ""): {
        "another number of groups": entry("slots", num_groups=4),
        "endless groups": file("groups/slots.json", lambda _: ENDLESS),
        "somebody benched": entry("slots", benched=[3]),
        "swapped": json_file("groups/slots.json", lambda saved: swap(saved["assignment"])),
        "coins that are not the seed's": groups(coins=NO_COINS),
        "coins drawn elsewhere": groups(coins=draw_coins().to_json()),
        "a stronger basis": groups(basis=Basis("trust me", 1, 1, 1).to_json()),
    },
    ("rounds", MODELS_OF, ""): {
        "a group dropped": drop_a_group,
        "rounds that were not made": entry("slots", rounds=[0, 0, 0]),
        "an early stop without patience": entry("slots", stopped=["patience"] * 3),
        "a stranger set aside": entry("slots", set_aside={"999": "x"}),
    },
    ("rounds", MODELS_OF, "does not hold 3 models"): {"more models": more_models_than_groups},
    ("rounds", VOTES, ""): {
        "near ties by one low logit": one_low_logit(-1e7),
        "near ties by one infinite logit": one_low_logit(-3e38),
        "better votes": BETTER,
        "another label": ballots(lambda cast, y: (cast, (y + (np.arange(len(y)) == 7)) % 10)),
        "other models": negated_models,
    },
    ("rounds", VOTES, "not those of 3 groups"): {"endless votes": endless_votes},
    ("rounds", CERTIFICATE, ""): {
        "higher CA": entry("slots", ca=[99.0, 98.0, 0.0]),
        "a reading left out": part(*READING, honest_only=None),
    },
    ("rounds", "certificate of flcert", ""): {
        "higher AUC": entry("flcert", auc=1e4),
        "another interval": entry("flcert", ca_low=[1.0]),
    },
    ("rounds", "attacks", "promise"): {
        "accuracy below CA(m)": attack(accuracy=[0.0, 0.0]),
        "a promise broken": attack(promise_kept=False),
    },
    ("rounds", "attacks", "no such numbers"): {
        "less than nobody": attack(m=[-4, 1]),
        "more than all": attack(accuracy=[500.0, 100.0]),
    },
    ("rounds", "attacks", "not this run's"): {
        "a lower CA(m)": attack(accuracy=[0.0, 0.0], certified=[0.0, 0.0])
    },
    ("rounds", "attacks", "no such method"): {"another method": attack(method="balanced")},
    ("rounds", "attacks", "damaged"): {"half a result": attack(accuracy=[1.0])},
    ("rounds", "attacks", "another run"): {"another run": attack({"run": "0" * 64})},
    ("rounds", "attacks", "step_one"): {"unknown": attack(settings={"step_one": "new"})},
    ("chosen", "attacks", "CA(m)"): {"a poisoned step_one": poisoned},
    ("chosen", "number of groups", ""): {
        "a choice left out": record(lambda r: r.pop("group_count")),
        "group_count.aim": part("group_count", aim="m60"),
        "group_count.least_accuracy": part("group_count", least_accuracy=50),
        "group_count.groups": choice(other_choice),
        "group_count.candidates": choice(lambda count: not_chosen(count).update(auc=1e6)),
        "a candidate less": choice(lambda count: count["candidates"].pop()),
        "group_count.balanced": part("group_count", "balanced", groups=1),
        "group_count.made_up": part("group_count", made_up=True),
    },
    ("chosen", "profiles", "profile of client 0"): {"profiles": random_profiles},
    ("chosen", "profiles", "other types, or warnings"): {"warnings": no_warnings},
    ("kept", "profiles", "warnings"): {"warnings beside sums": no_warnings},
    ("kept", DATA, "the data's own sums"): {"better sums": better_sums},
    ("chosen", "pictures", "ca.png"): {"a picture": picture("ca.png")},
    ("chosen", "pictures", "group-count.png"): {"that of G": picture("group-count.png")},
    ("points", DATA, "of client 0 are not those of its data"): {
        "a first moment": sums("first", lambda array: array[0, 0].__imul__(1.01)),
        "a second moment": sums("second", lambda array: array[:1, 0].__imul__(1.01)),
        "no number": sums("second", set_at((0, 0), np.nan)),
        "infinity": sums("first", set_at((0, 0, 0), np.inf)),
    },
    ("points", DATA, "class counts of client 0"): {"a count": sums("counts", held_count(1))},
    ("points", "sums", "types.json"): {
        "a class less": sums("counts", held_count(-1000)),
        "negative counts": sums("counts", set_at((0, 0), -5)),
    },
    ("points", "sums", "does not hold the sums of 8 clients"): {
        "float64": tensors(lambda all_: all_ | {"first": all_["first"].astype(np.float64)}),
        "too few": tensors(lambda all_: {name: array[1:] for name, array in all_.items()}),
    },
    ("points", "sums", "cannot read the sums"): {
        "truncated": file("sums.safetensors", lambda content: content[:-4])
    },
    ("points", "files", "sums.safetensors is missing"): {
        "missing": lambda run: run.sums_file.unlink()
    },
    ("points", HEADS, "model of group 0"): {
        "another model": weights(lambda w: w[0].mul_(1.001)),  # which changes no vote
        "another ridge": setting(ridge=0.29),
    },
    ("points", HEADS, "model of group 1 does not follow from its members' sums"): {
        "another bias": weights(lambda w: w[1, -1].add_(1e-4))
    },
    ("points", HEADS, "other clients were set aside"): {
        "a member set aside": entry("carvy", set_aside={"0": "no reason"})
    },
    ("private", "map", "was not made of public inputs"): {"a map of clients' inputs": another_map},
    ("private", "map", ""): {
        "a map of nothing": lambda run: plain_map(64, 64).save(run.path / "map.safetensors"),
        "half a map": file("map.safetensors", lambda content: content[:-4]),
        "other public inputs": setting(public=None),
    },
    ("private", "files", "map.safetensors is missing"): {
        "no map": lambda run: (run.path / "map.safetensors").unlink()
    },
    ("private", "files", "messages.safetensors is missing"): {
        "no messages": lambda run: run.messages_file.unlink()
    },
    ("private", "messages", "the messages"): {
        "a smaller ε": setting(epsilon=1.0),
        "another δ": setting(delta=1e-6),
        "less noise": messages(lambda units: None, sigma=0.01),
        "somebody's set aside": messages(lambda units: None, set_aside=[[3, "no reason"]]),
        "half of them": file("messages.safetensors", lambda content: content[:-4]),
    },
    ("private", "messages", "privacy: "): {
        "privacy.epsilon": part("privacy", epsilon=0.5),
        "privacy.delta": part("privacy", delta=1e-9),
        "privacy.map": part("privacy", map="0" * 64),
        "privacy.made_of": part("privacy", made_of="synthetic images, seed 20260729"),
        "privacy.message_bytes": part("privacy", message_bytes=10),
        "privacy.guarantee": part("privacy", guarantee="Nobody sees anything."),
    },
    ("private", "messages", "nothing of privacy"): {
        "no privacy": record(lambda r: r.pop("privacy"))
    },
    ("private", "profiles", ""): {"another client's": others_profiles},
    ("private", "heads of carvy", "of group 0 does not follow from its members' messages"): {
        "a direction that no profile has": messages(lambda units: units[:, :, 40].__iadd__(40_000)),
        "another head": weights(lambda w: w[0].mul_(1.001)),
    },
    ("private", "heads of carvy", "other clients were set aside"): {
        "a client set aside": entry("carvy", set_aside={"0": "no reason"})
    },
}
"""Forgeries by the run that is forged, the check that says so, and its words."""

FORGERIES = {name: (*key, forge) for key, row in TABLE.items() for name, forge in row.items()}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_found(copied, name):
    kind, where, words, forge = FORGERIES[name]
    run = copied(kind)
    forge(run)
    reseal(run.path)
    said = checks(run)
    # A picture that another version of matplotlib may have drawn is not checked.
    assert said[where].state == ("not checked" if where == "pictures" else "mismatch"), said
    assert words in said[where].detail
    assert "\n" not in said[where].detail
    assert verdict(list(said.values())) != "all checked"
    assert "mismatch" not in [check.state for check in said.values()][:-1]
    if kind == "points":  # it is found without the data, too
        with without_data():
            assert mismatch(run) == (HEADS if where == DATA else where)


def without_data() -> Any:
    gone = CarvyError("no such file")
    return mock.patch("carvyfl.runs.evidence.load_data", side_effect=gone)


def test_sums_of_another_run_are_found(runs, copied):
    run = copied("points")
    shutil.copy(runs / "other" / run.sums_file.name, run.sums_file)
    reseal(run.path)
    assert mismatch(run) in {"sums", DATA}
    with without_data():
        assert mismatch(run) in {"sums", HEADS}


def test_results_of_attacks_are_audited(copy):
    attack()(copy)
    said = checks(copy)
    assert said["attacks"].state == "ok"
    assert "1 results on this run" in said["attacks"].detail
    assert "not part of the run" not in said["files"].detail
    for changed in flipped(copy.attacks_file.read_bytes(), 10):
        copy.attacks_file.write_bytes(changed)
        assert mismatch(copy) == "attacks"


def test_copied_models_are_named(copied):
    """They may be honest where groups hold a class each, so they are no mismatch."""
    run = copied("chosen")
    weights(lambda w: w.copy_(w[0].expand_as(w).clone()))(run)
    vote_again(run)
    reseal(run.path)
    said, others = checks(run), run.grouping("carvy").num_groups - 1
    words = f"{others} are copies of another group's, such as group 1 of group 0"
    assert words in said["models of carvy"].detail
    assert verdict(list(said.values())) == "all checked"
    answer = " ".join(carvy("verify", run.path, "--workers", 1).out.split())
    assert "consistent with itself" in answer
    assert "no proof of training" in answer


@pytest.mark.parametrize("lie", [{"input_shape": [2 * GIB]}, {"num_classes": 4_000_000}], ids=str)
@pytest.mark.parametrize("kind", ["chosen", "kept"])
def test_a_small_folder_cannot_ask_for_much_memory(copied, kind, lie):
    """Also without the data, which would tell that the shape is false."""
    run = copied(kind)
    configure(run, dataset="gone.npz")
    part("data", **lie)(run)
    answer = bounded("verify", run.path, "--workers", 1, memory=6 * GIB)
    assert answer.code == 1, answer.err
    assert "llocate" not in answer.out  # nobody tried to
    assert "MISMATCH in" in answer.out


# What is no forgery.


def test_rounding_is_no_mismatch(copied, tmp_path):
    """Another library may solve the same equations in another order; another processor rounds
    features otherwise."""
    run = copied("points")
    whole = shutil.copytree(run.path, tmp_path / "whole")
    weights(lambda w: w.copy_(torch.nextafter(w, torch.zeros_like(w))))(run)
    assert mismatch(run) is None
    assert "sums, up to rounding" in checks(run)["training of carvy"].detail
    assert "sums, bit for bit" in checks(run)["training of flcert"].detail
    run = RunFolder(whole)
    sums("second", lambda array: np.nextafter(array, 0, out=array))(run)
    reseal(run.path)
    assert mismatch(run) is None
    assert "follow from its data, up to rounding" in checks(run)[DATA].detail


def test_the_bias_of_a_class_that_nobody_holds_is_a_constant(tmp_path):
    """It is so low that no share of it may differ: the class would be voted for."""
    runs_on_points(tmp_path, apart=("--keep-sums", "--groups", 8, "--methods", "balanced"))
    run = RunFolder(tmp_path / "apart")
    assert mismatch(run) is None
    weights(lambda w: w[0, int(w[0].argmin())].mul_(0.9))(run)
    assert mismatch(run) == "training of balanced"


def test_the_configuration_says_whether_sums_are_kept(copied):
    """A forger who leaves the file out says so in a record that is another run's."""
    run = copied("points")
    configure(run, keep_sums=False)
    said = checks(run)
    assert f"not part of the run: {run.sums_file.name}" in said["files"].detail
    assert said["training"].state == "cannot be derived"


# Data that are not at hand, or others.


@pytest.fixture(scope="module")
def absent(tmp_path_factory):
    """A run on somebody's own images, whose file is gone, and what was in it."""
    folder, data = tmp_path_factory.mktemp("absent"), load("embedded")
    arrays: dict[str, Any] = {
        "x_train": data.train.inputs[:600],
        "y_train": data.train.labels[:600],
        "x_test": data.test.inputs[:50],
        "y_test": data.test.labels[:50],
    }
    np.savez(folder / "own.npz", **arrays)
    about = ("--partition", "iid", "--num-classes", 10, "--mean", 0.1, "--std", 0.9)
    run = (*QUICK, "--rounds", 1, "--methods", "flcert", "--groups", 2, *about)
    where = ("--dataset", folder / "own.npz", "--out", folder / "run", "--store", folder / "store")
    assert carvy("run", *run, *where).code == 0
    assert verified(folder / "run")[0] == 0
    (folder / "own.npz").unlink()
    return folder / "run", arrays


def test_without_the_data_votes_are_not_checked(absent, runs):
    code, said, states = verified(absent[0])
    assert (code, said) == (3, "as far as checked")
    for what in ("data", "test data", "votes of flcert"):
        assert states[what] == "not checked"
    assert states["certificate of flcert"] == "ok"
    assert verified(absent[0], "--strict")[:2] == (1, "as far as checked")
    for_people = carvy("verify", absent[0], "--workers", 1)
    assert "Holds as far as checked. Not checked: data, test data, votes of" in for_people.out
    assert "--test-data" in for_people.out
    with without_data():
        states = verified(runs / "points")[2]
    assert (states[DATA], states[HEADS]) == ("not checked", "ok")


def test_test_data_can_be_supplied(absent, tmp_path):
    run, arrays = absent
    given = tmp_path / "test.npz"
    for inputs in (arrays["x_test"], arrays["x_test"][:, 0]):  # images may lack their channel
        np.savez(given, x_test=inputs, y_test=arrays["y_test"])
        code, said, states = verified(run, "--test-data", given)
        assert (code, said) == (3, "as far as checked")  # the training set is still unknown
        assert [what for what, state in states.items() if state == "not checked"] == ["data"]
        assert states["votes of flcert"] == "ok"


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
def test_other_test_data_is_a_mismatch(absent, tmp_path, change):
    test = {name: absent[1][name] for name in ("x_test", "y_test")}
    np.savez(tmp_path / "t.npz", **test | {name: f(test[name]) for name, f in change.items()})
    code, said, states = verified(absent[0], "--test-data", tmp_path / "t.npz")
    assert (code, said, states["test data"]) == (1, "mismatch", "mismatch")


def test_other_training_data_is_a_mismatch(absent):
    """Also if classes, mean and standard deviation are the same."""
    run, arrays = absent
    data = Path(RunFolder(run).config().dataset)
    np.savez(data, **arrays | {"x_train": arrays["x_train"][[1, 0, *range(2, 600)]]})
    try:
        code, said, states = verified(run)
    finally:
        data.unlink()
    assert (code, said, states["data"]) == (1, "mismatch", "mismatch")


def test_a_file_that_holds_no_test_data_is_bad_input(runs, tmp_path):
    (tmp_path / "text.npz").write_text("text")
    np.savez(tmp_path / "half.npz", x_test=np.zeros((2, 2)))
    for name, words in (("none.npz", "none.npz"), ("text.npz", "npz"), ("half.npz", "y_test")):
        answer = carvy("verify", runs / "rounds", "--test-data", tmp_path / name)
        assert_refused(answer, words)


# Variants of somebody else's.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("registry", "name", "options", "unchecked"),
    [
        (GROUPINGS, "flcert", ("--methods", "own"), "configuration, groups of own, pictures"),
        (MODELS, "mlp", ("--model", "own"), "configuration, profiles, models of, votes of"),
        (PROFILE_METHODS, "oracle", ("--types", "own"), "configuration, types, profiles, groups"),
        (PARTITIONS, "iid", ("--partition", "own", "--methods", "flcert"), "configuration"),
    ],
    ids=["grouping", "model", "types", "partition"],
)
def test_a_plug_in_that_is_not_registered_here_is_no_mismatch(
    tmp_path, registry, name, options, unchecked
):
    out = tmp_path / "run"
    run = ("run", *QUICK, "--rounds", 1, "--methods", "slots", "--groups", 2, *options)
    variant = dataclasses.replace(registry[name], name="own")
    if registry is PROFILE_METHODS:
        by_truth = {"read_types": lambda known: given_types(known.truth, "own")}
        variant = dataclasses.replace(variant, **by_truth)
    with registered(registry, variant):
        made = carvy(*run, "--out", out, "--store", tmp_path / "store")
        assert made.code == 0, made.err
        assert verified(out)[:2] == (0, "all checked")
    code, said, states = verified(out)
    assert (code, said) == (3, "as far as checked")
    left = [what for what, state in states.items() if state == "not checked"]
    for what, words in zip(left, unchecked.split(", "), strict=True):
        assert what.startswith(words)
    assert "'own' is not registered" in checks(RunFolder(out))["configuration"].detail


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
    struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    return struct or (isinstance(kind, type) and dataclasses.is_dataclass(kind))


def test_every_field_of_the_record_is_in_the_table():
    """A new field is derived, validated, or listed as unchecked."""
    assert sorted(set(fields(RunRecord))) == sorted(FIELDS)
    elsewhere = ("group_count.", "privacy.")
    assert {name for name in FIELDS if name.startswith(elsewhere)} <= set(FORGERIES)


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
    "config.delta": 1,
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
    "config.baseline_groups": 4,
    "config.data_dir": "a folder",
    "config.public": "others.npy",
    "config.model": "compact-cnn",
    "environment.gpu": "a device",
}
"""Other values of fields for which none can be made up by changing the one there is."""


@pytest.mark.parametrize(
    "field",
    [n for n in FIELDS if not n.startswith(("deployment.", "group_count.", "privacy."))],
)
def test_every_field_is_checked_as_the_table_says(copy, field, tmp_path, monkeypatch):
    """The forger changes config.yaml, too, and seals everything again."""
    how = FIELDS[field]
    monkeypatch.chdir(tmp_path)
    images, labels = np.zeros((4, 28, 28), np.uint8), np.arange(4)
    np.savez("other.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    if field in ("files", "digest"):  # no forger could seal these again
        content = json.loads(copy.record_file.read_text())
        lie = json.dumps(content | {field: changed(content[field])}, indent=1)
        copy.record_file.write_text(lie)
        assert mismatch(copy)
        return

    def forge(record: dict[str, Any]) -> None:
        *above, name = field.replace("*", "slots").split(".")
        for key in above:
            record = record[key]
        if how == "validated":
            new = IMPOSSIBLE[field]
            record[name] = record[name] | new if isinstance(new, dict) else new
        else:
            record[name] = OTHER.get(field) or changed(record.get(name))

    reseal(copy.path, forge)
    configure(copy)
    assert (mismatch(copy) is None) == (how == "as recorded")
