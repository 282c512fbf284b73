"""The paper's numbers, ours in the same layout, and the verdicts on its claims."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reproduction.numbers import as_text, numbers
from reproduction.published import DATASETS, LEVELS, METHODS, SAMPLES, group_counts, paper
from reproduction.records import Record
from reproduction.summaries import frame
from reproduction.tests.trials import a_little_of_everything, asr_trial, ca_trial, types_trial
from reproduction.verdicts import Verdict, verdicts

# The paper's numbers: the text and the tables of the paper agree with each other.


@pytest.mark.parametrize(
    ("dataset", "over_flcert", "over_cluster"), [("mnist", 11.1, 143), ("fashion-mnist", 14.9, 296)]
)
def test_asr_areas_give_the_improvements_of_the_text(dataset, over_flcert, over_cluster):
    area = paper()["asr_auc"][dataset]
    assert round(100 * (area["carvy"] / area["flcert"] - 1), 1) == over_flcert
    assert round(100 * (area["carvy"] / area["cluster"] - 1)) == over_cluster


@pytest.mark.parametrize("dataset", DATASETS)
def test_sweep_tables_are_whole_and_say_what_the_text_says(dataset):
    counts = group_counts()
    assert len(counts) == 18
    assert counts == sorted(set(counts))
    table = paper()["ca_auc_by_groups"][dataset]
    assert set(table) == set(METHODS)
    assert all(len(column) == 18 for column in table.values())
    best = {method: counts[column.index(max(column))] for method, column in table.items()}
    assert best == {"carvy": 20, "flcert": 20, "cluster": 1}
    # A single group's curve is CA(0), then zero: half of a percentage.
    assert all(column[0] <= 50 for column in table.values())


def test_mnist_50_as_the_text_has_it():
    small = paper()["ca_mnist_50"]
    assert round(small["ca0"]["carvy"] / small["ca0"]["cluster"], 1) == 3.4
    assert list(small["largest_m_with_ca_over"]) == list(map(str, LEVELS))


# Our numbers.


def leaves(data: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(data, dict):
        for key, value in data.items():
            yield from leaves(value, (*path, key))
    else:
        yield path, data


def at(data: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        data = data[key]
    return data


@pytest.mark.parametrize("trials", [[], a_little_of_everything()], ids=["nothing", "something"])
def test_every_number_of_the_paper_has_its_place_in_ours(trials):
    ours = json.loads(as_text(numbers(frame(trials), "paper")))
    # What the text says only roughly is judged, not measured in its place.
    measured = {name: part for name, part in paper().items() if name != "claims"}
    for path, printed in leaves(measured):
        value = at(ours, path)
        if isinstance(printed, list):
            assert len(value) == len(printed), path
        elif isinstance(printed, str):
            assert isinstance(value, str), path
        else:
            assert value is None or isinstance(value, int | float), path
            assert trials or value is None, path


def test_numbers_by_hand():
    trials: list[Record] = [
        ca_trial("carvy", (90, 80, 0), groups=20, seed=0),  # 85 + 40
        ca_trial("carvy", (92, 60, 0), groups=20, seed=1),  # 76 + 30
        ca_trial("carvy", (90, 85, 61, 0), samples=50, seed=0),
        ca_trial("carvy", (86, 77, 63, 0), samples=50, seed=1),
        asr_trial("flcert", [0] * 7 + [80] * 14, hit=[8] * 21, seed=0),
        asr_trial("flcert", [0] * 7 + [60] * 14, hit=[10] * 21, seed=1),
        asr_trial("carvy", [0] * 7 + [20] * 14, seed=0),
        asr_trial("carvy", [0] * 7 + [20] * 14, seed=1),
        types_trial([0, 0], [0, 1], samples=50, seed=0),
        types_trial([0, 1], [0, 1], samples=50, seed=1),
        ca_trial("carvy", (50, 0), dataset="fashion-mnist", num_groups=40, exact=False, seed=0),
        ca_trial("carvy", (54, 0), dataset="fashion-mnist", num_groups=25, exact=False, seed=1),
    ]
    ours = numbers(frame(trials), "paper")
    at_20 = group_counts().index(20)
    sweep = ours["ca_auc_by_groups"]["mnist"]
    assert sweep["carvy"][at_20] == pytest.approx((125 + 106) / 2)
    assert sweep["sd"]["carvy"][at_20] == pytest.approx(19 / 2**0.5, abs=1e-4)
    assert sweep["trials"]["carvy"][at_20] == 2
    assert sweep["carvy"][0] is None
    assert sweep["trials"]["carvy"][0] == 0
    small = ours["ca_mnist_50"]
    assert small["ca0"]["carvy"] == 88
    assert small["ca0"]["sd"]["carvy"] == pytest.approx(8**0.5, abs=1e-4)
    # The mean curve is 88, 81, 62, 0.
    tolerated = small["largest_m_with_ca_over"]
    assert [tolerated[str(level)]["carvy"] for level in LEVELS] == [1, 2, 2, 2]
    assert tolerated["80"]["trial_by_trial"]["carvy"] == 0.5
    # 100 seven times and 20 or 40 fourteen times, the step between them in the middle.
    assert ours["asr_auc"]["mnist"]["flcert"] == pytest.approx(600 + (60 + 70) / 2 + 30 * 13)
    assert ours["asr_auc"]["mnist"]["cluster"] is None
    assert ours["asr_reduction_vs_flcert"]["6"]["mnist"] == 0
    assert ours["asr_reduction_vs_flcert"]["8"]["mnist"] == 50
    assert ours["asr_reduction_vs_flcert"]["8"]["sd"]["mnist"] == pytest.approx(
        20 / 2**0.5, abs=1e-4
    )
    assert ours["flcert_groups_hit_at_m10"] == {
        "mean": 9,
        "sd": pytest.approx(2**0.5, abs=1e-4),
        "trials": 2,
    }
    failures = ours["type_estimation_failures_of_10"]
    assert failures["mnist"]["50"] == 1
    assert failures["mnist"]["trials"] == {"50": 2, "100": 0, "200": 0, "500": 0}
    assert failures["groups_when_failed"] == 32.5
    assert ours["max_sd_of_ca_fashion_mnist"]["500"]["carvy"] == pytest.approx(8**0.5, abs=1e-4)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(JSON)
def test_text_is_json(data: Any):
    assert json.loads(as_text(data)) == data


def test_a_list_of_numbers_is_one_line():
    assert '"carvy": [1, 2.5, null]' in as_text({"mnist": {"carvy": [1, 2.5, None]}})


# Verdicts: each claim confirmed by data like the paper's, and not by data against it.

SETTINGS = [(dataset, samples) for dataset in DATASETS for samples in SAMPLES]


def flat(height: float, length: int) -> list[float]:
    """Return a curve that keeps its height up to ``length`` clients."""
    return [height] * (length + 1) + [0.0]


def curves(method: str, height: float, lengths: list[int]) -> list[Record]:
    """Return a trial for every length in every setting."""
    return [
        ca_trial(method, flat(height, length), dataset=dataset, samples=samples, seed=seed)
        for dataset, samples in SETTINGS
        for seed, length in enumerate(lengths)
    ]


def swept(best: int, *datasets: str) -> list[Record]:
    return [
        ca_trial("carvy", (50 + 10 * (g == best), 0), groups=g, num_groups=g, dataset=dataset)
        for dataset in datasets
        for g in (10, 20, 25)
    ]


def attacked(method: str, held: int, dataset: str = "mnist") -> Record:
    """Return a trial whose ASR jumps from 0 to 100 % after ``held`` clients."""
    return asr_trial(method, [0.0 if m <= held else 100.0 for m in range(21)], dataset=dataset)


def lost(method: str, held: int) -> Record:
    """Return the same for groups that are lost, if they vote for the target; else ASR is 0."""
    curve = [0.0 if m <= held else 100.0 for m in range(21)]
    return asr_trial(method, [0.0] * 21, lost=curve, attack="badnets-scaled")


def against(method: str, curve: list[int], other: str, others: list[int]) -> list[Record]:
    return [*curves(method, 90, curve), *curves(other, 90, others)]


def under_attack(accuracy: float, promised: float, **more: Any) -> list[Record]:
    return [asr_trial("carvy", [0], accuracy=[accuracy], promised=[promised], **more)]


CASES: list[tuple[str, list[Record], str]] = [
    ("twice", against("carvy", [9], "flcert", [4]), "confirmed"),
    ("twice", against("carvy", [6], "flcert", [4]), "partly"),
    ("twice", against("carvy", [4], "flcert", [4]), "not confirmed"),
    ("twice", against("carvy", [1], "flcert", [0]), "confirmed"),
    ("twice", against("carvy", [0], "flcert", [0]), "not confirmed"),
    ("twice", curves("carvy", 90, [9]), "no data"),
    ("spread", against("carvy", [9, 9], "flcert", [4, 5]), "confirmed"),
    ("spread", against("carvy", [8, 9], "flcert", [4, 4]), "not confirmed"),
    ("spread", against("carvy", [9], "flcert", [4]), "no data"),
    ("best number", swept(20, *DATASETS), "confirmed"),
    ("best number", [*swept(20, "mnist"), *swept(25, "fashion-mnist")], "partly"),
    ("best number", swept(10, *DATASETS), "not confirmed"),
    ("11 to 15", [attacked("carvy", 9), attacked("flcert", 7)], "confirmed"),
    ("scaled model", [lost("carvy", 9), lost("flcert", 7)], "confirmed"),
    ("scaled model", [lost("carvy", 7), lost("flcert", 9)], "not confirmed"),
    ("scaled model", [attacked("carvy", 9), attacked("flcert", 7)], "no data"),
    ("11 to 15", [lost("carvy", 9), lost("flcert", 7)], "no data"),
    ("11 to 15", [attacked("carvy", 11), attacked("flcert", 10)], "partly"),
    ("11 to 15", [attacked("carvy", 7), attacked("flcert", 7)], "not confirmed"),
    ("far below FLCert", against("cluster", [0], "flcert", [4]), "confirmed"),
    ("far below FLCert", against("cluster", [2], "flcert", [4]), "not confirmed"),
    ("far below CARVY-FL", [attacked("cluster", 2), attacked("carvy", 9)], "confirmed"),
    ("far below CARVY-FL", [attacked("cluster", 5), attacked("carvy", 9)], "not confirmed"),
    ("no certified accuracy", curves("single", 95, [0]), "confirmed"),
    ("no certified accuracy", curves("single", 95, [1]), "not confirmed"),
    ("One to three", [attacked("single", 2)], "confirmed"),
    ("One to three", [attacked("single", 3)], "not confirmed"),
    ("One to three", [attacked("single", 2), attacked("single", 3, "fashion-mnist")], "partly"),
    ("never below", under_attack(70, 70), "confirmed"),
    ("never below", under_attack(69.9, 70), "not confirmed"),
    ("never below", under_attack(80, 70, kept=False), "not confirmed"),
    # Any attack and placement counts here, not only the paper's.
    ("never below", under_attack(5, 6, attack="alie", placement="worst"), "not confirmed"),
]


def verdict_on(words: str, trials: list[Record]) -> Verdict:
    (one,) = [verdict for verdict in verdicts(frame(trials)) if words in verdict.claim]
    return one


@pytest.mark.parametrize(("words", "trials", "expected"), CASES)
def test_verdict(words, trials, expected):
    assert verdict_on(words, trials).verdict == expected


def test_spread_below_in_half_of_the_settings_is_partly():
    trials = [*curves("carvy", 90, [9, 9]), *curves("flcert", 90, [4, 5])]
    mixed = [r for r in trials if r.dataset == "mnist"]
    mixed += [r for r in curves("carvy", 90, [8, 9]) if r.dataset != "mnist"]
    mixed += [r for r in curves("flcert", 90, [4, 4]) if r.dataset != "mnist"]
    assert verdict_on("spread", mixed).verdict == "partly"


def test_nothing_is_no_data_for_every_claim():
    assert {verdict.verdict for verdict in verdicts(frame([]))} == {"no data"}


def test_the_numbers_behind_a_verdict_are_told():
    # Of FLCert's trials one is far from the others, which the median is not moved by.
    flcert = [attacked("flcert", held) for held in (7, 7, 16)]
    gain = verdict_on("11 to 15", [attacked("carvy", 9), *flcert])
    assert gain.why == ("MNIST: 950.0 against 1050.0, medians 950.0 against 750.0 (+26.7 %)")
    assert gain.ours == "-9.5 % (MNIST)"
    twice = verdict_on("twice", [*curves("carvy", 70, [9]), *curves("flcert", 90, [4])])
    # Over 80 % CARVY-FL tolerates none here, at the other three levels nine each.
    assert twice.ours == "1.69 times over all settings"
    assert "MNIST 50: 0 : 4, 9 : 4, 9 : 4, 9 : 4" in twice.why


def test_a_sweep_without_g_20_says_nothing_about_it():
    trials: list[Record] = [ca_trial("carvy", (50, 0), groups=g, num_groups=g) for g in (10, 25)]
    assert verdict_on("best number", trials).verdict == "no data"
