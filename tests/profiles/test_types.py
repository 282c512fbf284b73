"""Types as a value: numbering, round trip, warnings, dispatch."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import example as sample
from hypothesis import given
from hypothesis import strategies as st

from carvyfl.profiles.methods import PROFILE_METHODS, read_profiles
from carvyfl.profiles.types import ClientTypes, given_types, size_warnings


@sample(["", "\0"])
@given(
    st.lists(st.integers(-5, 5), min_size=1, max_size=30)
    | st.lists(st.text(max_size=3), min_size=1, max_size=30)
)
def test_given_types_keep_partition_and_order(labels):
    types = given_types(labels)
    ranks = {value: rank for rank, value in enumerate(sorted(set(labels)))}
    assert types.labels.tolist() == [ranks[label] for label in labels]
    assert types.local
    assert types.sizes.tolist() == [labels.count(value) for value in ranks]
    assert types.num_types == len(types.names) == len(ranks)


def example() -> ClientTypes:
    return ClientTypes(
        labels=np.array([1, -1, 0, 1]),
        method="bias-profile",
        local=True,
        names=("classes 0+1", "class 2"),
        warnings=("something looks odd",),
        set_aside={1: "holds NaN"},
    )


def test_json_round_trip():
    types = example()
    again = ClientTypes.from_json(json.loads(json.dumps(types.to_json())))
    assert again.labels.dtype == np.int64
    np.testing.assert_array_equal(again.labels, types.labels)
    for name in ("method", "local", "names", "warnings", "set_aside"):
        assert getattr(again, name) == getattr(types, name)


def test_printing_tells_types_sizes_and_trouble():
    text = str(example())
    assert "2 types of 4 clients" in text
    assert "classes 0+1" in text
    assert "client 1 set aside: holds NaN" in text
    assert "warning: something looks odd" in text
    assert "and 30 more" in str(given_types(np.arange(50)))


def sized(*sizes: int) -> str:
    return " | ".join(size_warnings(np.array(sizes), "TRY THIS"))


@pytest.mark.parametrize(
    ("sizes", "what"),
    [
        *((sizes, "") for sizes in [(20,) * 5, (30, 20, 25, 15, 20), (2,) * 5, (1,)]),
        ((21, 19, 20, 22, 18, 1), ""),
        ((40, 20, 20, 20), "under"),
        ((35, 20, 20, 20), "under"),
        ((20, 39, 21, 20), "under"),
        ((100,), "under"),
        ((100, 1), "under"),
        ((20, 20, 20, 20, 7, 6, 7), "over"),
        ((20, 20, 20, 20, 10, 10), "over"),
        ((1,) * 100, "over"),
        ((2, *(1,) * 50), "over"),
    ],
)
def test_merged_and_split_types_are_noticed(sizes, what):
    texts = sized(*sizes)
    assert f"{what}-segmented" in texts if what else texts == ""
    assert texts == "" or texts.endswith("TRY THIS")


def test_known_types_need_no_updates():
    silent = {name for name, entry in PROFILE_METHODS.items() if not entry.asks_clients}
    assert silent == {"given", "covariates", "oracle"}
    known = read_profiles("given", given=["b", "a", "b"])
    assert known.types.labels.tolist() == [1, 0, 1]
    assert known.vectors is None
    oracle = read_profiles("oracle", truth=np.array([4, 4, 2])).types
    assert oracle.labels.tolist() == [1, 1, 0]
    assert oracle.method == "oracle"
    assert oracle.local
