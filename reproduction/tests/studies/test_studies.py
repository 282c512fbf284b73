"""Every study runs, on a few clients; what is committed follows from its records."""

from __future__ import annotations

import itertools
import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carvyfl import CarvyFL, build_federation, load
from carvyfl.attacks.badnets import BadNets
from carvyfl.data.clients import Samples
from carvyfl.data.datasets import DATASETS, DataSource, data_set
from carvyfl.groups.exchange import imbalance
from carvyfl.learning import backends
from carvyfl.pipeline import Compute
from carvyfl.runs.config import preset, updated
from carvyfl.voting.votes import predict, votes
from reproduction.experiment import Experiment, Groups
from reproduction.studies import attacks, certified, training
from reproduction.studies.__main__ import main
from reproduction.studies.certified import summary
from reproduction.studies.heterogeneity import GAINS, PARTITIONS, gains_table
from reproduction.studies.heterogeneity import kept as share_of_gain
from reproduction.studies.profile_attacks import balance
from reproduction.studies.profile_attacks import table as attacks_table
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
def voted(tmp_path_factory):
    """A folder with the votes of a small end-to-end study."""
    out = tmp_path_factory.mktemp("end_to_end")
    study("votes", out, *PART, "--draws", "2", "--most", "1")
    return out


@pytest.mark.slow
def test_certified_gives_the_same_from_kept_votes_and_from_training(voted, tmp_path):
    draws = ("--draws", "2", "--most", "1", "--tried", "5")
    study("certified", voted, *PART, *draws)
    study("certified", tmp_path, *PART, *draws)
    name = "certified-embedded-20.json"
    record, again = written(voted / name), written(tmp_path / name)
    assert record.pop("votes")["config"] == again["config"]
    assert record == again
    readings = {"honest only", "all honest", *certified.BY_CHANCE}
    curves = {name: record[name] for name in (*readings, "flcert", "balanced")}
    # Nobody is malicious at m = 0: however it is counted, this is the accuracy.
    assert len({curves[name]["ca"][0] for name in readings}) == 1
    for curve in curves.values():
        assert len(curve["ca"]) == 2
        assert all(curve["low"][m] <= curve["ca"][m] <= curve["high"][m] for m in range(2))


@pytest.mark.slow
def test_one_shot_certifies_as_the_estimator_does(tmp_path):
    options = ("--clients", "20", "--samples", "30", "--groups", "4", "--seeds", "0", "1")
    study("one-shot", tmp_path, *options, "--methods", "slots")
    record = written(tmp_path / "embedded.json")["sizes"]["30"]
    data = load("embedded")
    for seed in (0, 1):
        clients = build_federation(data, "class-disjoint", num_clients=20, samples=30, seed=seed)
        model = CarvyFL(learner="one-shot", method="slots", groups=4, seed=seed).fit(clients)
        certificate = model.certify(data.test.inputs, data.test.labels)
        strict = certificate.under("all_honest")
        assert record["slots"]["ca"][seed] == certificate.ca().tolist()
        assert record["slots, all honest"]["ca"][seed] == strict.ca().tolist()
        enough = [m for m, share in enumerate(certificate.ca()) if share >= 60]
        assert record["slots"]["largest_m"][seed] == max(enough)


@pytest.mark.slow
def test_a_part_that_was_done_is_not_repeated(voted, capsys):
    before = (voted / "votes-embedded-20.npz").read_bytes()
    study("votes", voted, *PART, "--seed", "1")
    assert "is there already" in capsys.readouterr().out
    assert (voted / "votes-embedded-20.npz").read_bytes() == before


@pytest.mark.slow
def test_kept_votes_of_other_settings_are_refused(voted, capsys):
    with pytest.raises(SystemExit) as end:
        study("captured", voted, *PART, "--rounds", "2")
    assert end.value.code == 2
    assert "votes of other settings" in capsys.readouterr().err


@pytest.mark.slow
def test_captured_groups_win_when_all_are_captured(voted):
    study("captured", voted, *PART, "--draws", "2")
    record = written(voted / "captured-embedded-20.json")
    for method in ("slots", "flcert"):
        asr = record[method]["asr"]
        assert len(asr) == 21
        assert asr == sorted(asr)
        assert asr[20] == 100
    assert record["slots"]["asr"][4] == 100  # four malicious clients sit in all four groups


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
    record = written(tmp_path / "cost-embedded-20.json")
    steps = sum(record[f"{step}_seconds"] for step in ("one_epoch", "inference", "grouping"))
    whole = record["seconds_per_round"] * record["rounds"]
    assert record["share_of_training"] == pytest.approx(steps / whole)


def test_malicious_groups_are_counted_as_badly_as_any_votes_of_theirs():
    config = updated(preset("demo"), {"clients": 20, "samples": 10})
    experiment = Experiment(config, Compute.on_cores(1))
    random = np.random.default_rng(0)
    inputs, labels = np.zeros((40, 28, 28), np.uint8), random.integers(0, 3, 40)
    data = replace(
        experiment.prepared.dataset,
        test=Samples(inputs, labels),
        class_names=("a", "b", "c"),
        num_classes=3,
    )
    experiment.__dict__["prepared"] = replace(experiment.prepared, dataset=data)
    ballots = np.where(random.random((5, 40)) < 0.6, labels, random.integers(0, 3, (5, 40)))
    malicious = np.array([True, False, False, True, False])
    right = np.ones(40, bool)
    for answers in itertools.product(range(3), repeat=2):
        cast = ballots.copy()
        cast[malicious] = np.array(answers)[:, None]
        right &= predict(votes(cast, 3)) == labels
    groups: Groups = [(client,) for client in range(5)]
    experiment.ballots.update(zip(groups, ballots, strict=True))
    assert experiment.accuracy_against(groups, malicious) == pytest.approx(100 * right.mean())


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
    record = written(tmp_path / "rows.json")
    bf16, fp32 = (np.array(record["ca"][name]) for name in ("bf16", "fp32"))
    assert record["bf16_minus_fp32"]["mean"] == pytest.approx((bf16 - fp32).mean(axis=0))


@pytest.mark.slow
@pytest.mark.parametrize("part", ["bound", "types"])
def test_quality(part, tmp_path):
    options = ("--clients", "10", "--samples", "20", "--rounds", "1", "--seeds", "0")
    study("quality", tmp_path, part, *options, dataset="rows")
    record = written(tmp_path / f"{part}.json")["rows"]
    if part == "types":
        assert 0 <= record["exact_of_10"]["20"] <= 10
    else:
        share = record["default"]["auc"][0] / record["pooled"]["auc"][0]
        assert record["share_of_bound"] == [pytest.approx(share)]


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


# FLCert-P runs, and a cell is what its votes say; the share of the gain that a grouping keeps.

TWENTY = ("--clients", "20", "--samples", "30", "--groups", "4", "--seeds", "0")


@pytest.mark.slow
def test_flcert_p(tmp_path, capsys):
    options = (*TWENTY, "--draws", "60", "--partitions", "i.i.d.", "2 classes")
    study("flcert-p", tmp_path, *options)
    path = tmp_path / "flcert-p.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["cell"] for row in rows] == [[n, 0, "flcert-p", 4] for n in ("i.i.d.", "2 classes")]
    for row in rows:
        ca = row["ca"]
        assert (row["commit"], row["size"], row["subsets"]) == ("abc1234", 5, 60)
        assert 100 >= row["accuracy"] >= ca[0] > 0 == ca[-1]
        assert ca == sorted(ca, reverse=True)
        # One of 20 clients is in a quarter of the subsets of 5, two are in 43 %, three in 60 %.
        assert len(ca) <= 4
    assert rows[0]["auc"] > rows[1]["auc"]
    capsys.readouterr()
    study("flcert-p", tmp_path, *options)  # nothing is missing
    assert capsys.readouterr().out == ""


def test_the_share_is_that_of_the_means():
    areas = {"balanced": [100.0, 200.0], "carvy": [300.0, 400.0], "slots": [200.0, 350.0]}
    assert share_of_gain(areas, "slots") == pytest.approx(100 * (275 - 150) / (350 - 150))
    assert share_of_gain(areas, "balanced") == 0
    assert share_of_gain(areas, "carvy") == 100
    text = gains_table({"2 classes:20": areas, "i.i.d.:20": {method: [] for method in areas}})
    assert "| 2 classes | 20 | 150 ± 71 | 350 ± 71 | 275 ± 106 | 62 % |" in text
    assert "i.i.d." not in text


def test_every_partition_is_known():
    for where in GAINS:
        name, _, groups = where.rpartition(":")
        assert name in PARTITIONS
        assert int(groups) > 1


# Lies about profiles: the promise and the bound hold.

LIES = ("complement", "crowd", "nan", "unheard-of", "honest-then-gone")


@pytest.mark.slow
def test_profile_attacks(tmp_path):
    options = ("--m", "1", "3", "--partitions", "Dirichlet 0.3", "--attacks", *LIES)
    study("profile-attacks", tmp_path, *TWENTY, *options)
    record = json.loads((tmp_path / "attacks.json").read_text())
    assert record["commit"] == "abc1234"
    assert record["config"]["data_dir"] is None
    rows = record["rows"]
    assert [(row["attack"], row["m"]) for row in rows] == [(a, m) for a in LIES for m in (1, 3)]
    for row in rows:
        assert row["accuracy_worst"] >= row["ca_given_groups"]
        assert row["imbalance_honest"] <= row["imbalance_bound"] * (1 + 1e-9)
        assert row["groups_touched"] <= row["m"]
    by_attack = {(row["attack"], row["m"]): row for row in rows}
    assert by_attack["nan", 3]["groups_touched"] == 0  # set aside: no group has them
    assert by_attack["nan", 3]["imbalance_honest"] == by_attack["nan", 3]["imbalance_seen"]
    assert by_attack["crowd", 3]["longest"] == pytest.approx(4 * np.sqrt(1 + 1 / 9), rel=1e-5)
    assert by_attack["unheard-of", 3]["longest"] > 0.3  # a third of a full sketch, and no shares
    text = (tmp_path / "attacks.md").read_text()
    assert text == attacks_table(rows)
    assert len(text.splitlines()) == 2 + len(rows)


@given(seed=st.integers(0, 2**32), liars=st.integers(0, 6), groups=st.integers(1, 5))
def test_no_lie_breaks_the_bound(seed: int, liars: int, groups: int):
    draw = np.random.default_rng(seed)
    vectors = draw.normal(size=(12, 3)) * draw.choice([0.1, 10], (12, 1))
    assignment = draw.integers(-1, groups, 12)
    malicious = draw.choice(12, liars, replace=False)
    effect = balance(vectors, assignment, malicious, groups)
    assert effect.honest <= effect.bound * (1 + 1e-9) + 1e-12
    assert effect.together <= effect.liars <= liars


def test_balance_is_the_imbalance_that_is_made_small():
    """Where groups are of equal size; a liar counts as a client that brings nothing."""
    draw = np.random.default_rng(0)
    vectors, assignment = draw.normal(size=(12, 3)), draw.permutation(np.arange(12) % 4)
    effect = balance(vectors, assignment, np.array([2, 5]), 4)
    assert effect.seen == pytest.approx(imbalance(vectors, assignment, 4))
    vectors[[2, 5]] = 0
    assert effect.honest == pytest.approx(imbalance(vectors, assignment, 4))
    assert effect.liars == 2


def test_balance_by_hand():
    """One liar takes three from its group."""
    vectors = np.array([[1.0], [1.0], [3.0], [-3.0], [1.0], [1.0]])
    effect = balance(vectors, np.array([0, 0, 1, 1, 2, 2]), np.array([3]), 3)
    # Sums are 2, 0 and 2 as claimed, and 2, 3 and 2 without the liar.
    assert effect.seen == pytest.approx(8 / 3)
    assert effect.honest == pytest.approx(2 / 3)
    assert effect.bound == pytest.approx((np.sqrt(8 / 3) + 3) ** 2)


# The committed study of end-to-end certificates: its pages follow from its records.

END_TO_END = COMMITTED / "end_to_end"


def records(part: str) -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in END_TO_END.glob(f"{part}-*.json")}


@pytest.mark.slow
def test_committed_tables_are_what_the_committed_records_give(tmp_path):
    for path in END_TO_END.glob("*.json"):
        shutil.copy(path, tmp_path)
    main(["present", "--out", str(tmp_path)])
    made = {path.name: path.read_text() for path in tmp_path.glob("*.md")}
    there = {path.name: path.read_text() for path in END_TO_END.glob("*.md")}
    assert made == there, "run: python -m reproduction.studies present"
    assert {path.name for path in tmp_path.glob("*.svg")} == {"attacks.svg", "certified.svg"}


@pytest.mark.parametrize("name", sorted(records("certified")))
def test_a_stricter_reading_certifies_no_more(name):
    """Without an attacker, both compare with the same run."""
    record = records("certified")[name]
    loose, strict = record["honest only"]["ca"], record["all honest"]["ca"]
    assert loose[0] == strict[0]
    assert all(more >= less for more, less in zip(loose, strict, strict=True))


@pytest.mark.parametrize("name", sorted(records("attacks")))
def test_no_promise_that_covers_step_1_was_broken(name):
    rows = records("attacks")[name]["rows"]
    fixed = [row for row in rows if row["grouping"] in {"slots", "flcert", "balanced"}]
    assert len({(row["attack"], row["m"]) for row in fixed}) == 25
    for row in fixed:
        assert row["accuracy_worst"] >= row["ca_promised"] - 1e-9
        assert row["groups_unchanged"] >= row["num_groups"] - row["m"]


@pytest.mark.parametrize("between", [0.02, 0.1, 0.3])
def test_the_interval_covers_the_mean_however_much_draws_of_the_coins_differ(between):
    """Ten draws of the coins with 50 of T each; so much of the variance lies between the coins."""
    draw, trials, covered = np.random.default_rng(7), 2000, 0
    for _ in range(trials):
        shares = 60 + np.sqrt(between) * draw.normal(size=(10, 1))
        shares = shares + np.sqrt(1 - between) * draw.normal(size=(10, 50))
        record = summary({"worst": shares})
        covered += record["low"] <= 60 <= record["high"]
    assert covered / trials == pytest.approx(0.95, abs=0.015)
