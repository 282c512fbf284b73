from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carvyfl.core.errors import CarvyError
from carvyfl.groups.hashing import client_ids, hash_groups, named_ids, training_id

IDS = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=60, unique=True)


def by_hand(number: int) -> int:
    eight_bytes = bytes((number >> shift) & 0xFF for shift in range(56, -1, -8))
    return int(hashlib.blake2b(eight_bytes, digest_size=8).hexdigest(), 16)


def test_a_worked_example() -> None:
    ids = [7, 2**64 - 1, 0, 12345678901234567890, 42, 43, 44, 45, 46, 47]
    num_groups = 3
    expected = {number: by_hand(number) % num_groups for number in ids}
    for group, value in enumerate(sorted(by_hand(number) for number in ids)[:num_groups]):
        (first,) = [number for number in ids if by_hand(number) == value]
        expected[first] = group
    for kind in (list, lambda numbers: np.array(numbers, dtype=np.uint64)):
        groups = hash_groups(kind(ids), num_groups)
        assert groups.tolist() == [expected[number] for number in ids]


@given(IDS, st.data())
def test_no_group_is_empty_and_only_g_clients_are_pre_assigned(
    ids: list[int], data: st.DataObject
) -> None:
    num_groups = data.draw(st.integers(1, len(ids)))
    assignment = hash_groups(ids, num_groups)
    assert set(assignment.tolist()) == set(range(num_groups))
    moved = [k for k, i in enumerate(ids) if assignment[k] != by_hand(i) % num_groups]
    assert len(moved) <= num_groups
    bound = sorted(by_hand(i) for i in ids)[num_groups - 1]
    assert all(by_hand(ids[k]) <= bound for k in moved)


@given(IDS, st.data())
def test_the_order_of_the_list_does_not_matter(ids: list[int], data: st.DataObject) -> None:
    num_groups = data.draw(st.integers(1, len(ids)))
    other = data.draw(st.permutations(ids))
    first = dict(zip(ids, hash_groups(ids, num_groups), strict=True))
    assert first == dict(zip(other, hash_groups(other, num_groups), strict=True))


def test_simulated_ids_are_distinct_and_stay() -> None:
    ids = client_ids(1000, seed=3)
    assert ids.dtype == np.uint64
    assert len(set(ids.tolist())) == 1000
    assert (np.diff(ids) == 1).all()  # they count up, modulo 2**64
    np.testing.assert_array_equal(ids[:100], client_ids(100, seed=3))
    assert not set(ids.tolist()) & set(client_ids(1000, seed=4).tolist())
    assert (training_id("partition 4", 3), training_id("a key", 3)) == (4, *named_ids(["a key"], 3))


def test_simulated_groups_look_random() -> None:
    # 10 seeds × 400 clients in 20 groups; without pre-assignment the statistic is chi-square with
    # 19 degrees of freedom (mean 19, standard deviation 6.2), and the mean of ten has 1.95.
    sizes = np.array([np.bincount(hash_groups(client_ids(400, s), 20)) for s in range(10)])
    statistic = ((sizes - 20) ** 2 / 20).sum(axis=1).mean()
    assert 10 < statistic < 28
    assert len(np.unique(sizes, axis=0)) == 10


@pytest.mark.parametrize(
    ("ids", "num_groups", "message"),
    [
        ([1, 2, 1], 2, "client id 1 appears twice"),
        ([1, -5, 2], 2, "client id -5 does not fit"),
        ([1, 2**64, 2], 2, "does not fit 64 bits"),
        ([1, 2.5, 2], 2, "whole numbers"),
        ([1, "a", 2], 2, "whole numbers"),
        ([1], 2, "2 groups cannot be formed of 1 clients"),
        ([], 2, "2 groups cannot be formed of 0 clients"),
        ([1, 2], 0, "0 groups"),
    ],
)
def test_mistakes_are_named(ids: list[int], num_groups: int, message: str) -> None:
    with pytest.raises(CarvyError, match=message):
        hash_groups(ids, num_groups)
