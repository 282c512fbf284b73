from __future__ import annotations

import itertools
import json
from collections.abc import Callable
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
from carvyfl.groups.coins import Coins, coins_from_seed
from carvyfl.groups.grouping import Grouping
from carvyfl.groups.hashing import balanced_random, client_ids, hash_groups
from carvyfl.groups.methods import GROUPINGS, Beforehand, GroupingMethod, form_groups
from carvyfl.profiles.methods import Profiles
from carvyfl.profiles.types import ClientTypes
from support.registries import registered

BASIS = Basis("the test says so", 1, 1, 2)
LABELS = st.lists(st.integers(-1, 6), min_size=1, max_size=80).filter(lambda v: max(v) >= 0)
SEEDS = st.integers(0, 2**32)


def grouping(assignment: Any, num_groups: int, coins: Coins | None = None) -> Grouping:
    return Grouping(np.asarray(assignment), num_groups, "test", BASIS, coins)


@st.composite
def groupings(draw: st.DrawFn) -> Grouping:
    num_groups = draw(st.integers(1, 8))
    rest = draw(st.lists(st.integers(-1, num_groups - 1), max_size=40))
    return grouping(draw(st.permutations([*range(num_groups), *rest])), num_groups)


def inferred(labels: Any, method: str = "xmeans") -> Profiles:
    array = np.asarray(labels)
    aside = dict.fromkeys(np.flatnonzero(array == -1).tolist(), "unusable")
    names = tuple(f"type {kind}" for kind in range(array.max() + 1))
    return Profiles(ClientTypes(array, method, False, names, set_aside=aside))


# --- the value ------------------------------------------------------------------------------


@given(groupings(), st.data())
def test_a_grouping_is_a_partition_and_its_diversity_counts_sets(
    value: Grouping, data: st.DataObject
) -> None:
    size = len(value.assignment)
    assert sorted(itertools.chain(*value.groups, value.benched)) == list(range(size))
    assert value.sizes.tolist() == [len(members) for members in value.groups]
    types = data.draw(
        st.lists(st.integers(-1, 4), min_size=size, max_size=size).filter(lambda v: max(v) >= 0)
    )
    everything = {t for t in types if t >= 0}
    shares = value.diversity(types)
    for group, members in enumerate(value.groups):
        assert value.members(group).tolist() == members.tolist() == sorted(members.tolist())
        assert all(value.assignment[k] == group for k in members)
        assert shares[group] == len({types[k] for k in members} - {-1}) / len(everything)
    assert value.mean_diversity(types) == pytest.approx(sum(shares) / len(shares))
    again = Grouping.from_json(json.loads(json.dumps(value.to_json())))
    assert again == value
    assert again.assignment.tolist() == value.assignment.tolist()


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("num_groups", range(5))
def test_exactly_the_partitions_are_groupings(num_groups: int, drawn: bool) -> None:
    """No group may be empty, unless the groups were drawn; every number is one of a group."""
    coins = coins_from_seed(1) if drawn else None
    for assignment in itertools.product(range(-3, 5), repeat=3):
        used, numbers = set(assignment) - {-1}, set(range(num_groups))
        if 1 <= num_groups <= 3 and (used <= numbers if drawn else used == numbers):
            value = grouping(assignment, num_groups, coins)
            counts = [assignment.count(group) for group in range(num_groups)]
            assert [len(group) for group in value.groups] == value.sizes.tolist() == counts
        else:
            with pytest.raises(CarvyError):
                grouping(assignment, num_groups, coins)


def test_a_grouping_does_not_change_and_equals_its_like() -> None:
    mine = np.array([0, 1, 0])
    value, like = grouping(mine, 2), grouping([0, 1, 0], 2)
    mine[0] = 1
    assert (value, hash(value)) == (like, hash(like))
    for array in (value.assignment, value.groups[0], value.sizes, value.benched):
        assert not array.flags.writeable
    with pytest.raises(FrozenInstanceError):
        value.num_groups = 1  # type: ignore[misc]
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
    assert "\n    0     3  0 2 4\n" in plain
    assert "certified: given these groups, honest only, all honest; the test says so" in plain
    nothing = Grouping(value.assignment, 2, "test", Basis("the test says so", None))
    assert "certified: nothing; the test says so" in str(nothing)
    assert "diversity" not in plain
    assert value.table([0] * 5).endswith("mean diversity 1.000")
    assert "…" not in str(grouping([0] * 16, 1)) + str(grouping(np.arange(200), 200))
    assert "… 84 more" in str(grouping([0] * 100, 1))
    everybody = np.arange(100_000)
    lines = grouping(everybody, 100_000).table(everybody).splitlines()
    assert len(lines) < 210
    assert "… and 99,800 more groups" in lines
    assert len(grouping(np.zeros(100_000, np.int64), 1).table(everybody)) < 1000


VALUE = grouping([0, 1, 0], 2)


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (lambda: grouping([0, 0, 2], 3), "group 1 of 3 has no client"),
        (lambda: grouping([0, 1, 2], 2), "client 2 is assigned to group 2, but groups are 0 to 1"),
        (lambda: grouping([0, -2, 1], 2), "client 1 is assigned to group -2"),
        (lambda: grouping([0, 1], 3), "3 groups cannot be formed of 2 clients"),
        (lambda: grouping([0, 1], 0), "0 groups cannot be formed"),
        (lambda: grouping([-1, -1], 1), "group 0 of 1 has no client"),
        (lambda: grouping([0.0, 1.0], 2), "whole numbers"),
        (lambda: grouping([[0], [1]], 2), "whole numbers"),
        (lambda: grouping(np.array([0, 2**64 - 1, 1], np.uint64), 2), "numbers, not uint64"),
        (lambda: grouping([False, True], 2), "numbers, not bool"),
        (lambda: VALUE.diversity([0, 1]), "2 types were given for 3 clients"),
        (lambda: VALUE.diversity([-1, -1, -1]), "no client has a type"),
        (lambda: VALUE.diversity([0, -2, 1]), "types run from 0 up, .* but one is -2"),
        (lambda: VALUE.members(2), "no group 2; groups are 0 to 1"),
        (lambda: VALUE.members(-1), "no group -1"),
        (lambda: balanced_random(4, 0, 0), "^0 groups"),
        (lambda: balanced_random(4, 5, 0), "^5 groups"),
        (lambda: cluster_groups([0, 1, 0, 1, -1], 5, 0), "^5 groups"),
    ],
)
def test_impossible_groupings_are_refused(refused: Callable[[], Any], message: str) -> None:
    with pytest.raises(CarvyError, match=message):
        refused()


# --- on disk --------------------------------------------------------------------------------


def test_a_file_is_replaced_and_refused_wherever_it_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "groups.json"
    grouping([0, 0, 1], 2).save(path)
    value = grouping([0, 1, -1], 2)
    value.save(path)  # replaces the older one
    assert Grouping.load(path) == value
    assert [file.name for file in tmp_path.iterdir()] == ["groups.json"]
    whole = path.read_bytes().rstrip()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CarvyError, match=r"groups\.json"):
            Grouping.load(path)
    with pytest.raises(CarvyError, match=r"absent\.json: cannot read"):
        Grouping.load(tmp_path / "absent.json")


@pytest.mark.parametrize(
    "damage",
    [
        *(
            {"assignment": a}
            for a in (
                [0, 5, 1],
                [0, 0, 0],
                [0, 1.5, 1],
                [0, 2**64 - 1, 1],
                [0, [1], 1],
                "001",
                None,
            )
        ),
        *({"num_groups": number} for number in (3, "2", True)),
        {"method": 7},
        {"basis": "given_groups"},
        {"basis": {"because": ""}},
        {"basis": {**BASIS.to_json(), "given_groups": "1"}},
        {"basis": {**BASIS.to_json(), "honest_only": 0}},
        {"basis": {**BASIS.to_json(), "honest_only": True}},
        {"basis": {**BASIS.to_json(), "all_honest": [2]}},
        {"basis": {**BASIS.to_json(), "because": None}},
        *(b"\xff\xfe\x00", b"[]", b"null", b'"text"', b""),
    ],
)
def test_damaged_contents_are_refused(tmp_path: Path, damage: dict[str, Any] | bytes) -> None:
    path = tmp_path / "groups.json"
    if isinstance(damage, bytes):
        path.write_bytes(damage)
    else:
        path.write_text(json.dumps(grouping([0, 1, 1], 2).to_json() | damage))
    with pytest.raises(CarvyError, match=r"groups\.json") as caught:
        Grouping.load(path)
    assert "\n" not in str(caught.value)


# --- the baselines --------------------------------------------------------------------------


@given(LABELS, st.data(), SEEDS)
def test_oracle_clustering_keeps_types_together(
    labels: list[int], data: st.DataObject, seed: int
) -> None:
    num_groups = data.draw(st.integers(1, sum(label >= 0 for label in labels)))
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
    one, other = (cluster_groups(labels, 20, seed=seed) for seed in (0, 1))
    assert grouping(one, 20).sizes.tolist() == [5] * 20
    assert grouping(one, 20).diversity(labels).tolist() == [0.2] * 20
    assert one.tolist() != other.tolist()


@given(st.integers(1, 200), st.data(), SEEDS)
def test_balanced_groups_differ_by_one_at_most(n: int, data: st.DataObject, seed: int) -> None:
    num_groups = data.draw(st.integers(1, n))
    sizes = np.bincount(balanced_random(n, num_groups, seed))
    assert len(sizes) == num_groups
    assert set(sizes) <= {n // num_groups, -(-n // num_groups)}


def test_balanced_groups_are_uniform() -> None:
    # Four clients, two groups of two: client 0 is equally likely to sit with 1, 2 or 3.
    partners = [0, 0, 0]
    for seed in range(600):
        assignment = balanced_random(4, 2, seed)
        partners[int(np.flatnonzero(assignment[1:] == assignment[0])[0])] += 1
    assert all(abs(count - 200) < 60 for count in partners)  # five standard deviations


# --- by name --------------------------------------------------------------------------------


def test_names_lead_to_the_plain_functions() -> None:
    labels, ids = np.array([0, 1, 1, -1, 0, 1, 2]), [5, 6, 7, 8, 9, 10, 11]
    every: dict[str, Any] = {"num_clients": 7, "seed": 3, "profiles": inferred(labels)}
    carvy = form_groups("carvy", **every)
    assert carvy.assignment.tolist() == anticluster(labels, seed=3).tolist()
    assert (carvy.num_groups, carvy.benched.tolist()) == (3, [3])
    expected = {
        "carvy": anticluster(labels, seed=3, num_groups=2),
        "flcert": hash_groups(client_ids(7, 3), 2),
        "balanced": balanced_random(7, 2, 3),
    }
    for method, assignment in expected.items():
        assert form_groups(method, **every, num_groups=2).assignment.tolist() == assignment.tolist()
    named = form_groups("flcert", **every, num_groups=2, beforehand=Beforehand(ids=ids))
    assert named.assignment.tolist() == hash_groups(ids, 2).tolist()
    assert form_groups("single", num_clients=3, seed=0).assignment.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("carvi", {}, "did you mean 'carvy'"),
        ("carvy", {}, "needs the clients' types"),
        ("carvy", {"profiles": inferred([0, 1])}, "`profiles` has 2 entries, but there are 4"),
        ("slots", {"num_groups": 2}, "needs the clients' types"),
        ("slots", {"profiles": inferred([0, 1, 0, 1])}, "give num_groups"),
        ("cluster", {"num_groups": 2}, "needs the clients' true types"),
        ("cluster", {"beforehand": Beforehand([0, 1, 0])}, "`truth` has 3 entries"),
        ("cluster", {"beforehand": Beforehand([0, 1, 0, 1])}, "give num_groups"),
        ("flcert", {}, "give num_groups"),
        ("flcert", {"beforehand": Beforehand(ids=[1, 2, 3])}, "`ids` has 3 entries"),
        ("balanced", {}, "give num_groups"),
        ("single", {"num_groups": 2}, "one group, not 2"),
    ],
)
def test_what_is_missing_is_named(method: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(CarvyError, match=message):
        form_groups(method, num_clients=4, seed=0, **options)


@pytest.mark.parametrize("assigned", [[0, 1, 0], [0, 1, 0, 1, 0], []])
def test_a_method_that_leaves_clients_out_is_refused(assigned: list[int]) -> None:
    """Fewer groups than clients, or more, than there are: -1 is how to leave a client out."""
    method = GroupingMethod("own", "own", "mine", lambda _: assigned, needs_groups=False)
    with registered(GROUPINGS, method), pytest.raises(CarvyError, match="but there are 4; give ev"):
        form_groups("own", num_clients=4, seed=0)
