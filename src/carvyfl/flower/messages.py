"""What goes over the wire, and how either side reads what the other sent.

Everything is numbers in Flower's records; nothing is ever unpickled. A reader says
what is wrong with a message instead of failing on it: whoever sent it may be malicious.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from carvyfl.core.errors import printable
from carvyfl.core.messages import fault
from carvyfl.learning.one_shot import sums as one_shot
from carvyfl.learning.one_shot.sums import Counts, Sums
from carvyfl.learning.scaffold.round import Update

HELLO, PROFILE, ROUND = "query.hello", "train.profile", "train.round"
"""The kinds of message: who are you, train one epoch for Step 1, train a round of Step 3."""
COUNTS, SUMS = "query.counts", "query.sums"
"""Those of one-shot learning: count your samples for Step 1, send your sums for Step 3."""

HEADER_BYTES = 1024
"""More than an array of numbers needs for the description of itself."""

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Order:
    """What the server asks of a member in a round.

    Attributes
    ----------
    group, client_id, round_
        The member's group, its id, from which its randomness is derived, and the round,
        counted from 0.
    train
        False asks only for the accuracy of the model, once the last round is made.
    weights, server_control
        w and c of the group, float32 of shape (P,); c is only sent for training.
    client_control
        The member's own c_i where it may have lost it; None where it keeps it.
    """

    group: int
    client_id: int
    round_: int
    train: bool
    weights: Tensor
    server_control: Tensor
    client_control: Tensor | None = None


@dataclass(frozen=True)
class Answer:
    """What a member sends back.

    Attributes
    ----------
    update
        w_i⁺ and c_i⁺; None if it was not asked to train, or has lost its c_i.
    accuracy
        Of the model it received on its validation data, 0…1; NaN without such data.
    lost
        Whether it cannot train because its control variate is gone.
    """

    update: Update | None
    accuracy: float
    samples: int
    lost: bool = False


def write_order(order: Order) -> RecordDict:
    """Make a message of an order."""
    vectors = {"weights": order.weights}
    if order.train:
        vectors["server_control"] = order.server_control
        if order.client_control is not None:
            vectors["client_control"] = order.client_control
    head = {"group": order.group, "id": order.client_id, "round": order.round_}
    return _message(vectors, {**head, "train": order.train})


def read_order(content: RecordDict, size: int) -> Order | str:
    """Read an order for a model of ``size`` weights, or say what is wrong with it."""
    head, arrays = _parts(content)
    train = head.get("train")
    numbers = [_whole(head, name) for name in ("group", "id", "round")]
    if None in numbers or not isinstance(train, bool):
        return "group, id or round is missing"
    names = ["weights", *(["server_control"] if train else [])]
    names += ["client_control"] if train and "client_control" in arrays else []
    vectors = {"server_control": torch.zeros(size)}
    for name in names:
        vector = _vector(arrays, name, size)
        if isinstance(vector, str):
            return f"{name}: {vector}"
        vectors[name] = torch.from_numpy(vector)
    group, client_id, round_ = (int(found or 0) for found in numbers)
    return Order(group, client_id, round_, train, **vectors)


def write_answer(order: Order, answer: Answer) -> RecordDict:
    """Make a message of an answer to an order."""
    update = answer.update
    vectors = {}
    if update is not None:
        vectors = {"weights": update.weights, "client_control": update.client_control}
    head: dict[str, Any] = {"group": order.group, "id": order.client_id, "round": order.round_}
    head |= {"accuracy": answer.accuracy, "samples": answer.samples, "lost": answer.lost}
    return _message(vectors, head)


def read_answer(content: RecordDict, order: Order) -> Answer | str:
    """Read the answer to an order, or say why it is none.

    An answer for another group, another client or another round is refused: it would
    be a replay.
    """
    head, arrays = _parts(content)
    for name, wanted in (("group", order.group), ("id", order.client_id), ("round", order.round_)):
        if _whole(head, name) != wanted:
            return f"an answer for {name} {_quoted(head.get(name))} instead of {wanted}"
    accuracy, samples = head.get("accuracy"), _whole(head, "samples")
    if not isinstance(accuracy, float) or not (math.isnan(accuracy) or 0 <= accuracy <= 1):
        return f"an accuracy of {_quoted(accuracy)}"
    if samples is None or not 1 <= samples < 2**40:
        return f"{_quoted(head.get('samples'))} samples"
    if head.get("lost") is True:
        return Answer(None, accuracy, samples, lost=True)
    if not order.train:
        return Answer(None, accuracy, samples)
    size = len(order.weights)
    weights = _vector(arrays, "weights", size)
    control = _vector(arrays, "client_control", size)
    if isinstance(weights, str):
        return weights
    if isinstance(control, str):
        return f"control variate: {control}"
    update = Update(torch.from_numpy(weights), torch.from_numpy(control))
    return Answer(update, accuracy, samples)


def write_profile_order(client_id: int, weights: Tensor) -> RecordDict:
    """Make the message that asks a client to train one epoch from w⁰."""
    return _message({"weights": weights}, {"id": client_id})


def read_profile_order(content: RecordDict, size: int) -> tuple[int, Tensor] | str:
    """Return the client's id and w⁰, or say what is wrong with the message."""
    head, arrays = _parts(content)
    client_id, weights = _whole(head, "id"), _vector(arrays, "weights", size)
    if client_id is None:
        return "id is missing"
    return weights if isinstance(weights, str) else (client_id, torch.from_numpy(weights))


def write_profile(profile: Vector, samples: int) -> RecordDict:
    """Make the message that answers it: what Step 1 needs of the update."""
    return _message({"profile": torch.from_numpy(profile)}, {"samples": samples})


def read_profile(content: RecordDict, length: int) -> tuple[Vector | None, int]:
    """Return a client's profile (None if it cannot be used) and its number of samples."""
    head, arrays = _parts(content)
    samples, profile = _whole(head, "samples"), _vector(arrays, "profile", length)
    if samples is None or not 1 <= samples < 2**40 or isinstance(profile, str):
        return None, 1
    return profile, samples


def write_counts(counts: Counts) -> RecordDict:
    """Make the message in which a client says how many samples of each class it holds."""
    return _message({"counts": torch.from_numpy(counts)}, {})


def read_counts(content: RecordDict, num_classes: int) -> Counts | str:
    """Return a client's class counts, int64 of shape (C,), or say why they cannot be used."""
    found = _array(_parts(content)[1], "counts", 8 * num_classes)
    if isinstance(found, str):
        return f"counts: {found}"
    if found.dtype != np.int64 or found.shape != (num_classes,):
        return f"counts: {found.dtype} of shape {found.shape} instead of int64 ({num_classes},)"
    return one_shot.counts_fault(found) or found


def write_sums_order(probe: Vector) -> RecordDict:
    """Make the message that asks for sums over the features of which the probe is an example."""
    return _message({"probe": torch.from_numpy(probe)}, {})


def read_sums_order(content: RecordDict, width: int) -> Vector | str:
    """Return the probe of d features, or say what is wrong with the message."""
    found = _vector(_parts(content)[1], "probe", width)
    return f"probe: {found}" if isinstance(found, str) else found


def sums_numbers(width: int, num_classes: int) -> int:
    """Return how many float32 numbers a client's sums take: a count takes two."""
    return _triangle_length(width) + num_classes * width + 2 * num_classes


def write_sums(sums: Sums) -> RecordDict:
    """Make the message of a client's sums: S as its upper triangle, M row by row, and n."""
    vectors = {"second": one_shot.triangle(sums.second), "first": sums.first.ravel()}
    arrays = {name: torch.from_numpy(v.astype(np.float32)) for name, v in vectors.items()}
    return _message({**arrays, "counts": torch.from_numpy(sums.counts)}, {})


def read_sums(content: RecordDict, width: int, num_classes: int) -> Sums | str:
    """Return a client's sums, S symmetric by construction, or say why they cannot be used."""
    arrays = _parts(content)[1]
    counts = read_counts(content, num_classes)
    if isinstance(counts, str):
        return counts
    first = _vector(arrays, "first", num_classes * width)
    if isinstance(first, str):
        return f"sums of classes: {first}"
    second = _vector(arrays, "second", _triangle_length(width))
    if isinstance(second, str):
        return f"second moments: {second}"
    square = one_shot.from_triangle(second, width)
    sums = Sums(square, first.reshape(num_classes, width), counts)
    return one_shot.fault(sums, width, num_classes) or sums


def _triangle_length(width: int) -> int:
    return width * (width + 1) // 2


def write_hello(partition: object) -> RecordDict:
    """Make the message in which a node of a simulation names its partition."""
    return _message({}, {"partition": partition if isinstance(partition, int) else -1})


def read_hello(content: RecordDict) -> int | None:
    """Return the partition a node names, if it names one."""
    partition = _whole(_parts(content)[0], "partition")
    return partition if partition is not None and 0 <= partition < 10**6 else None


def count_traffic(
    questions: Mapping[int, RecordDict], replies: Mapping[int, RecordDict]
) -> Counter[str]:
    """Count the messages sent, and the bytes of arrays ``down`` to and ``up`` from clients."""
    down, up = (
        sum(len(array.data) for content in sent.values() for array in _parts(content)[1].values())
        for sent in (questions, replies)
    )
    return Counter(messages=len(questions), down=down, up=up)


def _message(vectors: dict[str, Tensor], head: dict[str, Any]) -> RecordDict:
    arrays = {name: Array(vector.numpy()) for name, vector in vectors.items()}
    return RecordDict({"arrays": ArrayRecord(arrays), "head": ConfigRecord(head)})


def _parts(content: RecordDict) -> tuple[ConfigRecord, ArrayRecord]:
    """Return a message's two records, empty where it has none."""
    head, arrays = content.get("head"), content.get("arrays")
    return (
        head if isinstance(head, ConfigRecord) else ConfigRecord(),
        arrays if isinstance(arrays, ArrayRecord) else ArrayRecord(),
    )


def _quoted(sent: object) -> str:
    """Return what a client sent in place of a number, fit for the operator's terminal."""
    return printable(str(sent), most=20)


def _whole(head: ConfigRecord, name: str) -> int | None:
    value = head.get(name)
    return value if type(value) is int else None


def _vector(arrays: ArrayRecord, name: str, length: int) -> Vector | str:
    """Return a vector of ``length`` numbers, or say what is there instead."""
    found = _array(arrays, name, 4 * length)
    if isinstance(found, str):
        return found
    reason = fault(found, length)
    return found.astype(np.float32) if reason is None else reason


def _array(arrays: ArrayRecord, name: str, size: int) -> npt.NDArray[Any] | str:
    """Return an array of at most ``size`` bytes, or say what is there instead."""
    array = arrays.get(name)
    if array is None:
        return "nothing sent"
    if len(array.data) > size + HEADER_BYTES:
        return f"{len(array.data)} bytes instead of {size}"
    try:
        return array.numpy()
    except Exception as error:  # NumPy may raise anything for such bytes
        return f"not an array ({type(error).__name__})"
