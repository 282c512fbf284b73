"""Federations of a user's own data or own partition."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from carvyfl.core.checks import is_number, seed_number, whole_number
from carvyfl.core.errors import CarvyError
from carvyfl.data.clients import Client, Federation, as_array, as_samples, as_types, class_number
from carvyfl.data.datasets import DataSet
from carvyfl.data.partitions import set_aside

CLIENT_BY_CLIENT = (
    "give the data client by client, [(inputs_0, labels_0), (inputs_1, labels_1), …], not inputs "
    "and labels of everybody; build_federation and federation_from_indices split one data set"
)
_CLASSES = "the number of classes"
_CONSTANTS = ("num_classes", "mean", "std")


def federation_from_indices(
    dataset: DataSet,
    indices: Sequence[npt.ArrayLike],
    *,
    validation_share: float = 0.1,
    seed: int = 0,
    types: npt.ArrayLike | None = None,
) -> Federation:
    """Make a federation of a user's own partition: one array of training indices per client.

    The rest is as in :func:`federation_from_arrays`.
    """
    data = []
    for number, entry in enumerate(indices):
        where, size = f"client {number}", len(dataset.train)
        chosen = as_array(entry, f"{where}: indices")
        if chosen.ndim != 1 or (len(chosen) and chosen.dtype.kind not in "iu"):
            raise CarvyError(f"{where}: indices must be a list of whole numbers")
        values, times = np.unique(chosen, return_counts=True)
        if len(bad := values[(values < 0) | (values >= size)]):
            raise CarvyError(
                f"{where}: index {bad[0]} is outside the {size} training samples of {dataset.name}"
            )
        if len(bad := values[times > 1]):
            raise CarvyError(f"{where}: index {bad[0]} appears more than once; give it once")
        data.append(dataset.train.take(chosen))
    constants: dict[str, Any] = {name: getattr(dataset, name) for name in _CONSTANTS}
    return federation_from_arrays(
        data, validation_share=validation_share, seed=seed, types=types, **constants
    )


def federation_from_arrays(
    data: Iterable[Any],
    *,
    num_classes: int | None = None,
    validation_share: float = 0.1,
    seed: int = 0,
    mean: float = 0.0,
    std: float = 1.0,
    types: npt.ArrayLike | None = None,
) -> Federation:
    """Make a federation of a user's own data.

    Parameters
    ----------
    data
        One entry per client: (inputs, labels), ``Samples``, a torch ``Dataset``, or a ``Client``,
        which keeps the validation data it brings (none, if that is empty).
    num_classes
        C, fixed by whoever runs the federation. None takes the largest label of all clients
        plus one: then one client has a say in every group's model, and nothing is certified.
    validation_share, seed
        The part of a client's samples split off, stratified by class: at least one where the
        client has two or more, never all. The seed decides, with its number, which ones.
    mean, std
        Inputs enter the model as (x - mean) / std, after uint8 was scaled to 0…1.
    """
    if not (hasattr(data, "__iter__") or hasattr(data, "__getitem__")):
        raise CarvyError(f"clients: give one entry per client, not {type(data).__name__}")
    if num_classes is not None:
        num_classes = whole_number(num_classes, "num_classes")
    seed = seed_number(seed)
    # An array or a tensor of no dimension is a number.
    given: tuple[Any, Any] = mean, std
    mean, std = (x.item() if getattr(x, "ndim", None) == 0 else x for x in given)
    if not (all(is_number(x) and math.isfinite(x) for x in (mean, std)) and std > 0):
        raise CarvyError(f"mean {mean!r} and std {std!r} must be finite numbers, std above 0")
    clients = tuple(
        _client(entry, num_classes, validation_share, seed, number)
        for number, entry in enumerate(data)
    )
    if not clients:
        raise CarvyError("a federation needs at least one client")
    first = clients[0].train.inputs
    parts = [(number, part) for number, c in enumerate(clients) for part in (c.train, c.validation)]
    for number, part in parts:
        kinds = [f"{x.dtype} of shape {x.shape[1:]}" for x in (part.inputs, first)]
        if len(part) and kinds[0] != kinds[1]:
            fault = f"inputs are {kinds[0]}, but client 0's are {kinds[1]}"
            raise CarvyError(f"client {number}: {fault}; all clients need the same")
    derived = (_CLASSES,) if num_classes is None else ()
    if num_classes is None:
        num_classes = class_number([part.labels for _, part in parts], "the clients' data")
    true_types = as_types(types, len(clients))
    return Federation(clients, num_classes, float(mean), float(std), true_types, derived)


def checked_federation(federation: Federation, num_classes: int | None = None) -> Federation:
    """Check a federation that anybody may have put together, by the rules for a user's own data.

    ``num_classes``, where given, must be the federation's, or replaces a derived one.
    """
    if num_classes is not None and _CLASSES in federation.derived:
        derived = tuple(name for name in federation.derived if name != _CLASSES)
        federation = replace(federation, num_classes=num_classes, derived=derived)
    if num_classes not in (None, federation.num_classes):
        fault = f"num_classes is {num_classes!r}, but the federation has {federation.num_classes}"
        remedy = "leave num_classes out or make the federation with that many"
        raise CarvyError(f"{fault} classes; {remedy}")
    constants: dict[str, Any] = {name: getattr(federation, name) for name in _CONSTANTS}
    checked = federation_from_arrays(federation.clients, types=federation.types, **constants)
    return replace(checked, derived=federation.derived)


def _client(entry: Any, num_classes: int | None, share: float, seed: int, number: int) -> Client:
    """Check one client's data and, unless it is a Client, split validation data off."""
    where = f"client {number}"
    if hasattr(entry, "ndim"):  # an array or a tensor
        raise CarvyError(f"{where} is a single array; {CLIENT_BY_CLIENT}")
    if isinstance(entry, Client):
        train = as_samples(entry.train, num_classes=num_classes, where=where)
        place = f"{where} (validation)"
        validation = as_samples(entry.validation, num_classes=num_classes, where=place)
    else:
        whole = as_samples(entry, num_classes=num_classes, where=where)
        split = set_aside(whole.labels, share, seed, "own validation", number)
        train, validation = map(whole.take, split)
    if not len(train):
        raise CarvyError(f"{where}: has no data; leave it out or give it some")
    return Client(train, validation)
