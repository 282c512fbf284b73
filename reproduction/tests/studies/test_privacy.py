"""The study of privacy measures what it says, goes on where it stopped, and is drawn truly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from carvyfl.data.clients import Samples
from carvyfl.data.datasets import DataSet
from carvyfl.learning.private.map import plain_map
from carvyfl.learning.private.message import Messages
from carvyfl.privacy.class_sums import noise_for_sums
from reproduction.studies import privacy as study
from reproduction.studies.__main__ import main
from reproduction.studies.privacy import Cell, Data, ballots, measure, pooled
from reproduction.studies.privacy_figures import (
    by_epsilon,
    cell_text,
    frozen_table,
    table,
    trade_off,
)

COMMITTED = Path(__file__).parents[3] / "results" / "privacy"
CLASS_DISJOINT = Cell("made-up", 20, "class-disjoint", None, "none")


@pytest.fixture(scope="module")
def data() -> Data:
    """Ten classes around centres of their own, in 16 dimensions."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(10, 16))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)

    def drawn(size: int) -> tuple[np.ndarray, np.ndarray]:
        labels = np.arange(size) % 10
        return centres[labels] + rng.normal(size=(size, 16)) / 8, labels

    private_map = plain_map(16, 16)
    (x, y), (x_test, y_test) = drawn(4000), drawn(300)
    numbers = np.arange(len(x), dtype=np.float32)[:, None]
    parts = Samples(numbers, y), Samples(x_test.astype(np.float32), y_test)
    dataset = DataSet("made-up", *parts, 10, 0.0, 1.0, tuple("0123456789"))
    test = private_map.vectors(x_test).astype(np.float32)
    return Data(dataset, private_map.vectors(x), test, private_map)


def test_a_group_without_noise_votes_for_the_nearest_mean(data: Data) -> None:
    private = study.sent(data, CLASS_DISJOINT, 0, None, lambda count, scale: np.zeros(count, int))
    assignment = np.arange(100) % 7
    cast = ballots(private, data.test, assignment, 7)
    for group in range(7):
        members = np.flatnonzero(assignment == group)
        counts = private.counts[members].sum(axis=0)
        held = np.flatnonzero(counts > 0)
        means = private.sums[members].sum(axis=0)[held] / counts[held, None]
        distances = np.linalg.norm(data.test[:, None] - means, axis=2)
        assert (cast[group] == held[distances.argmin(axis=1)]).mean() > 0.99  # up to rounding


def test_a_trusted_sum_has_the_noise_of_one_client() -> None:
    rng, noise = np.random.default_rng(0), noise_for_sums(2.0, 1e-5)
    units = rng.integers(-50, 50, (6, 3, 5)).astype(np.int32)
    asked = []

    def sampler(count: int, scale: float) -> np.ndarray:
        asked.append((count, scale))
        return 1000 * np.ones(count, np.int64)

    sums = pooled(Messages(units, 0.0), np.array([0, 1, 1, 0, 1, 2]), 3, noise, sampler)
    assert asked == [(3 * 3 * 5, noise.scale)]
    expected = [units[0] + units[3], units[1] + units[2] + units[4], units[5]]
    np.testing.assert_array_equal(sums.units, np.array(expected) + 1000)


@pytest.mark.parametrize("noise", ["local", "group"])
def test_next_to_no_noise_certifies_as_none_does_and_much_less(data: Data, noise: str) -> None:
    exact = measure(data, CLASS_DISJOINT, 0)
    little, much = (
        measure(data, Cell("made-up", 20, "class-disjoint", epsilon, noise), 0)
        for epsilon in (100.0, 0.1)
    )
    # Random groups lack classes, and noise has them vote for these now and then.
    assert little["carvy"].auc() == pytest.approx(exact["carvy"].auc(), rel=0.02)
    for method, certificate in exact.items():
        assert much[method].auc() < 0.5 * certificate.auc()
    assert exact["carvy"].auc() > 1.5 * exact["balanced"].auc()
    assert {certificate.num_groups for certificate in exact.values()} == {20}


def test_a_number_of_groups_is_chosen_where_none_is_fixed(data: Data) -> None:
    few, many = (
        measure(data, Cell("made-up", 20, "i.i.d.", epsilon, "local"), 0)["carvy"].num_groups
        for epsilon in (0.5, 50.0)
    )
    assert 1 < few < many <= 100


def test_the_study_goes_on_where_it_stopped(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Cell] = []

    def counted(seen: Data, cell: Cell, seed: int):
        measured.append(cell)
        return measure(seen, cell, seed)

    monkeypatch.setattr(study, "read_data", lambda name, origin, args: data)
    monkeypatch.setattr(study, "measure", counted)
    options = ["--dataset", "mnist", "--samples", "20", "--partitions", "class-disjoint"]
    options += ["--seeds", "0", "1", "--out", str(tmp_path), "--commit", "abc1234"]
    main(["privacy", *options, "--epsilons", "4"])
    before = json.loads((tmp_path / "cells.json").read_text())
    assert len(before) == 3 * 3  # none, local and once per group, by three methods
    assert len(measured) == 2 * 3
    measured.clear()
    main(["privacy", *options, "--epsilons", "4", "1"])
    assert measured == [
        Cell("mnist", 20, "class-disjoint", 1.0, noise)
        for noise in ("local", "group")
        for _ in "ab"
    ]
    after = json.loads((tmp_path / "cells.json").read_text())
    assert after[: len(before)] == before
    for record in after:
        assert record["auc_mean"] == pytest.approx(np.mean(record["auc"]), abs=0.01)
        assert record["auc_sd"] == pytest.approx(np.std(record["auc"], ddof=1), abs=0.01)
        assert (record["commit"], record["seeds"]) == ("abc1234", [0, 1])


def test_embeddings_are_measured_with_the_map_of_synthetic_ones_and_with_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng, labels = np.random.default_rng(0), np.arange(2000) % 10
    useful, loud = np.eye(10, 12), 40 * (np.arange(12) > 9)  # two features only disturb

    def embedded(y: np.ndarray) -> np.ndarray:
        return (useful[y] + (0.1 + loud) * rng.normal(size=(len(y), 12))).astype(np.float32)

    versions = np.tile(rng.normal(size=(300, 1, 12)), (1, 4, 1))
    versions[..., 10:] += 40 * rng.normal(size=(300, 4, 2))
    arrays: dict[str, Any] = {"x_train": embedded(labels), "y_train": labels}
    arrays |= {"x_test": embedded(labels[:200]), "y_test": labels[:200], "synthetic": versions}
    np.savez(tmp_path / "vectors.npz", **arrays)
    options = ["--embeddings", str(tmp_path / "vectors.npz"), "--partitions", "class-disjoint"]
    options += ["--samples", "20", "--seeds", "1", "--epsilons", "8", "--commit", "abc1234"]
    options += ["--out", str(tmp_path), "--store", str(tmp_path)]
    with pytest.raises(SystemExit):
        main(["privacy", *options])
    assert "name the --dataset that the embeddings are of" in capsys.readouterr().err
    main(["privacy", *options, "--dataset", "cifar-10"])
    records = json.loads((tmp_path / "cells.json").read_text())
    exact = {r["origin"]: r["ca"][0] for r in records if r["noise"] == "none"}
    assert exact[study.SYNTHETIC] > 90  # the versions say which features do not matter
    assert exact[study.NOTHING] < 50
    assert len(records) == 2 * 2 * 3
    assert {r["command"].split("privacy ")[1] for r in records} == {
        "--dataset cifar-10 --embeddings vectors.npz"
    }
    lines = [line.split(" | ") for line in frozen_table(records).splitlines()[2:]]
    assert [line[1:3] for line in lines] == [
        ["synthetic images", "carvy"],
        ["nothing: features projected", "carvy"],
        ["", "balanced"],
        ["", "flcert"],
    ]
    no_noise = [r for r in records if r["noise"] == "none" and r["method"] == "carvy"]
    assert [line[3].split()[0] for line in lines[:2]] == [f"{r['auc_mean']:.0f}" for r in no_noise]


def record(epsilon: float | None, area: float, **changes: object) -> dict[str, object]:
    cell = {"dataset": "fashion-mnist", "samples": 500, "partition": "class-disjoint"}
    cell |= {"epsilon": epsilon, "noise": "none" if epsilon is None else "local"}
    values = {"auc_mean": area, "auc_sd": 1.26, "ca": [79.0, 78.0], "groups": [20], "seeds": [0, 1]}
    return {**cell, "origin": "synthetic images", "method": "carvy", **values, **changes}


def test_tables_and_picture_say_what_the_records_hold() -> None:
    records = [record(None, 743.0), record(2.0, 731.4), record(2.0, 300.0, method="flcert")]
    records += [record(2.0, 1.0, noise="group"), record(2.0, 2.0, origin="mnist")]
    carvy = {"dataset": "fashion-mnist", "origin": "synthetic images", "method": "carvy"}
    row = by_epsilon(records, **carvy, noise="local")
    assert [cell_text(each) for each in row] == [
        "743 ± 1.3 (79.0)",
        "",
        "",
        "731 ± 1.3 (79.0)",
        "",
        "",
    ]
    lines = table(records, "class-disjoint").splitlines()
    assert lines[2].split(" | ")[1:] == [
        "carvy",
        "743 ± 1.3 (79.0)",
        "",
        "",
        "731 ± 1.3 (79.0)",
        "",
        " |",
    ]
    assert len(lines) == 2 + 3
    picture = trade_off(records)
    assert (picture.epsilons, picture.areas) == ([2.0], [731.4])
    assert picture.levels == {"this learner": 743.0, "the paper": 686.02, "FLCert": 300.87}


def test_committed_tables_are_what_the_committed_records_give(tmp_path: Path) -> None:
    for path in COMMITTED.glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    study_figures = ["privacy-figures", "--out", str(tmp_path)]
    main([*study_figures, "--picture", str(tmp_path / "picture.png")])
    made = {path.name: path.read_text() for path in tmp_path.glob("*.md")}
    there = {path.name: path.read_text() for path in COMMITTED.glob("*.md")}
    assert made == there, "run: python -m reproduction.studies privacy-figures"
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_nothing_is_drawn_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["privacy-figures", "--out", str(tmp_path)])
    assert "holds no results; run 'privacy' first" in capsys.readouterr().err
