"""What goes over the wire, and how either side reads what the other sent.

A message is a dataclass: its arrays and single values, by name, in two records of Flower's; None is
left out, and nothing is ever unpickled. A reader says what is wrong with a message instead of
failing on it: whoever sent it may be malicious.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from carvyfl.core.arrays import fault
from carvyfl.core.errors import CarvyError, printable
from carvyfl.learning.one_shot import sums as one_shot
from carvyfl.learning.one_shot.sums import Sums
from carvyfl.learning.private import message as private
from carvyfl.learning.private.map import Map, width_for
from carvyfl.learning.private.model import PrivateModel
from carvyfl.learning.scaffold.arithmetic import Update

HELLO, PROFILE, ROUND = "query.hello", "train.profile", "train.round"
"""The kinds of message: who are you, train one epoch for Step 1, train a round of Step 3."""
COUNTS, SUMS = "query.counts", "query.sums"
"""Those of one-shot learning: count your samples for Step 1, send your sums for Step 3."""
MESSAGE = "query.message"
"""That of private learning: send your message with noise, for all steps."""
FAULTS: Final = {
    "settings": "the settings cannot be used there",
    "data": "its data could not be loaded",
    "message": "it cannot use the server's message",
    "features": "its features are not the server's; install the same version of carvyfl there, "
    "and of the network if they come from one",
    "limit": "it has set a limit of its own to what its data may cost, which this would pass",
    "place": "it has another group or id already",
    "failed": "its app failed",
}
"""All that a client says of its failures, by the word that it sends: the text of an exception may
name files and people, and stays in its log."""
PASSING: Final = frozenset({"data", "failed"})  # may be over when the client is asked again
HEADER_BYTES = 1024  # more than an array of numbers needs for the description of itself
MOST_SAMPLES = 2**40
MAP_ARRAYS = "mean", "matrix", "bound", "spread"

T = TypeVar("T")
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Hello:
    """A node of a simulation names its partition; -1 if it has none."""

    partition: int


@dataclass(frozen=True)
class ProfileOrder:
    """Asks a client for what Step 1 needs of an epoch from w⁰, shape (P,)."""

    client_id: int
    weights: Tensor


@dataclass(frozen=True)
class Profile:
    """Answers it: of the update what Step 1 needs, float32."""

    profile: Tensor
    samples: int


@dataclass(frozen=True)
class ClassCounts:
    """How many samples of each class a client holds, int64 of shape (C,)."""

    counts: Counts


@dataclass(frozen=True)
class SumsOrder:
    """Asks for sums over the features of which the probe, shape (d,), is an example."""

    probe: Tensor


@dataclass(frozen=True)
class PackedSums:
    """A client's sums: S as its upper triangle, M row by row, and n."""

    second: Tensor
    first: Tensor
    counts: Counts


@dataclass(frozen=True)
class MessageOrder:
    """Asks for the private message by a map, whose arrays are flat.

    The ``probe`` is an example of the features that it maps.
    """

    probe: Tensor
    mean: Tensor
    matrix: Tensor
    bound: Tensor
    spread: Tensor
    origin: str
    digest: str
    epsilon: float
    delta: float
    num_classes: int

    @classmethod
    def of(cls, model: PrivateModel, probe: Tensor) -> MessageOrder:
        """Return the order for messages that a model takes."""
        fixed: dict[str, Any] = {
            name: torch.from_numpy(getattr(model.map, name).ravel()) for name in MAP_ARRAYS
        }
        fixed |= {name: getattr(model.map, name) for name in ("origin", "digest")}
        fixed |= {name: getattr(model.noise, name) for name in ("epsilon", "delta")}
        return cls(probe, num_classes=model.head.out_features, **fixed)

    def map(self) -> Map:
        """Return the map; refuse one that does not have its digest."""
        mean, matrix, bound, spread = (getattr(self, name).numpy() for name in MAP_ARRAYS)
        parts = mean, matrix.reshape(len(mean), -1), bound.reshape(()), spread
        sent = Map(*parts, self.origin)
        if sent.digest != self.digest:
            raise CarvyError("the map that the server sent does not have its digest")
        return sent


@dataclass(frozen=True)
class NoisyMessage:
    """A client's private message, int32 of shape (C, d + 1)."""

    units: npt.NDArray[np.int32]


@dataclass(frozen=True)
class Order:
    """What the server asks of a member in a round; tensors are float32 of shape (P,)."""

    group: int
    client_id: int  # the member's randomness is derived from it
    round_: int  # counted from 0
    train: bool  # False asks only for the accuracy of the model, once the last round is made
    weights: Tensor  # w of the group
    server_control: Tensor | None = None  # c, which is only sent for training
    client_control: Tensor | None = None  # c_i where the member may have lost it


@dataclass(frozen=True)
class Answer:
    """What a member sends back: the place in the order again, and w_i⁺ and c_i⁺ if it trained."""

    group: int
    client_id: int
    round_: int
    accuracy: float  # of the model it received on its validation data, 0…1; NaN without such data
    samples: int
    lost: bool = False  # its control variate is gone, so it cannot train
    weights: Tensor | None = None
    client_control: Tensor | None = None

    @property
    def update(self) -> Update | None:
        """What it trained, if it did."""
        if self.lost or self.weights is None or self.client_control is None:
            return None
        return Update(self.weights, self.client_control)


def place(sent: Order | Answer) -> tuple[int, int, int]:
    """Return what an order is for, or an answer belongs to: group, client and round."""
    return sent.group, sent.client_id, sent.round_


def write(value: Any) -> RecordDict:
    """Make a message of one of the dataclasses above."""
    head: dict[str, Any] = {}
    arrays = {}
    for field in dataclasses.fields(value):
        content = getattr(value, field.name)
        if isinstance(content, int | float | str):
            head[field.name] = content
        elif content is not None:
            arrays[field.name] = Array(np.asarray(content))
    return RecordDict({"arrays": ArrayRecord(arrays), "head": ConfigRecord(head)})


def read(kind: type[T], content: RecordDict | str, lengths: int | Mapping[str, int] = 0) -> T | str:
    """Read a message, or say what is wrong; ``lengths``: of its vectors, or of all of them."""
    if isinstance(content, str):
        return content
    head, arrays = _parts(content)
    fields: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(kind).items():
        if hint in (int, float, bool, str):
            fields[name] = head.get(name)
            if type(fields[name]) is not hint:
                return f"{name}: {printable(str(fields[name]), most=20)} instead of {hint.__name__}"
        elif name in arrays or not isinstance(hint, types.UnionType):
            length = lengths if isinstance(lengths, int) else lengths[name]
            fields[name] = _vector(arrays.get(name), length, counts=hint == Counts)
            if isinstance(fields[name], str):
                return f"{name}: {fields[name]}"
    return kind(**fields)


def read_answer(content: RecordDict | str, order: Order) -> Answer | str:
    """Read the answer to an order, or say why it is none: one for another order is a replay."""
    answer = read(Answer, content, len(order.weights))
    if isinstance(answer, str):
        return answer
    if place(answer) != place(order):
        return f"an answer for group, id and round {place(answer)} instead of {place(order)}"
    if not (math.isnan(answer.accuracy) or 0 <= answer.accuracy <= 1):
        return f"an accuracy of {answer.accuracy}"
    if not 1 <= answer.samples < MOST_SAMPLES:
        return f"{answer.samples} samples"
    if order.train and not answer.lost and answer.update is None:
        return "weights or control variate: nothing sent"
    return answer


def sums_lengths(width: int, num_classes: int) -> dict[str, int]:
    """Return how many numbers each part of a client's sums has."""
    triangle = width * (width + 1) // 2
    return {"second": triangle, "first": num_classes * width, "counts": num_classes}


def packed(sums: Sums) -> PackedSums:
    """Return a client's sums as they are sent."""
    parts = one_shot.triangle(sums.second), sums.first.ravel()
    second, first = (torch.from_numpy(part.astype(np.float32)) for part in parts)
    return PackedSums(second, first, sums.counts)


def read_sums(content: RecordDict | str, width: int, num_classes: int) -> Sums | str:
    """Return a client's sums, S symmetric by construction, or say why they cannot be used."""
    parts = read(PackedSums, content, sums_lengths(width, num_classes))
    if isinstance(parts, str):
        return parts
    second = one_shot.from_triangle(parts.second.numpy(), width)
    sums = Sums(second, parts.first.numpy().reshape(num_classes, width), parts.counts)
    return one_shot.fault(sums, width, num_classes) or sums


def map_lengths(width: int, num_classes: int) -> dict[str, int]:
    """Return how many numbers the arrays have that come with an order for a message."""
    short = width_for(width, num_classes)
    return {"probe": width, "mean": width, "matrix": width * short, "bound": 1, "spread": short}


def read_message(
    content: RecordDict | str, num_classes: int, width: int
) -> npt.NDArray[np.int32] | str:
    """Return a client's private message, or say why it cannot be used."""
    if isinstance(content, str):
        return content
    units = _numbers(_parts(content)[1].get("units"), 4 * num_classes * (width + 1))
    return units if isinstance(units, str) else private.fault(units, num_classes, width) or units


def array_bytes(content: RecordDict | str) -> int:
    """Return how many bytes the arrays of a message take; one that was not read counts for 0."""
    if isinstance(content, str):
        return 0
    return sum(len(array.data) for array in _parts(content)[1].values())


def _parts(content: RecordDict) -> tuple[ConfigRecord, ArrayRecord]:
    """Return a message's two records, empty where it has none."""
    head, arrays = content.get("head"), content.get("arrays")
    return (
        head if isinstance(head, ConfigRecord) else ConfigRecord(),
        arrays if isinstance(arrays, ArrayRecord) else ArrayRecord(),
    )


def _numbers(array: Array | None, size: int) -> npt.NDArray[Any] | str:
    """Return an array of so many bytes, of any type and shape, or say what is there instead."""
    if array is None:
        return "nothing sent"
    if len(array.data) > size + HEADER_BYTES:
        return f"{len(array.data)} bytes instead of {size}"
    try:
        return array.numpy()
    except Exception as error:  # NumPy may raise anything for such bytes
        return f"not an array ({type(error).__name__})"


def _vector(array: Array | None, length: int, *, counts: bool) -> Tensor | Counts | str:
    """Return ``length`` finite numbers, or class counts, or say what is there instead."""
    numbers = _numbers(array, length * (8 if counts else 4))
    if isinstance(numbers, str):
        return numbers
    if not counts:
        return fault(numbers, length) or torch.from_numpy(numbers.astype(np.float32))
    if numbers.dtype != np.int64 or numbers.shape != (length,):
        return f"{numbers.dtype} of shape {numbers.shape} instead of int64 ({length},)"
    return one_shot.counts_fault(numbers) or numbers
