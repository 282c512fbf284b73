"""`carvy attack`: a finished run in, what attacks did to it out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from carvyfl.cli import attack as attack_command
from carvyfl.core.schema import plain
from carvyfl.runs.folder import RunFolder
from support.cli import QUICK, Answer, assert_refused, assert_valid, carvy, naive_ca
from support.private import runs_on_corners
from support.records import attack_result


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("attack")


@pytest.fixture(scope="module")
def finished(place: Path) -> Path:
    """A small run of two methods, with three groups each."""
    run = place / "finished"
    made = ("--rounds", "2", "--lr", "0.05", "--methods", "carvy,flcert", "--groups", "3")
    answer = carvy("run", *QUICK, *made, "--store", place / "store", "--out", run)
    assert answer.code == 0, answer.err
    return run


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def attack(place: Path, run: Path):
    """Attack the run; trained groups are kept in a common store."""

    def call(*args: object) -> Answer:
        return carvy("attack", run, "--workers", 1, "--store", place / "store", *args)

    return call


def results(run: Path) -> list[dict[str, Any]]:
    attacks: list[dict[str, Any]] = json.loads((run / "attacks.json").read_text())["attacks"]
    return attacks


def assert_promise_kept(run: Path, result: dict[str, Any]) -> None:
    """Compare a result with CA(m) as the definition has it of the run's own votes."""
    with np.load(run / "votes" / f"{result['method']}.npz") as file:
        curve, _ = naive_ca(file["votes"], file["labels"], 10)
    promised = [curve[m] if m < len(curve) else 0.0 for m in result["m"]]
    assert result["certified"] == pytest.approx(promised)
    assert result["accuracy"][0] == pytest.approx(curve[0])  # nobody malicious
    assert all(a >= p - 1e-9 for a, p in zip(result["accuracy"], promised, strict=True))
    assert result["promise_kept"]


def test_the_papers_attack_on_every_method(attack, run):
    answer = attack("-m", "0-2", "--json")
    assert_valid(answer.json, "attack")
    assert answer.json["attacks"] == results(run) == plain(RunFolder(run).attacks())
    carvy_, flcert = results(run)
    for result, method, placement in ((carvy_, "carvy", "dispersed"), (flcert, "flcert", "hash")):
        assert (result["method"], result["placement"]) == (method, placement)
        assert (result["attack"], result["m"]) == ("badnets", [0, 1, 2])
        assert_promise_kept(run, result)
    assert carvy_["groups_hit"] == [0, 1, 2]
    groups = RunFolder(run).grouping("flcert").assignment
    assert flcert["groups_hit"] == [0, 1, len(set(groups[:2].tolist()))]


def test_tables_for_people(attack):
    answer = attack("--method", "carvy", "-m", "0,2")
    assert "carvy under badnets, malicious dispersed" in answer.out
    for heading in ("ASR", "accuracy", "CA(m)", "groups hit", "lost"):
        assert heading in answer.out
    assert [line.split()[1] for line in answer.out.splitlines() if line[:1] == "│"] == ["0", "2"]
    assert "Accuracy under attack never fell below CA(m)." in answer.out


@pytest.mark.slow
def test_repeating_replaces_and_another_attack_is_added(attack, run):
    once = ("--method", "carvy", "-m", "1")
    assert attack(*once).code == 0
    first = results(run)
    assert attack("--method", "carvy", "-m", "0,1").code == 0
    (again,) = results(run)
    assert again["m"] == [0, 1]
    assert again["accuracy"][1] == first[0]["accuracy"][0]
    assert attack(*once, "--attack", "sign-flip").code == 0
    assert attack(*once, "--attack", "sign-flip", "--placement", "worst").code == 0
    assert attack(*once, "--option", "control=none").code == 0
    every = results(run)
    assert every[0] == again
    names = [(r["attack"], r["placement"], r["settings"].get("control")) for r in every]
    assert names == [
        ("badnets", "dispersed", "unscaled"),
        ("sign-flip", "dispersed", None),
        ("sign-flip", "worst", None),
        ("badnets", "dispersed", "none"),
    ]
    assert every[1]["asr"] is None
    assert every[2]["accuracy"][0] <= every[1]["accuracy"][0]


def test_clients_by_list(attack, run):
    members = RunFolder(run).grouping("carvy").groups[1].tolist()
    clients = ",".join(map(str, members[:2]))
    where = ("--method", "carvy", "--placement", clients)
    (result,) = attack(*where, "-m", "0-2", "-a", "label-flip", "--json").json["attacks"]
    assert result["placement"] == clients
    assert result["groups_hit"] == [0, 1, 1]


def test_settings_are_kept_and_integers_stand_for_numbers(attack, run):
    answer = attack("--method", "carvy", "-m", "1", "-a", "noise", "--option", "scale=2", "--json")
    assert_valid(answer.json, "attack")
    assert answer.json["attacks"][0]["settings"] == {"step_one": "honest", "scale": 2.0}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--attack", "badnet"), ("unknown attack", "badnets")),
        (("--placement", "disperse"), ("unknown placement", "dispersed")),
        (("--placement", "3,99"), ("client 99",)),
        (("--placement", "²"), ("unknown placement",)),
        (("--method", "single"), ("method", "carvy")),
        (("-m", "0-11"), ("0-11", "only 10 clients")),
        (("--placement", "3,4", "-m", "3"), ("3 malicious clients", "only 2")),
        (("-m", "3-1"), ("--malicious",)),
        (("--option", "controls=none"), ("control",)),
        (("--option", "control=nothing"), ("nothing", "unscaled")),
        (("--option", "target=10"), ("target 10", "0 to 9")),
        (("--option", "trigger=3"), ("trigger",)),
        (("--attack", "dba", "--option", "parts=10"), ("parts", "9")),
        (("--attack", "dba", "--option", "parts=0"), ("parts",)),
        (("--option", "per_class=0"), ("per_class",)),
        (("--option", "step_one=late"), ("step_one",)),
        (("--attack", "noise", "--option", "scale=.nan"), ("scale", "not nan")),
        (("--option", "step_one=poisoned", "--placement", "worst"), ("step_one",)),
        (("--engine", "steam"), ("engine",)),
        (("--control", "none"), ("attack badnets, dba, con", "write --option control=none")),
    ],
)
def test_mistakes_are_one_line(attack, run, args, words):
    malicious = () if "-m" in args else ("-m", "1")
    assert_refused(attack(*malicious, *args), *words)
    assert not (run / "attacks.json").exists()


@pytest.fixture(scope="module")
def one_shot(place: Path) -> Path:
    """A small run of closed-form heads."""
    out, made = place / "one-shot", ("--learner", "one-shot", "--features", "none", "--groups", 4)
    size = ("--clients", 20, "--samples", 30, "--methods", "slots")
    answer = carvy("run", *made, *size, "--store", place / "store", "--out", out)
    assert answer.code == 0, answer.err
    return out


@pytest.mark.slow
@pytest.mark.parametrize("name", ["badnets", "scaled-sums", "replaced-head", "constant-head"])
def test_one_shot_runs_are_attacked(name, one_shot, place):
    args = ("-a", name, "-m", "0-3", "--store", place / "store", "--json")
    answer = carvy("attack", one_shot, *args)
    assert_valid(answer.json, "attack")
    (result,) = answer.json["attacks"]
    assert_promise_kept(one_shot, result)
    assert result["groups_hit"] == [0, 1, 2, 3]


@pytest.mark.slow
def test_attacks_of_another_learner_are_refused_in_one_line(attack, one_shot):
    answer = carvy("attack", one_shot, "-a", "alie")
    assert_refused(answer, "'alie'", "one-shot", "badnets, ", "constant-")
    assert_refused(attack("-a", "scaled-sums"), "'scaled-sums'", "scaffold", "badnets, ")


def test_runs_that_cannot_be_attacked(attack, run, tmp_path):
    (run / "attacks.json").write_text('[{"attack": "badnets"}]')
    assert_refused(attack("-m", "0"), "attacks.json is damaged")
    assert (run / "attacks.json").read_text() == '[{"attack": "badnets"}]'
    (run / "run.json").unlink()
    assert_refused(attack("-m", "0"), "not finished")
    assert_refused(carvy("attack", tmp_path / "nowhere"), "does not exist")
    assert_refused(carvy("attack", tmp_path), "no run folder")


@pytest.mark.slow
def test_by_default_there_are_as_many_as_can_be(attack, run):
    common = ("--method", "carvy", "-a", "sign-flip", "--json")
    (listed,) = attack(*common, "--placement", "3,4").json["attacks"]
    assert listed["m"] == [0, 1, 2]
    (all_of_them,) = attack(*common, "--placement", "hash").json["attacks"]
    assert all_of_them["m"] == list(range(11))  # of ten clients


def test_honest_groups_are_those_of_the_run(run, tmp_path):
    """A store that knows none of them: only the one that is hit is trained."""
    where = ("--workers", 1, "--store", tmp_path / "store", "--method", "carvy")
    assert carvy("attack", run, *where, "-m", "0,1", "-a", "sign-flip").code == 0
    assert len(list((tmp_path / "store").glob("*.safetensors"))) == 1


@pytest.mark.parametrize("name", ["badnets", "constant-means"])
def test_clients_of_a_private_run_keep_their_messages(tmp_path, name, monkeypatch):
    """Neither they nor the public inputs are asked for again."""
    runs_on_corners(tmp_path, run=())
    run = tmp_path / "run"
    before = (run / "messages.safetensors").read_bytes()
    (tmp_path / "public.npy").unlink()
    monkeypatch.setattr("carvyfl.learning.private.map.make_map", None)
    where = ("--workers", 1, "--store", tmp_path / "attacked", "-a", name, "-m", "0-3")
    answer = carvy("attack", run, *where, "--json")
    assert_valid(answer.json, "attack")
    for result in results(run):
        with np.load(run / "votes" / f"{result['method']}.npz") as file:
            curve, _ = naive_ca(file["votes"], file["labels"], 4)
        promised = [curve[m] if m < len(curve) else 0.0 for m in result["m"]]
        assert result["certified"] == pytest.approx(promised)
        assert all(a >= p - 1e-9 for a, p in zip(result["accuracy"], promised, strict=True))
        assert result["accuracy"][0] == pytest.approx(curve[0])
    assert (run / "messages.safetensors").read_bytes() == before
    again = carvy("attack", run, *where, "--option", "step_one=poisoned", "--json")
    assert again.code == 0, again.err
    assert all(result["promise_kept"] for result in again.json["attacks"])
    verified = carvy("verify", run, "--workers", 1)
    assert verified.code == 3, verified.out  # the map cannot be made again without its inputs
    assert verified.out.endswith("Holds as far as checked. Not checked: map\n")


def test_both_readings_of_lost_groups_are_printed_where_they_differ(capsys):
    for if_lost, shown in (((1.0, 33.5), True), ((1.0, 2.0), False)):
        asr = {"asr": (1.0, 2.0), "asr_if_lost_votes_target": if_lost}
        attack_command._print(attack_result("carvy", [90.0, 80.0], [85.0, 70.0], **asr))
        printed = capsys.readouterr().out
        assert ("ASR *" in printed) == ("33.5" in printed) == shown
