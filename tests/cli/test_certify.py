"""`carvy certify`: votes in, guarantees out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.cli import assert_refused, assert_valid, carvy, naive_ca, naive_radius, process

RNG = np.random.default_rng(5)
LABELS = np.arange(40) % 3
# Half of the votes are right, the others random; two groups abstain here and there.
VOTES = np.where(RNG.random((9, 40)) < 0.5, LABELS, RNG.integers(0, 3, (9, 40)))
VOTES[3, ::7] = -1
VOTES[8, ::5] = -1


def npz(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "votes.npz", **arrays)
    return folder / "votes.npz"


def test_with_labels_the_numbers_are_those_of_the_definition(tmp_path: Path) -> None:
    answer = carvy("certify", npz(tmp_path, votes=VOTES, labels=LABELS), "--json").json
    assert_valid(answer, "certify")
    curve, area = naive_ca(VOTES, LABELS, 3)
    assert (answer["num_groups"], answer["num_inputs"]) == (9, 40)
    assert answer["collective"] is None
    assert answer["ca"] == pytest.approx(curve)
    assert answer["auc"] == pytest.approx(area)
    for low, value, high in zip(answer["ca_low"], answer["ca"], answer["ca_high"], strict=True):
        assert low <= value <= high
    sizes = np.bincount(LABELS)
    overall = np.array(answer["per_class_ca"]).T @ sizes / sizes.sum()
    assert overall == pytest.approx(np.array(curve))


def test_without_labels_every_input_has_prediction_and_radius(tmp_path: Path) -> None:
    answer = carvy("certify", npz(tmp_path, votes=VOTES), "--json").json
    assert_valid(answer, "certify")
    for i, (label, radius) in enumerate(zip(answer["prediction"], answer["radius"], strict=True)):
        count = [list(VOTES[:, i]).count(c) for c in range(3)]
        assert label == count.index(max(count))
        assert radius == naive_radius(VOTES[:, i], label, 3)
    for m, share in enumerate(answer["certified_share"]):
        assert share == pytest.approx(100 * sum(r >= m for r in answer["radius"]) / 40)
    assert "ca" not in answer


def test_csv_says_the_same_as_npz(tmp_path: Path) -> None:
    rows = ["label," + ",".join(f"g{g}" for g in range(9))]
    rows += [",".join(map(str, [LABELS[i], *VOTES[:, i]])) for i in range(40)]
    (tmp_path / "votes.csv").write_text("\n".join(rows) + "\n")
    from_csv = carvy("certify", tmp_path / "votes.csv", "--json").json
    assert from_csv == carvy("certify", npz(tmp_path, votes=VOTES, labels=LABELS), "--json").json
    (tmp_path / "other.csv").write_text("\n".join(rows).replace("label", "y_true"))
    asked = ("certify", tmp_path / "other.csv", "--json")
    assert_refused(carvy(*asked), "column 'y_true'", "name the truth with --labels-column")
    assert carvy(*asked, "--labels-column", "y_true").json == from_csv


def test_a_class_without_inputs_is_null(tmp_path: Path) -> None:
    path = npz(tmp_path, votes=np.zeros((3, 4), int), labels=np.zeros(4, int), num_classes=3)
    answer = carvy("certify", path, "--json").json
    assert_valid(answer, "certify")
    assert answer["per_class_ca"] == [[100.0, 100.0, 0.0], None, None]


def test_nobody_votes(tmp_path: Path) -> None:
    """A group that casts no vote on the second input, of two: nothing is certified there."""
    cast = np.array([[0, -1], [0, -1]])
    shown = carvy("certify", npz(tmp_path, votes=cast), "--json")
    assert "no group votes on 1 of 2 inputs" in shown.err
    assert_valid(shown.json, "certify")
    assert shown.json["prediction"] == [0, -1]
    assert shown.json["radius"] == [1, -1]
    assert shown.json["certified_share"] == [50, 50, 0]
    # Of two inputs of class 0, the second has no answer.
    assert carvy("certify", npz(tmp_path, votes=cast, labels=[0, 0]), "--json").json["ca"][0] == 50
    members = np.zeros((1, 2), int)  # a client in no group can change nothing
    shared = npz(tmp_path, votes=cast, labels=[0, 0], members=members)
    assert carvy("certify", shared, "--json").json["ca"] == [50, 50, 0]


@pytest.mark.slow
def test_a_person_reads_a_table(tmp_path: Path) -> None:
    path = npz(tmp_path, votes=VOTES, labels=LABELS)
    shown = process("certify", path, env={"COLUMNS": "80", "PATH": ""})
    assert shown.code == 0
    assert shown.err == ""
    lines = shown.out.splitlines()
    assert lines[0] == "Certified accuracy CA(m) in %: 9 groups, 40 inputs, 95 % interval"
    assert max(map(len, lines)) <= 80
    curve, area = naive_ca(VOTES, LABELS, 3)
    for m, value in enumerate(curve):
        assert any(f" {m} " in line and f" {value:.1f} " in line for line in lines)
    assert f"AUC {area:.1f}" in lines
    one_line = " ".join(shown.out.split())
    assert "the same as these groups give without their (at most m) malicious members" in one_line
    unlabelled = carvy("certify", npz(tmp_path, votes=VOTES))
    assert "without their (at most m) malicious members" in " ".join(unlabelled.out.split())


def test_collective_stands_beside_ca(tmp_path: Path) -> None:
    """The shares themselves are compared with brute force in tests/voting/test_collective.py."""
    path = npz(tmp_path, votes=VOTES, labels=LABELS)
    answer = carvy("certify", path, "--collective", "--json").json
    assert_valid(answer, "certify")
    together = answer["collective"]
    assert all(together["exact"])
    assert together["ca"][0] == answer["ca"][0]
    each = answer["ca"] + [0.0] * len(together["ca"])
    assert all(value >= alone for value, alone in zip(together["ca"], each, strict=False))
    shown = carvy("certify", path, "--collective")
    assert "collective" in shown.out
    assert "of this test set" in " ".join(shown.out.split())
    for more in ({}, {"labels": LABELS, "members": np.eye(9, dtype=int)}):
        path = npz(tmp_path, votes=VOTES, **more)
        assert_refused(carvy("certify", path, "--collective"), "--collective")


def test_what_is_no_votes_is_refused(tmp_path: Path) -> None:
    """All that may be wrong with a file is in tests/voting/test_files.py."""
    path = npz(tmp_path, votes=VOTES, num_classes=2)
    assert_refused(carvy("certify", path, "--json"), "votes.npz", "votes 2", "classes are 0 to 1")
    assert_refused(carvy("certify", npz(tmp_path, votes=VOTES, labels=np.arange(5))), "one label")
    (tmp_path / "votes.csv").write_text("label,a,b\n0,0,0\n1,1,x\n")
    assert_refused(carvy("certify", tmp_path / "votes.csv"), "votes.csv", "line 3", "'b'", "'x'")
    assert_refused(carvy("certify", tmp_path / "none.npz"), "none.npz", "No such file")
    assert_refused(carvy("certify", tmp_path), ".npz or .csv")
    path = npz(tmp_path, votes=VOTES, labels=LABELS)
    for confidence in (0, 1, "nan"):
        assert_refused(carvy("certify", path, "--confidence", confidence), "between 0 and 1")
