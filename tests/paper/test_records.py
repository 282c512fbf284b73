"""Records of a reproduction: what is written is read again, and nothing else is let in."""

from __future__ import annotations

import dataclasses
import itertools
import json
import multiprocessing
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carvyfl.core.errors import CarvyError
from carvyfl.paper import records
from carvyfl.paper.records import CaRecord, Record, TypesRecord, select
from carvyfl.paper.summaries import (
    asr_auc,
    duration,
    largest_m,
    mean_attacked,
    mean_ca,
    provenance,
    seeds_text,
    spread,
)
from support.trials import a_little_of_everything, asr_trial, ca_trial, types_trial

PERCENT = st.integers(0, 10_000).map(lambda hits: hits / 100)
FALLING = st.lists(PERCENT, min_size=1, max_size=12).map(
    lambda points: (*sorted((p for p in points if p), reverse=True), 0.0)
)


def test_every_kind_survives_a_file(tmp_path: Path):
    written = a_little_of_everything()
    records.add(tmp_path / "paper.jsonl", written)
    assert records.load(tmp_path / "paper.jsonl") == written


def test_files_keep_four_decimals(tmp_path: Path):
    records.add(tmp_path / "r.jsonl", [ca_trial("carvy", (100 / 3, 0))])
    line = json.loads((tmp_path / "r.jsonl").read_text())
    assert line["ca"] == [33.3333, 0]


def add_one_by_one(path: Path, method: str, start: Any) -> None:
    start.wait()
    for seed in range(40):
        records.add(path, [ca_trial(method, (50, 0), seed=seed)])


@pytest.mark.slow
def test_commands_side_by_side_lose_none_of_each_others_records(tmp_path: Path):
    path, spawning = tmp_path / "r.jsonl", multiprocessing.get_context("spawn")
    methods = ("carvy", "flcert", "cluster")
    start = spawning.Barrier(len(methods))
    commands = [spawning.Process(target=add_one_by_one, args=(path, m, start)) for m in methods]
    for command in commands:
        command.start()
    for command in commands:
        command.join()
    found = select(records.load(path), CaRecord)
    assert {(r.method, r.seed) for r in found} == set(itertools.product(methods, range(40)))


def test_a_later_record_replaces_an_earlier_one(tmp_path: Path):
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
    found = records.load(path)
    assert len(found) == 9
    assert [r.ca[0] for r in select(found, CaRecord, method="carvy", seed=0, groups=None)] == [90]
    # A file that was only ever appended to is read the same way.
    path.write_text("".join(json.dumps(records.to_json(r)) + "\n" for r in [*other, *other]))
    assert records.load(path) == other


def test_no_file_is_no_records(tmp_path: Path):
    assert records.load(tmp_path / "none.jsonl") == []


def damaged(**change: Any) -> dict[str, Any]:
    return records.to_json(ca_trial("carvy", (90, 0))) | change


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (damaged(kind="acc"), "unknown kind of record 'acc'"),
        ({"preset": "paper"}, "unknown kind of record 'None'"),
        ([1], "is not an object"),
        (damaged(colour="red"), "colour is missing or unknown"),
        ({k: v for k, v in damaged().items() if k != "auc"}, "auc is missing or unknown"),
        (damaged(seed="0"), "its 'seed' is '0'"),
        (damaged(seed=True), "its 'seed' is 'True'"),
        (damaged(types_exact=1), "its 'types_exact' is '1'"),
        (damaged(ca=[90, None]), "its 'ca' is"),
        (damaged(auc=float("nan")), "its 'auc' is 'nan'"),
        (damaged(ca=[]), "does not end with zero"),
        (damaged(ca=[90, 5]), "does not end with zero"),
        (damaged(environment="H200"), "its 'environment' is"),
        (records.to_json(asr_trial("carvy", [1, 2])) | {"asr": [1]}, "not as long as its 'm'"),
        (records.to_json(asr_trial("carvy", [1, 2])) | {"m": [1, 0]}, "does not rise"),
        (records.to_json(types_trial([0], [0])) | {"points": [[1]]}, "its 'points' is"),
        (records.to_json(types_trial([0], [0])) | {"true": []}, "differ in length"),
    ],
)
def test_a_damaged_record_is_named_with_its_line(tmp_path: Path, data: Any, message: str):
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps(damaged()) + "\n" + json.dumps(data) + "\n")
    with pytest.raises(CarvyError, match=r"r\.jsonl, line 2: ") as caught:
        records.load(path)
    assert message in str(caught.value)


def test_half_a_line_is_an_error(tmp_path: Path):
    (tmp_path / "r.jsonl").write_text(json.dumps(damaged())[:-20])
    with pytest.raises(CarvyError, match="line 1"):
        records.load(tmp_path / "r.jsonl")


def test_a_file_that_is_no_text_is_an_error_that_names_the_line(tmp_path: Path):
    path = tmp_path / "r.jsonl"
    path.write_bytes(json.dumps(damaged()).encode() + b"\n\xff\xfe\x00bad\n")
    with pytest.raises(CarvyError, match=r"r\.jsonl, line 2: is not UTF-8 text; .*remove"):
        records.load(path)


@given(st.lists(FALLING, min_size=1, max_size=5))
def test_mean_ca_against_the_statistics_module(curves: list[tuple[float, ...]]):
    found = mean_ca([ca_trial("carvy", c, seed=s) for s, c in enumerate(curves)])
    assert found is not None
    assert len(found.mean) == max(map(len, curves))
    for m in range(len(found.mean)):
        values = [curve[m] if m < len(curve) else 0.0 for curve in curves]
        assert found.mean[m] == pytest.approx(statistics.fmean(values))
        if len(curves) > 1:
            assert found.sd is not None
            assert found.sd[m] == pytest.approx(statistics.stdev(values), abs=1e-9)
        else:
            assert found.sd is None


@given(FALLING, PERCENT)
def test_largest_m_by_trying_every_m(curve: tuple[float, ...], level: float):
    over = [m for m, value in enumerate(curve) if value > level]
    assert largest_m(curve, level) == max(over, default=-1)


@given(st.lists(PERCENT, min_size=21, max_size=30))
def test_asr_area_by_adding_trapezoids(asr: list[float]):
    area = sum(((100 - a) + (100 - b)) / 2 for a, b in itertools.pairwise(asr[:21]))
    assert asr_auc(asr_trial("carvy", asr)) == pytest.approx(area)


def test_asr_area_of_few_points():
    # 0 → 100 % over 10 clients, then 100 %: a triangle of 10 × 100 / 2.
    assert asr_auc(asr_trial("single", [0, 100, 100], m=[0, 10, 20])) == pytest.approx(500)
    assert asr_auc(asr_trial("single", [0, 100], m=[0, 10])) is None
    assert asr_auc(asr_trial("single", [0, 100], m=[1, 20])) is None
    lost = asr_trial("carvy", [0] * 21, lost=[100] * 21)
    assert asr_auc(lost) == pytest.approx(2000)
    assert asr_auc(lost, "asr_if_lost_votes_target") == pytest.approx(0)


def test_trials_under_attack_are_averaged_where_all_have_them():
    trials = [
        asr_trial("carvy", [0, 10, 40], m=[0, 1, 3]),
        asr_trial("carvy", [2, 5, 20], m=[0, 2, 3], seed=1),
    ]
    found = mean_attacked(trials, "asr")
    assert found is not None
    assert found.m.tolist() == [0, 3]
    assert found.mean.tolist() == [1, 30]
    assert mean_attacked([], "asr") is None
    apart = [asr_trial("carvy", [0], m=[m], seed=m) for m in (1, 2)]
    assert mean_attacked(apart, "asr") is None


def test_spread_of_few_values():
    assert spread([]) is None
    one = spread([3.0])
    assert one is not None
    assert (one.mean, one.sd, one.n) == (3.0, None, 1)
    two = spread([1.0, 3.0])
    assert two is not None
    assert two.sd == pytest.approx(2**0.5)


def test_provenance_names_everything():
    trials: list[Record] = [ca_trial("carvy", (90, 0), seed=seed) for seed in (0, 1, 2, 5)]
    text = provenance(trials)
    for part in ("carvy reproduce all", "abc1234", "one core", "2.13", "loop", "fp32"):
        assert part in text
    assert "seeds 0–2, 5; 4 trials; 2 min" in text
    bare = dataclasses.replace(trials[0], seconds=None, environment={})
    assert "time not taken" in provenance([bare])
    assert "5 trials; 2 min of training for 4 of them" in provenance([*trials, bare])
    assert "commit unknown" in provenance([bare])


def test_seeds_and_times_in_words():
    assert seeds_text([3, 1, 2, 7, 7]) == "1–3, 7"
    assert [duration(s) for s in (5, 150, 5400)] == ["5 s", "2 min", "1.5 h"]


def test_select_takes_a_kind_and_fields():
    found = a_little_of_everything()
    assert all(isinstance(r, TypesRecord) for r in select(found, TypesRecord))
    assert len(select(found, TypesRecord, dataset="mnist", samples=50)) == 2
