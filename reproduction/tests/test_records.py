"""Records of a reproduction: what is written is read again, and nothing else is let in."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import statistics
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carvyfl.core.errors import CarvyError
from reproduction import records
from reproduction.exhibits import duration, provenance, seeds_text
from reproduction.records import CaRecord, Record
from reproduction.summaries import asr_auc, frame, largest_m, mean_curve, stats, where
from reproduction.tests.trials import (
    a_little_of_everything,
    asr_trial,
    ca_trial,
    select,
    types_trial,
)

PERCENT = st.integers(0, 10_000).map(lambda hits: hits / 100)
FALLING = st.lists(PERCENT, min_size=1, max_size=12).map(
    lambda points: (*sorted((p for p in points if p), reverse=True), 0.0)
)


def test_every_kind_survives_a_file(tmp_path):
    written = a_little_of_everything()
    records.add(tmp_path / "paper.jsonl", written)
    assert records.load(tmp_path / "paper.jsonl") == written


def test_files_keep_four_decimals(tmp_path):
    records.add(tmp_path / "r.jsonl", [ca_trial("carvy", (100 / 3, 0))])
    line = json.loads((tmp_path / "r.jsonl").read_text())
    assert line["ca"] == [33.3333, 0]


def add_one_by_one(path: Path, method: str, start: Any) -> None:
    start.wait()
    for seed in range(40):
        records.add(path, [ca_trial(method, (50, 0), seed=seed)])


@pytest.mark.slow
def test_commands_side_by_side_lose_none_of_each_others_records(tmp_path):
    path, context = tmp_path / "r.jsonl", multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["reproduction.summaries", "reproduction.exhibits"])
    methods = ("carvy", "flcert", "cluster")
    start = context.Barrier(len(methods))
    commands = [context.Process(target=add_one_by_one, args=(path, m, start)) for m in methods]
    for command in commands:
        command.start()
    for command in commands:
        command.join()
    measured = select(records.load(path), CaRecord)
    assert {(r.method, r.seed) for r in measured} == set(itertools.product(methods, range(40)))


def test_a_later_record_replaces_an_earlier_one(tmp_path):
    path = tmp_path / "r.jsonl"
    other = [
        ca_trial("carvy", (80, 0), seed=1),
        ca_trial("carvy", (81, 0), groups=20),
        ca_trial("flcert", (82, 0)),
        asr_trial("carvy", [1], attack="badnets"),
        asr_trial("carvy", [1], attack="alie"),
        asr_trial("carvy", [1], attack="badnets", placement="worst"),
        types_trial([0], [0]),
        types_trial([0], [0], samples=50),
    ]
    records.add(path, [ca_trial("carvy", (50, 0)), *other])
    records.add(path, [ca_trial("carvy", (90, 0))])
    loaded = records.load(path)
    assert len(loaded) == 9
    assert [r.ca[0] for r in select(loaded, CaRecord, method="carvy", seed=0, groups=None)] == [90]
    # A file that was only ever appended to is read the same way.
    path.write_text("".join(json.dumps(records.to_json(r)) + "\n" for r in [*other, *other]))
    assert records.load(path) == other


def test_no_file_is_no_records(tmp_path):
    assert records.load(tmp_path / "none.jsonl") == []


def damaged(**change: Any) -> dict[str, Any]:
    return records.to_json(ca_trial("carvy", (90, 0))) | change


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (damaged(kind="acc"), "Invalid value 'acc' - at `$.kind`"),
        ({"preset": "paper"}, "missing required field `kind`"),
        ([1], "Expected `object`, got `array`"),
        (damaged(colour="red"), "unknown field `colour`"),
        ({k: v for k, v in damaged().items() if k != "auc"}, "missing required field `auc`"),
        (damaged(seed="0"), "Expected `int`, got `str` - at `$.seed`"),
        (damaged(seed=True), "Expected `int`, got `bool` - at `$.seed`"),
        (damaged(types_exact=1), "Expected `bool | null`, got `int` - at `$.types_exact`"),
        (damaged(ca=[90, None]), "Expected `float`, got `null` - at `$.ca[1]`"),
        (damaged(auc=float("nan")), "JSON is malformed"),
        (damaged(ca=[]), "does not end with zero"),
        (damaged(ca=[90, 5]), "does not end with zero"),
        (damaged(environment="H200"), "got `str` - at `$.environment`"),
        (records.to_json(asr_trial("carvy", [1, 2])) | {"asr": [1]}, "not as long as its 'm'"),
        (records.to_json(asr_trial("carvy", [1, 2])) | {"m": [1, 0]}, "does not rise"),
        (records.to_json(types_trial([0], [0])) | {"points": [[1]]}, "length 2 - at `$.points[0]`"),
        (records.to_json(types_trial([0], [0])) | {"true": []}, "differ in length"),
    ],
)
def test_a_damaged_record_is_named_with_its_line(tmp_path, data, message):
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps(damaged()) + "\n" + json.dumps(data) + "\n")
    with pytest.raises(CarvyError, match=r"r\.jsonl, line 2: ") as caught:
        records.load(path)
    assert message in str(caught.value)
    assert "remove this line to measure its trial again" in str(caught.value)


def test_half_a_line_is_an_error(tmp_path):
    (tmp_path / "r.jsonl").write_text(json.dumps(damaged())[:-20])
    with pytest.raises(CarvyError, match="line 1"):
        records.load(tmp_path / "r.jsonl")


def test_a_file_that_is_no_text_is_an_error_that_names_the_line(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_bytes(json.dumps(damaged()).encode() + b"\n\xff\xfe\x00bad\n")
    with pytest.raises(CarvyError, match=r"r\.jsonl, line 2: JSON is malformed.*; .*remove"):
        records.load(path)


@given(st.lists(FALLING, min_size=1, max_size=5))
def test_mean_ca_against_the_statistics_module(curves: list[tuple[float, ...]]):
    mean = mean_curve(frame(ca_trial("carvy", c, seed=s) for s, c in enumerate(curves)))
    assert list(mean.index) == list(range(max(map(len, curves))))
    for m in mean.index:
        values = [curve[m] if m < len(curve) else 0.0 for curve in curves]
        assert mean["mean"][m] == pytest.approx(statistics.fmean(values))
        if len(curves) > 1:
            assert mean["sd"][m] == pytest.approx(statistics.stdev(values), abs=1e-9)
        else:
            assert np.isnan(mean["sd"][m])


@given(FALLING, PERCENT)
def test_largest_m_by_trying_every_m(curve: tuple[float, ...], level: float):
    over = [m for m, value in enumerate(curve) if value > level]
    assert largest_m(pd.Series(curve), level) == max(over, default=-1)


@given(st.lists(PERCENT, min_size=21, max_size=30))
def test_asr_area_by_adding_trapezoids(asr: list[float]):
    area = sum(((100 - a) + (100 - b)) / 2 for a, b in itertools.pairwise(asr[:21]))
    assert asr_auc(asr_trial("carvy", asr)) == pytest.approx(area)


def test_asr_area_of_few_points():
    # 0 → 100 % over 10 clients, then 100 %: a triangle of 10 × 100 / 2.
    assert asr_auc(asr_trial("single", [0, 100, 100], m=[0, 10, 20])) == pytest.approx(500)
    assert np.isnan(asr_auc(asr_trial("single", [0, 100], m=[0, 10])))
    assert np.isnan(asr_auc(asr_trial("single", [0, 100], m=[1, 20])))
    lost = asr_trial("carvy", [0] * 21, lost=[100] * 21)
    assert asr_auc(lost) == pytest.approx(2000)
    assert asr_auc(lost, "asr_if_lost_votes_target") == pytest.approx(0)


def test_trials_under_attack_are_averaged_where_all_have_them():
    trials = [
        asr_trial("carvy", [0, 10, 40], m=[0, 1, 3]),
        asr_trial("carvy", [2, 5, 20], m=[0, 2, 3], seed=1),
    ]
    assert mean_curve(frame(trials), "asr")["mean"].to_dict() == {0: 1, 3: 30}
    assert mean_curve(frame([]), "asr").empty
    apart = [asr_trial("carvy", [0], m=[m], seed=m) for m in (1, 2)]
    assert mean_curve(frame(apart), "asr").empty


def test_spread_of_few_values():
    assert stats(frame([]), "ca0", "method").empty
    trials = [ca_trial("single", (3, 0)), *(ca_trial("carvy", (c, 0), seed=c) for c in (1, 3))]
    spread = stats(frame(trials), "ca0", "method")
    assert spread["mean"].to_dict() == {"single": 3.0, "carvy": 2.0}
    assert spread["trials"].to_dict() == {"single": 1, "carvy": 2}
    assert np.isnan(spread["sd"]["single"])
    assert spread["sd"]["carvy"] == pytest.approx(2**0.5)


def test_provenance_names_everything():
    trials: list[Record] = [ca_trial("carvy", (90, 0), seed=seed) for seed in (0, 1, 2, 5)]
    text = provenance(frame(trials))
    for part in ("python -m reproduction all", "abc1234", "one core", "2.13", "loop", "fp32"):
        assert part in text
    assert "seeds 0–2, 5; 4 trials; 2 min" in text
    bare = msgspec.structs.replace(trials[0], seconds=None, environment={})
    assert "time not taken" in provenance(frame([bare]))
    assert "5 trials; 2 min of training for 4 of them" in provenance(frame([*trials, bare]))
    assert "commit unknown" in provenance(frame([bare]))


def test_seeds_and_times_in_words():
    assert seeds_text([3, 1, 2, 7, 7]) == "1–3, 7"
    assert [duration(s) for s in (5, 150, 5400)] == ["5 s", "2 min", "1.5 h"]


def test_where_takes_a_kind_and_fields():
    types = where(frame(a_little_of_everything()), kind="types")
    assert set(types["kind"]) == {"types"}
    assert len(where(types, dataset="mnist", samples=50)) == 2
