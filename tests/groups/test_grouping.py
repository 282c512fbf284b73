from __future__ import annotations

import itertools
import json
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carvyfl.core.errors import CarvyError
from carvyfl.groups.anticluster import anticluster, cluster_groups
from carvyfl.groups.basis import Basis
from carvyfl.groups.coins import coins_from_seed
from carvyfl.groups.grouping import Grouping
from carvyfl.groups.hashing import balanced_random, client_ids, hash_groups
from carvyfl.groups.methods import GROUPINGS, Beforehand, form_groups
from carvyfl.profiles.methods import Profiles
from carvyfl.profiles.types import ClientTypes

BASIS = Basis("the test says so", 1, 1, 2)
LABELS = st.lists(st.integers(-1, 6), min_size=1, max_size=80).filter(lambda v: max(v) >= 0)
SEEDS = st.integers(0, 2**32)


def grouping(assignment: Any, num_groups: int) -> Grouping:
    return Grouping(np.asarray(assignment), num_groups, "test", BASIS)


@st.composite
def groupings(draw: st.DrawFn) -> Grouping:
    num_groups = draw(st.integers(1, 8))
    rest = draw(st.lists(st.integers(-1, num_groups - 1), max_size=40))
    return grouping(draw(st.permutations([*range(num_groups), *rest])), num_groups)


def inferred(labels: Any, method: str = "xmeans") -> Profiles:
    array = np.asarray(labels)
    types = ClientTypes(
        labels=array,
        method=method,
        local=False,
        names=tuple(f"type {kind}" for kind in range(array.max() + 1)),
        set_aside=dict.fromkeys(np.flatnonzero(array == -1).tolist(), "unusable"),
    )
    return Profiles(types)


# --- the value ------------------------------------------------------------------------------


@given(groupings())
def test_groups_and_bench_partition_the_clients(value: Grouping) -> None:
    everybody = [*value.groups, value.benched]
    assert sorted(itertools.chain(*everybody)) == list(range(len(value.assignment)))
    assert value.sizes.tolist() == [len(members) for members in value.groups]
    for group, members in enumerate(value.groups):
        assert value.members(group).tolist() == members.tolist() == sorted(members.tolist())
        assert all(value.assignment[k] == group for k in members)


def test_diversity_of_a_worked_example() -> None:
    value = grouping([0, 0, 0, 1, 1, -1, 2], 3)
    types = [0, 1, 1, 2, 2, 3, -1]  # four types; one of them sits only on the bench
    assert value.diversity(types).tolist() == [2 / 4, 1 / 4, 0]
    assert value.mean_diversity(types) == pytest.approx(0.25)


@given(groupings(), st.data())
def test_diversity_counts_sets(value: Grouping, data: st.DataObject) -> None:
    size = len(value.assignment)
    types = data.draw(
        st.lists(st.integers(-1, 4), min_size=size, max_size=size).filter(lambda v: max(v) >= 0)
    )
    everything = {t for t in types if t >= 0}
    for group, share in enumerate(value.diversity(types)):
        held = {types[k] for k in range(size) if value.assignment[k] == group} - {-1}
        assert share == len(held) / len(everything)


@pytest.mark.parametrize(
    ("assignment", "num_groups", "message"),
    [
        ([0, 0, 2], 3, "group 1 of 3 has no client"),
        ([0, 1, 2], 2, "client 2 is assigned to group 2, but groups are 0 to 1"),
        ([0, -2, 1], 2, "client 1 is assigned to group -2"),
        ([0, 1], 3, "3 groups cannot be formed of 2 clients"),
        ([0, 1], 0, "0 groups cannot be formed"),
        ([-1, -1], 1, "group 0 of 1 has no client"),
        ([0.0, 1.0], 2, "whole numbers"),
        ([[0], [1]], 2, "whole numbers"),
    ],
)
def test_impossible_groupings_are_refused(assignment: Any, num_groups: int, message: str) -> None:
    with pytest.raises(CarvyError, match=message):
        grouping(assignment, num_groups)


@pytest.mark.parametrize("num_groups", range(5))
def test_exactly_the_partitions_without_an_empty_group_are_groupings(num_groups: int) -> None:
    for assignment in itertools.product(range(-3, 5), repeat=3):
        used = set(assignment) - {-1}
        if num_groups and used == set(range(num_groups)):
            assert grouping(assignment, num_groups).sizes.sum() == 3 - assignment.count(-1)
        else:
            with pytest.raises(CarvyError):
                grouping(assignment, num_groups)


@pytest.mark.parametrize("num_groups", range(5))
def test_groups_that_were_drawn_may_be_empty_but_have_numbers(num_groups: int) -> None:
    coins = coins_from_seed(1)
    for assignment in itertools.product(range(-3, 5), repeat=3):
        if 1 <= num_groups <= 3 and set(assignment) <= {-1, *range(num_groups)}:
            value = Grouping(np.array(assignment), num_groups, "test", BASIS, coins)
            assert [len(group) for group in value.groups] == [
                assignment.count(group) for group in range(num_groups)
            ]
        else:
            with pytest.raises(CarvyError):
                Grouping(np.array(assignment), num_groups, "test", BASIS, coins)


def test_types_must_fit() -> None:
    value = grouping([0, 1, 0], 2)
    with pytest.raises(CarvyError, match="2 types were given for 3 clients"):
        value.diversity([0, 1])
    with pytest.raises(CarvyError, match="no client has a type"):
        value.diversity([-1, -1, -1])
    with pytest.raises(CarvyError, match="no group 2"):
        value.members(2)


def test_a_grouping_does_not_change() -> None:
    mine = np.array([0, 1, 0])
    value = grouping(mine, 2)
    mine[0] = 1
    assert value.assignment.tolist() == [0, 1, 0]
    with pytest.raises(ValueError, match="read-only"):
        value.assignment[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        value.groups[0][0] = 1
    with pytest.raises(FrozenInstanceError):
        value.num_groups = 1  # type: ignore[misc]


def test_equal_groupings_are_equal() -> None:
    value = grouping([0, 1, 0], 2)
    assert value == grouping([0, 1, 0], 2)
    assert hash(value) == hash(grouping([0, 1, 0], 2))
    assert value != grouping([0, 1, 1], 2)
    assert value != Grouping(value.assignment, 2, "test", Basis("not said"))
    assert value != "test"


def test_the_table_says_who_is_where() -> None:
    value = grouping([0, 1, 0, -1, 0], 2)
    rows = [line.split() for line in value.table([0, 1, 0, 2, -1]).splitlines()]
    assert ["0", "3", "0", "2", "4", "?", "0×2"] in rows
    assert ["1", "1", "1", "1"] in rows
    assert ["none", "1", "3", "2"] in rows
    assert rows[-1] == ["mean", "diversity", "0.333"]
    plain = str(value)
    assert plain == value.table()
    assert "certified: given these groups, honest only, all honest; the test says so" in plain
    nothing = Grouping(value.assignment, 2, "test", Basis("the test says so", None))
    assert "certified: nothing; the test says so" in str(nothing)
    assert "diversity" not in plain
    assert "… 84 more" in str(grouping([0] * 100, 1))


# --- on disk --------------------------------------------------------------------------------


@given(groupings())
def test_json_round_trip(value: Grouping) -> None:
    text = json.dumps(value.to_json())
    again = Grouping.from_json(json.loads(text))
    assert again == value
    assert again.assignment.tolist() == value.assignment.tolist()
    assert (again.num_groups, again.method, again.basis) == (value.num_groups, "test", BASIS)


def test_save_and_load(tmp_path: Path) -> None:
    path = tmp_path / "groups.json"
    grouping([0, 0, 1], 2).save(path)
    value = grouping([0, 1, -1], 2)
    value.save(path)  # replaces the older one
    assert Grouping.load(path) == value
    assert [file.name for file in tmp_path.iterdir()] == ["groups.json"]


def test_a_cut_file_is_refused_wherever_it_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "groups.json"
    grouping([0, 1, -1], 2).save(path)
    whole = path.read_bytes().rstrip()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CarvyError, match=r"groups\.json"):
            Grouping.load(path)


@pytest.mark.parametrize(
    "change",
    [
        {"assignment": [0, 5, 1]},
        {"assignment": [0, 0, 0]},
        {"assignment": [0, 1.5, 1]},
        {"assignment": [0, 2**64 - 1, 1]},
        {"assignment": [0, [1], 1]},
        {"assignment": "001"},
        {"assignment": None},
        {"num_groups": 3},
        {"num_groups": "2"},
        {"num_groups": True},
        {"method": 7},
        {"basis": "given_groups"},
        {"basis": {"because": ""}},
        {"basis": {**BASIS.to_json(), "given_groups": "1"}},
        {"basis": {**BASIS.to_json(), "honest_only": 0}},
        {"basis": {**BASIS.to_json(), "honest_only": True}},
        {"basis": {**BASIS.to_json(), "all_honest": [2]}},
        {"basis": {**BASIS.to_json(), "because": None}},
    ],
)
def test_damaged_contents_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "groups.json"
    path.write_text(json.dumps(grouping([0, 1, 1], 2).to_json() | change))
    with pytest.raises(CarvyError, match=r"groups\.json") as caught:
        Grouping.load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("damaged", [b"\xff\xfe\x00", b"[]", b"null", b'"text"', b""])
def test_other_files_are_refused(tmp_path: Path, damaged: bytes) -> None:
    path = tmp_path / "groups.json"
    path.write_bytes(damaged)
    with pytest.raises(CarvyError, match=r"groups\.json"):
        Grouping.load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CarvyError, match=r"absent\.json: cannot read"):
        Grouping.load(tmp_path / "absent.json")


# --- the baselines --------------------------------------------------------------------------


@given(LABELS, st.data(), SEEDS)
def test_oracle_clustering_keeps_types_together(
    labels: list[int], data: st.DataObject, seed: int
) -> None:
    usable = sum(label >= 0 for label in labels)
    num_groups = data.draw(st.integers(1, usable))
    assignment = cluster_groups(labels, num_groups, seed)
    assert [g == -1 for g in assignment] == [label == -1 for label in labels]
    groups = [[labels[k] for k in np.flatnonzero(assignment == g)] for g in range(num_groups)]
    sizes = [len(group) for group in groups]
    assert max(sizes) - min(sizes) <= 1
    assert sum(len(set(group)) for group in groups) <= num_groups + len(set(labels) - {-1}) - 1
    for before, after in itertools.pairwise(groups):
        assert max(before) <= min(after)


def test_oracle_clustering_in_the_papers_setting() -> None:
    labels = np.arange(100) % 5
    value = grouping(cluster_groups(labels, 20, seed=0), 20)
    assert value.sizes.tolist() == [5] * 20
    assert value.diversity(labels).tolist() == [0.2] * 20
    assert (
        cluster_groups(labels, 20, seed=0).tolist() != cluster_groups(labels, 20, seed=1).tolist()
    )


@given(st.integers(1, 200), st.data(), SEEDS)
def test_balanced_groups_differ_by_one_at_most(
    num_clients: int, data: st.DataObject, seed: int
) -> None:
    num_groups = data.draw(st.integers(1, num_clients))
    sizes = np.bincount(balanced_random(num_clients, num_groups, seed))
    assert len(sizes) == num_groups
    assert set(sizes) <= {num_clients // num_groups, -(-num_clients // num_groups)}


def test_balanced_groups_are_uniform() -> None:
    # Four clients, two groups of two: client 0 is equally likely to sit with 1, 2 or 3.
    partners = [0, 0, 0]
    for seed in range(600):
        assignment = balanced_random(4, 2, seed)
        partners[int(np.flatnonzero(assignment[1:] == assignment[0])[0])] += 1
    assert all(abs(count - 200) < 60 for count in partners)  # five standard deviations


@pytest.mark.parametrize("number", [0, 5])
def test_baselines_refuse_impossible_numbers(number: int) -> None:
    with pytest.raises(CarvyError, match=f"^{number} groups"):
        balanced_random(4, number, 0)
    with pytest.raises(CarvyError, match=f"^{number} groups"):
        cluster_groups([0, 1, 0, 1, -1], number, 0)


def test_single_is_one_group() -> None:
    assert form_groups("single", num_clients=3, seed=0).assignment.tolist() == [0, 0, 0]


# --- by name --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "types", "whole_runs"),
    [
        ("carvy", "xmeans", False),
        ("carvy", "given", True),
        ("carvy", "oracle", True),
        ("flcert", "xmeans", True),
        ("cluster", "xmeans", True),
        ("balanced", "xmeans", True),
        ("single", "xmeans", True),
    ],
)
def test_every_method_says_what_its_certificate_rests_on(
    method: str, types: str, whole_runs: bool
) -> None:
    labels = np.arange(20) % 4
    number = 1 if method == "single" else 5
    value = form_groups(
        method,
        num_clients=20,
        seed=0,
        profiles=inferred(labels, types),
        num_groups=number,
        beforehand=Beforehand(truth=labels),
    )
    assert (value.method, value.num_groups) == (method, number)
    beyond = ["honest_only", "all_honest"] if whole_runs else []
    assert value.basis.readings == ["given_groups", *beyond]
    assert value.basis.because
    assert method in GROUPINGS


def test_names_lead_to_the_plain_functions() -> None:
    labels = np.array([0, 1, 1, -1, 0, 1, 2])
    every: dict[str, Any] = {"num_clients": 7, "seed": 3, "profiles": inferred(labels)}
    carvy = form_groups("carvy", **every)
    assert carvy.assignment.tolist() == anticluster(labels, seed=3).tolist()
    assert carvy.num_groups == 3
    assert carvy.benched.tolist() == [3]
    set_to_four = form_groups("carvy", **every, num_groups=4).assignment.tolist()
    assert set_to_four == anticluster(labels, seed=3, num_groups=4).tolist()
    ids = [5, 6, 7, 8, 9, 10, 11]
    known = Beforehand(ids=ids)
    flcert = form_groups("flcert", num_clients=7, seed=3, beforehand=known, num_groups=2)
    assert flcert.assignment.tolist() == hash_groups(ids, 2).tolist()
    simulated = form_groups("flcert", num_clients=7, seed=3, num_groups=2)
    assert simulated.assignment.tolist() == hash_groups(client_ids(7, 3), 2).tolist()


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("carvi", {}, "did you mean 'carvy'"),
        ("carvy", {}, "needs the clients' types"),
        ("carvy", {"profiles": inferred([0, 1])}, "`profiles` has 2 entries, but there are 4"),
        ("cluster", {"num_groups": 2}, "needs the clients' true types"),
        (
            "cluster",
            {"num_groups": 2, "beforehand": Beforehand([0, 1, 0])},
            "`truth` has 3 entries",
        ),
        ("cluster", {"beforehand": Beforehand([0, 1, 0, 1])}, "give num_groups"),
        ("flcert", {}, "give num_groups"),
        ("flcert", {"num_groups": 2, "beforehand": Beforehand(ids=[1, 2, 3])}, "`ids` has 3"),
        ("balanced", {}, "give num_groups"),
        ("single", {"num_groups": 2}, "one group, not 2"),
    ],
)
def test_what_is_missing_is_named(method: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(CarvyError, match=message):
        form_groups(method, num_clients=4, seed=0, **options)


def test_the_table_of_a_hundred_thousand_groups_is_short() -> None:
    everybody = np.arange(100_000)
    lines = grouping(everybody, 100_000).table(everybody).splitlines()
    assert len(lines) < 210
    assert "… and 99,800 more groups" in lines
    assert len(grouping(np.zeros(100_000, np.int64), 1).table(everybody)) < 1000
