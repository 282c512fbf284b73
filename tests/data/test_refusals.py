"""What is refused on the way in: rules, sizes, partitions, indices and a user's own data."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch.utils.data import Dataset, IterableDataset

from carvyfl.core.errors import CarvyError
from carvyfl.data import partitions
from carvyfl.data.clients import Client, Federation, Samples, as_inputs
from carvyfl.data.own_data import (
    checked_federation,
    federation_from_arrays,
    federation_from_indices,
)
from carvyfl.data.partitions import PARTITIONS, PartitionRule, build_federation
from carvyfl.data.rules import (
    Dealing,
    Partition,
    class_disjoint,
    classes_per_client,
    dirichlet,
    feature_shift,
    label_bias,
    quantity_skew,
)
from support.federations import Listed, numbered
from support.registries import registered

NAN = float("nan")
DATA = numbered((200,) * 4)
GAP = replace(DATA, train=DATA.train.take(np.flatnonzero(DATA.train.labels != 2)))
SHIFTED = replace(DATA, train=DATA.train.take(np.flatnonzero(DATA.train.labels > 0)))
ROW, LABEL = np.zeros((4, 2), np.float32), np.array([0, 1, 0, 1])
EVEN = np.full((3, 4), 2)


class Streamed(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([([0.0], 0)])


class Unmeasured(Dataset[Any]):
    def __getitem__(self, index: int) -> Any:
        return [0.0], 0


def rule(split: Callable[..., Any], *sizes: int, **params: Any) -> Callable[[], Any]:
    return lambda: split(*sizes, np.random.default_rng(0), **params)


def build(name: str = "iid", dataset: Any = DATA, **changes: Any) -> Callable[[], Federation]:
    sizes = {"num_clients": 5, "samples": 20, "seed": 7, "validation": 8, **changes}
    return lambda: build_federation(dataset, name, **sizes)


def returning(result: Any) -> Callable[[], Federation]:
    """Build with a rule of somebody else's that returns this for three clients, four classes."""

    def refused() -> Federation:
        with registered(PARTITIONS, PartitionRule("own", "mine", lambda *_: result)):
            return build("own", num_clients=3)()

    return refused


def indices(*lists: Any) -> Callable[[], Federation]:
    return lambda: federation_from_indices(DATA, lists)


def arrays(*data: Any, **options: Any) -> Callable[[], Federation]:
    return lambda: federation_from_arrays(data, **options)


def labels(first: Any, *others: Any) -> Callable[[], Federation]:
    return arrays(Listed(*(([0.0], label) for label in (first, *others))))


def new(inputs: Any, kind: str, shape: tuple[int, ...] = (2,)) -> Callable[[], Any]:
    return lambda: as_inputs(inputs, shape, kind)


REFUSALS: list[tuple[Callable[[], Any], str]] = [
    # rules
    (rule(class_disjoint, 10, 10, 25), "25 samples cannot be split equally over 2"),
    (rule(class_disjoint, 10, 10, 30, classes_per_type=3), "10 classes cannot be split into types"),
    (rule(class_disjoint, 4, 10, 20), "4 clients cannot cover 5 types; use at least 5"),
    (rule(class_disjoint, 4, 10, 20, classes_per_type=0), "classes_per_type must be a whole"),
    (rule(dirichlet, 4, 10, 20, alpha=0), "alpha must be a finite number above 0, not 0"),
    (rule(dirichlet, 4, 10, 20, sigma=0), "sigma must be a finite number above 0, not 0"),
    (rule(feature_shift, 4, 10, 20), "4 clients cannot cover 5 shifts; use at least 5 clients"),
    (rule(feature_shift, 4, 10, 20, shifts="invert"), "shifts must be a list of names, such as"),
    (rule(feature_shift, 4, 10, 20, shifts=[]), "shifts must be a list of names"),
    (rule(feature_shift, 4, 10, 20, shifts=[3]), "shift must be a name, not 3"),
    (rule(feature_shift, 4, 10, 20, shifts=["inverted"]), "unknown shift .* mean 'invert'"),
    (rule(feature_shift, 4, 10, 20, shifts=["noise"] * 2), "named twice: noise, noise"),
    (rule(feature_shift, 5, 10, 20, alpha=-1), "alpha must be a finite number above 0"),
    (rule(classes_per_client, 4, 10, 20, classes=11), "cannot hold 11 classes of 10"),
    (rule(classes_per_client, 4, 10, 2, classes=3), "2 samples are too few for 3 classes"),
    (rule(classes_per_client, 4, 10, 2, classes=1.5), "classes must be a whole number"),
    (rule(quantity_skew, 4, 10, 9), "9 samples are too few for one of each of 10"),
    (rule(quantity_skew, 4, 10, 20, sigma=-1), "sigma must be a finite number above 0"),
    (rule(label_bias, 9, 10, 20), "9 clients cannot form a group for each of 10 classes; use at"),
    *[(rule(label_bias, 10, 10, 20, q=q), "q must be") for q in (1.01, -0.1, NAN, "half", True)],
    # sizes
    *[
        (build(name, **{size: value}), f"{size} must be a whole number of at least 1")
        for name in ("iid", "label-bias")
        for size in ("num_clients", "samples")
        for value in (0, -1, 2.5, True, "4", None)
    ],
    (build("dirichlt"), "unknown partition 'dirichlt'; did you mean 'dirichlet'"),
    (build(alpha=1), "'iid' has no parameter 'alpha'; it takes none"),
    (build("dirichlet", rng=1), "'dirichlet' has no parameter 'rng'; it takes alpha"),
    (build(validation=-1), "validation must be a whole number of at least 0"),
    *[
        (build(validation_share=share), "validation_share must be at least 0 and below 1")
        for share in (-0.1, 1, NAN, "x", None)
    ],
    *[
        (build("iid", **{size: 10**30}), f"{size} must be .* at most 1,000,000,000, not 1000")
        for size in ("num_clients", "samples", "validation")
    ],
    (build(seed=10**5000), "seed must be a whole number of at most 38 digits"),
    (build("class-disjoint", num_clients=4, samples=400), "client 0 wants 200 training samples of "
     "class 0, but numbered has 180 "),
    (build(dataset=GAP), "class 2, of which numbered has none at all; .*gap"),
    *[
        (build(name, dataset=SHIFTED), "labels start at 1.* number the classes 0, 1, 2, …")
        for name in PARTITIONS
    ],
    # what a user's own rule returns
    (returning(Partition(EVEN - 3, None)), "own' gives client 0 -1 samples of class 0; give 0"),
    (returning(Partition(EVEN[:2], None)), r"counts must be whole .* \(3, 4\).*\(2, 4\)"),
    (returning(Partition(EVEN + 0.5, None)), "counts must be whole .*, not float64"),  # type: ignore[arg-type]
    (returning(Partition(EVEN * np.nan, None)), "counts must be whole numbers"),  # type: ignore[arg-type]
    (returning(Partition([[1], [1, 2]], None)), "counts: no array can be made"),  # type: ignore[arg-type]
    (returning(Partition(EVEN * [[1], [0], [1]], None)), "own' leaves client 1 without any sample"),
    (returning(Partition(EVEN, np.zeros(2, np.int64))), "types must be 3 whole numbers"),
    (returning(Partition(EVEN, np.zeros(3))), "types must be 3 whole numbers"),  # type: ignore[arg-type]
    (returning(Partition(EVEN, None, ("invert",) * 2)), "must be 3 names, one per client; got 2"),
    (returning((EVEN, None)), "partition 'own' must return a Partition, not tuple"),
    (returning(Dealing(np.full((3, 3), 1 / 3), None)), r"shares must be numbers .*\(3, 3\)"),
    (returning(Dealing(np.full((3, 4), "x"), None)), "shares must be numbers"),
    (returning(Dealing(np.full((3, 4), 0.5), None)), "shares of class 0 add up to 1.5"),
    (returning(Dealing(np.full((3, 4), np.nan), None)), "shares of class 0 add up to nan"),
    (returning(Dealing(np.array([[-1.0], [1], [1]]) * np.ones(4), None)), "or one is negative"),
    # a user's own partition
    (indices([0, 1], [2, 800]), "client 1: index 800 is outside the 800 training samples of numb"),
    (indices([-1]), "client 0: index -1 is outside"),
    (indices([0, 1, 1]), "client 0: index 1 appears more than once"),
    (indices([0.5]), "client 0: indices must be a list of whole numbers"),
    (indices([0], [[1], [2, 3]]), "client 1: indices: no array can be made of them"),
    (indices([0, 1], []), "client 1: has no data"),
    (indices(), "at least one client"),
    # a user's own arrays
    (lambda: federation_from_arrays(7), "give one entry per client, not int"),  # type: ignore[arg-type]
    (arrays(), "at least one client"),
    (arrays(ROW, LABEL), "client 0 is a single array; give the data client by client"),
    (arrays((ROW, LABEL), (ROW[:0], LABEL[:0])), "client 1: has no data"),
    (arrays(Client(Samples(ROW[:0], LABEL[:0]), Samples(ROW, LABEL))), "client 0: has no data"),
    (arrays((ROW, LABEL), (ROW[:, :1], LABEL)), r"client 1: inputs are float32 of shape \(1,\)"),
    (arrays((ROW, LABEL), (ROW.astype(np.uint8), LABEL)), "client 1: inputs are uint8"),
    (arrays((ROW, LABEL), (ROW + np.nan, LABEL)), "client 1: input 0 holds NaN"),
    (arrays((ROW, LABEL[:3])), "client 0: inputs of shape"),
    (arrays((ROW, LABEL), num_classes=1), "client 0: labels run from 0 to 1"),
    (arrays((ROW, LABEL + 1), num_classes=2), "subtract 1 from the labels"),
    (arrays((ROW, LABEL - 1), num_classes=2), "leave out the 2 samples with labels below 0"),
    (arrays((ROW, LABEL + 2000)), "a label is 2001, but there are only 4 samples"),
    (arrays((ROW, LABEL), num_classes=0), "num_classes must be a whole number"),
    (arrays((ROW, LABEL), types=[0, 1]), "types must be 1 whole numbers"),
    (arrays((ROW, LABEL), types=[0.5]), "types must be 1 whole numbers"),
    (arrays((ROW, LABEL), types=[[0], [1, 2]]), "types: no array can be made of them"),
    (arrays((ROW, LABEL), std=0.0), "std above 0"),
    (arrays((ROW, LABEL), mean=NAN), "must be finite"),
    (arrays((ROW, LABEL), mean="0"), "mean '0' and std 1.0 must be finite numbers"),
    (arrays((ROW, LABEL), validation_share="x"), "validation_share must be .*, not 'x'"),
    (arrays(([[1, 2], [3]], [0, 1])), "client 0: inputs: no array can be made of them"),
    (arrays((ROW, [[0], [1, 2], 0, 1])), "client 0: labels: no array can be made of them"),
    (arrays(3), "client 0: expected .inputs, labels. or a torch data set, got int"),
    (lambda: checked_federation(arrays((ROW, LABEL), num_classes=2)(), 3), "federation has 2"),
    # a torch data set
    (labels(0.5, 1.5), "client 0: labels must be whole numbers"),
    (labels(0, "dog"), "labels"),
    (labels(-1), "labels run from -1 to -1"),
    (labels([0, 1]), "give one label per input"),
    (labels([0, 1], 1), "labels: no array can be made"),
    (arrays(Listed(([0.0], 0), ([0.0, 1.0], 1))), "inputs: no array can be made"),
    (arrays(Listed(([0.0], 0), ([0.0], 0, 7))), r"item 1 of the data set is not a pair \(input, l"),
    (arrays(Listed({"x": [0.0], "y": 0})), "item 0 of the data set is not a pair"),
    (arrays(Listed()), "client 0: the data set is empty"),
    (arrays(Streamed()), "Streamed has no length or positions; give a data set with __len__"),
    (arrays(Unmeasured()), "Unmeasured has no length"),
    # inputs to vote on
    (new(ROW[:, :1], "float32"), r"inputs: expected shape \(n, 2\), not \(4, 1\)"),
    (new(ROW[:0], "float32"), "no inputs; give at least one"),
    (new(ROW.astype(np.uint8), "float32"), "trained on floats, not on bytes"),
    (new(ROW + 1.01, "uint8"), "whole numbers from 0 to 255 or floats from 0 to 1"),
    (new(ROW.astype(int) + 256, "uint8"), "whole numbers from 0 to 255"),
    (new(ROW.astype(bool), "uint8"), "pixels must be"),
    (new(np.full((1, 2), "x"), "uint8"), "are not numbers"),
]  # fmt: skip


@pytest.mark.parametrize(("refused", "message"), REFUSALS)
def test_refusals_are_one_line(refused: Callable[[], Any], message: str) -> None:
    with pytest.raises(CarvyError, match=message) as caught:
        refused()
    assert "\n" not in str(caught.value)


def test_more_clients_than_memory_are_refused_before_anything_is_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sample has 4 bytes of input and 8 of label; half of the memory is for the clients."""
    monkeypatch.setattr(partitions, "memory", lambda: 2 * 10**9)
    with pytest.raises(CarvyError, match=r"1,000,000,000 clients with 20 .* samples of 12 bytes"):
        build(num_clients=10**9)()
    with pytest.raises(CarvyError, match=r"take .* GB, .* memory is 1\.0 GB; use at") as caught:
        build(num_clients=10**6)()
    (fits,) = re.findall(r"at most ([\d,]+) clients", str(caught.value))
    assert 10**9 / 4000 < int(fits.replace(",", "")) < 10**9 / (80 * 12)
    with pytest.raises(CarvyError, match=r"clients and 10,000,000 classes have more counts than"):
        partitions.split_classes("iid", num_clients=9, num_classes=10**7, samples=1, seed=0)
