"""The committed study of end-to-end certificates: its pages follow from its records."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reproduction.studies.__main__ import main
from reproduction.studies.certified import summary

COMMITTED = Path(__file__).parents[3] / "results" / "end_to_end"


def records(part: str) -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in COMMITTED.glob(f"{part}-*.json")}


@pytest.mark.slow
def test_committed_tables_are_what_the_committed_records_give(tmp_path):
    for path in COMMITTED.glob("*.json"):
        shutil.copy(path, tmp_path)
    main(["present", "--out", str(tmp_path)])
    made = {path.name: path.read_text() for path in tmp_path.glob("*.md")}
    there = {path.name: path.read_text() for path in COMMITTED.glob("*.md")}
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
        found = summary({"worst": shares})
        covered += found["low"] <= 60 <= found["high"]
    assert covered / trials == pytest.approx(0.95, abs=0.015)
