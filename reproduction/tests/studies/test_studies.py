"""Every study runs, on a few clients with small pictures and for a round or two."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from carvyfl import CarvyFL, build_federation, load
from carvyfl.attacks.badnets import BadNets
from carvyfl.data.clients import Samples
from carvyfl.data.datasets import DATASETS, DataSource, data_set
from carvyfl.learning import backends
from carvyfl.pipeline import Compute
from carvyfl.runs.config import preset, updated
from carvyfl.voting.votes import predict, votes
from reproduction.experiment import Experiment, Groups
from reproduction.studies import attacks, certified, training
from reproduction.studies.__main__ import main
from support.registries import registered

COMMITTED = Path(__file__).parents[3] / "results"
FEW = ("--engine", "loop", "--workers", "1", "--commit", "abc1234")
SMALL = ("--preset", "demo", "--clients", "20", "--samples", "20", "--rounds", "1")
PART = (*SMALL, "--groups", "4", "--inputs", "200")


@pytest.fixture(scope="module", autouse=True)
def _rows():
    """A data set of noisy 10×10 pictures, each class with a bright row of its own."""
    rng = np.random.default_rng(0)

    def pictures(size: int) -> tuple[np.ndarray, np.ndarray]:
        labels = np.arange(size) % 10
        inputs = rng.integers(0, 120, (size, 10, 10), dtype=np.uint8)
        inputs[np.arange(size), labels] += 100
        return inputs, labels

    (x, y), (x_test, y_test) = pictures(6000), pictures(100)
    arrays = {"x_train": x, "y_train": y, "x_test": x_test, "y_test": y_test}
    source = DataSource("rows", "bright rows", lambda files: data_set("rows", arrays, "rows"))
    with registered(DATASETS, source):
        yield


def study(name: str, out: Path, *options: str, dataset: str = "embedded") -> None:
    places = ("--dataset", dataset, "--out", str(out), "--store", str(out / "store"))
    main([name, *FEW, *places, *options])


def written(path: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(path.read_text())
    assert record["commit"] == "abc1234"
    assert record["environment"]["torch"]
    return record


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A folder with the votes of a small end-to-end study."""
    out = tmp_path_factory.mktemp("end_to_end")
    study("votes", out, *PART, "--draws", "2", "--most", "1")
    return out


@pytest.mark.slow
def test_certified_gives_the_same_from_kept_votes_and_from_training(kept, tmp_path):
    draws = ("--draws", "2", "--most", "1", "--tried", "5")
    study("certified", kept, *PART, *draws)
    study("certified", tmp_path, *PART, *draws)
    name = "certified-embedded-20.json"
    found, again = written(kept / name), written(tmp_path / name)
    assert found.pop("votes")["config"] == again["config"]
    assert found == again
    readings = {"honest only", "all honest", *certified.BY_CHANCE}
    curves = {name: found[name] for name in (*readings, "flcert", "balanced")}
    # Nobody is malicious at m = 0: however it is counted, this is the accuracy.
    assert len({curves[name]["ca"][0] for name in readings}) == 1
    for curve in curves.values():
        assert len(curve["ca"]) == 2
        assert all(curve["low"][m] <= curve["ca"][m] <= curve["high"][m] for m in range(2))


@pytest.mark.slow
def test_one_shot_certifies_as_the_estimator_does(tmp_path):
    options = ("--clients", "20", "--samples", "30", "--groups", "4", "--seeds", "0", "1")
    study("one-shot", tmp_path, *options, "--methods", "slots")
    found = written(tmp_path / "embedded.json")["sizes"]["30"]
    data = load("embedded")
    for seed in (0, 1):
        clients = build_federation(data, "class-disjoint", num_clients=20, samples=30, seed=seed)
        model = CarvyFL(learner="one-shot", method="slots", groups=4, seed=seed).fit(clients)
        certificate = model.certify(data.test.inputs, data.test.labels)
        strict = certificate.under("all_honest")
        assert found["slots"]["ca"][seed] == certificate.ca().tolist()
        assert found["slots, all honest"]["ca"][seed] == strict.ca().tolist()
        enough = [m for m, share in enumerate(certificate.ca()) if share >= 60]
        assert found["slots"]["largest_m"][seed] == max(enough)


@pytest.mark.slow
def test_a_part_that_was_done_is_not_repeated(kept, capsys):
    before = (kept / "votes-embedded-20.npz").read_bytes()
    study("votes", kept, *PART, "--seed", "1")
    assert "is there already" in capsys.readouterr().out
    assert (kept / "votes-embedded-20.npz").read_bytes() == before


@pytest.mark.slow
def test_kept_votes_of_other_settings_are_refused(kept, capsys):
    with pytest.raises(SystemExit) as end:
        study("captured", kept, *PART, "--rounds", "2")
    assert end.value.code == 2
    assert "votes of other settings" in capsys.readouterr().err


@pytest.mark.slow
def test_captured_groups_win_when_all_are_captured(kept):
    study("captured", kept, *PART, "--draws", "2")
    found = written(kept / "captured-embedded-20.json")
    for method in ("slots", "flcert"):
        asr = found[method]["asr"]
        assert len(asr) == 21
        assert asr == sorted(asr)
        assert asr[20] == 100
    assert found["slots"]["asr"][4] == 100  # four malicious clients sit in all four groups


@pytest.mark.slow
def test_attacks_break_no_certificate_that_covers_step_1(tmp_path):
    study("attacks", tmp_path, *PART, "--m", "1", "--attacks", "nan", "honest-then-gone")
    rows = written(tmp_path / "attacks-embedded-20.json")["rows"]
    assert [row["attack"] for row in rows] == ["none", "nan", "honest-then-gone"] * 6
    for row in rows:
        if row["grouping"] in attacks.END_TO_END:
            assert row["accuracy_worst"] >= row["ca_promised"]
            assert row["num_groups"] == 4
            assert row["groups_touched"] <= row["m"]
    main(["present", "--out", str(tmp_path)])
    assert len((tmp_path / "attacks-embedded-20.md").read_text().splitlines()) == 2 + len(rows)


@pytest.mark.slow
def test_cost_adds_up(tmp_path):
    study("cost", tmp_path, *PART, "--timed", "1")
    found = written(tmp_path / "cost-embedded-20.json")
    steps = sum(found[f"{step}_seconds"] for step in ("one_epoch", "inference", "grouping"))
    whole = found["seconds_per_round"] * found["rounds"]
    assert found["share_of_training"] == pytest.approx(steps / whole)


def test_malicious_groups_are_counted_as_badly_as_any_votes_of_theirs():
    config = updated(preset("demo"), {"clients": 20, "samples": 10})
    own = Experiment(config, Compute.on_cores(1))
    random = np.random.default_rng(0)
    inputs, labels = np.zeros((40, 28, 28), np.uint8), random.integers(0, 3, 40)
    data = replace(
        own.prepared.dataset,
        test=Samples(inputs, labels),
        class_names=("a", "b", "c"),
        num_classes=3,
    )
    own.__dict__["prepared"] = replace(own.prepared, dataset=data)
    ballots = np.where(random.random((5, 40)) < 0.6, labels, random.integers(0, 3, (5, 40)))
    malicious = np.array([True, False, False, True, False])
    right = np.ones(40, bool)
    for answers in itertools.product(range(3), repeat=2):
        cast = ballots.copy()
        cast[malicious] = np.array(answers)[:, None]
        right &= predict(votes(cast, 3)) == labels
    groups: Groups = [(client,) for client in range(5)]
    own.ballots.update(zip(groups, ballots, strict=True))
    assert own.accuracy_against(groups, malicious) == pytest.approx(100 * right.mean())


def test_the_committed_fidelity_table_follows_from_its_trials():
    trials = json.loads((COMMITTED / "fidelity" / "mnist-50.json").read_text())["trials"]
    committed = (COMMITTED / "fidelity" / "mnist-50.md").read_text()
    assert training.fidelity_table(trials) == committed


@pytest.mark.slow
def test_fidelity(tmp_path):
    options = ("--clients", "40", "--samples", "10", "--rounds", "1", "--seeds", "0")
    study("fidelity", tmp_path, *options, dataset="rows")
    trials = written(tmp_path / "rows-10.json")["trials"]
    assert {method: len(runs) for method, runs in trials.items()} == dict.fromkeys(trials, 1)
    assert trials["single"][0]["num_groups"] == 1
    assert trials["carvy, true types"][0]["num_groups"] == 8  # 40 clients of five types
    assert "| single global model | 1 | 1 |" in (tmp_path / "rows-10.md").read_text()


@pytest.mark.slow
def test_precision(tmp_path, monkeypatch):
    monkeypatch.setattr(backends, "cpu_has_bf16", lambda: True)  # emulated, it gives the same
    options = ("--clients", "10", "--samples", "20", "--rounds", "2", "--seeds", "0", "1")
    study("precision", tmp_path, *options, "--precisions", "bf16", dataset="rows")
    found = written(tmp_path / "rows.json")
    bf16, fp32 = (np.array(found["ca"][name]) for name in ("bf16", "fp32"))
    assert found["bf16_minus_fp32"]["mean"] == pytest.approx((bf16 - fp32).mean(axis=0))


@pytest.mark.slow
@pytest.mark.parametrize("part", ["bound", "types"])
def test_quality(part, tmp_path):
    options = ("--clients", "10", "--samples", "20", "--rounds", "1", "--seeds", "0")
    study("quality", tmp_path, part, *options, dataset="rows")
    found = written(tmp_path / f"{part}.json")["rows"]
    if part == "types":
        assert 0 <= found["exact_of_10"]["20"] <= 10
    else:
        own, bound = found["default"]["auc"][0], found["pooled"]["auc"][0]
        assert found["share_of_bound"] == [pytest.approx(own / bound)]


@pytest.mark.slow
def test_control_variates(tmp_path, monkeypatch):
    # Hundreds of poisoned pictures for each attacker would take minutes.
    monkeypatch.setattr(training, "BadNets", partial(BadNets, per_class=1))
    options = ("--clients", "20", "--samples", "10", "--rounds", "1")
    study("control-variates", tmp_path, *options, dataset="rows")
    trials = written(tmp_path / "control_variates.json")["trials"]
    assert len({trial["control"] for trial in trials}) == len(trials) == 4
    for trial in trials:
        assert trial["m"] == list(range(21))
        assert trial["promise_kept"]
        area = sum(100 - (a + b) / 2 for a, b in itertools.pairwise(trial["asr"]))
        assert trial["auc"] == pytest.approx(area)
