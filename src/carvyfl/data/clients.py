"""Clients and their samples, and checks of a user's arrays."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from carvyfl.core.arrays import plain_array
from carvyfl.core.checks import are_whole
from carvyfl.core.errors import CarvyError

if TYPE_CHECKING:
    from torch.utils.data import Dataset

Inputs = npt.NDArray[np.uint8] | npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Samples:
    """Labelled inputs, checked once on the way in.

    Inputs, shape (n, …), are uint8, which models see scaled to 0…1, or float32. Labels are int64
    of shape (n,).
    """

    inputs: Inputs
    labels: Labels

    def __len__(self) -> int:
        return len(self.labels)

    def sha256(self) -> str:
        """Return the SHA-256 over type, shape and bytes of inputs and labels."""
        digest = hashlib.sha256()
        for array in (self.inputs, self.labels):
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def take(self, indices: npt.ArrayLike) -> Samples:
        """Return the samples at these positions."""
        chosen = np.asarray(indices, dtype=np.int64)
        return Samples(self.inputs[chosen], self.labels[chosen])


@dataclass(frozen=True)
class Client:
    """One client's data: what it trains on, and what early stopping is judged on, if any."""

    train: Samples
    validation: Samples


@dataclass(frozen=True)
class Federation:
    """All N clients of one run; a client's position is its number everywhere else.

    Inputs enter the model as (x - ``mean``) / ``std``, after uint8 was scaled to 0…1. ``types`` are
    the true distribution types, int64 of shape (N,), where a simulation knows them. ``derived``
    names constants of all groups that were taken from the clients' own data: one client reaches
    every group's model through them, so nothing is certified then.
    """

    clients: tuple[Client, ...]
    num_classes: int
    mean: float = 0.0
    std: float = 1.0
    types: Labels | None = None
    derived: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.clients)

    def __repr__(self) -> str:
        sizes = [len(client.train) for client in self.clients] or [0]
        each = " to ".join(f"{size:,}" for size in sorted({min(sizes), max(sizes)}))
        classes = f"{self.num_classes} classes"
        kinds = "" if self.types is None else f", {len(np.unique(self.types))} types"
        return f"Federation({len(self)} clients with {each} training samples, {classes}{kinds})"


def as_array(values: Any, where: str) -> npt.NDArray[Any]:
    """Make an array of numbers, arrays or tensors, or of lists of them of one shape.

    Tensors may lie on any device, with or without gradients, and be bfloat16.
    """
    torch: Any = sys.modules.get("torch")  # nothing is a tensor before somebody imported it
    tensor = () if torch is None else torch.Tensor
    try:
        if isinstance(values, tensor):
            plain = values.detach().cpu()
            plain = plain.float() if plain.dtype == torch.bfloat16 else plain
            return np.asarray(plain.numpy())
        listed = isinstance(values, list | tuple)
        if listed and any(isinstance(entry, (np.ndarray, tensor)) for entry in values):
            return np.stack([as_array(entry, where) for entry in values])
        return plain_array(values, where)
    except (ValueError, TypeError, RuntimeError) as error:
        remedy = "give numbers, every entry of the same shape"
        raise CarvyError(f"{where}: no array can be made of them; {remedy}") from error


def as_types(types: Any, num_clients: int, where: str = "types") -> Labels | None:
    """Return the true types of the clients as int64 of shape (N,), or None where there are none."""
    if types is None:
        return None
    array = as_array(types, where)
    if array.shape != (num_clients,) or array.dtype.kind not in "iu":
        raise CarvyError(f"{where} must be {num_clients} whole numbers, one per client")
    return array.astype(np.int64)


def samples(inputs: Any, labels: Any, *, num_classes: int | None, where: str) -> Samples:
    """Make :class:`Samples` of arrays or tensors; None stands for any number of classes."""
    x, y = as_array(inputs, f"{where}: inputs"), as_array(labels, f"{where}: labels")
    if x.ndim == 0 or y.ndim != 1 or len(x) != len(y):
        fault = f"inputs of shape {x.shape} and labels of shape {y.shape} do not match"
        raise CarvyError(f"{where}: {fault}; give one label per input")
    if not are_whole(y):
        raise CarvyError(f"{where}: labels must be whole numbers; remove or relabel the others")
    y = y.astype(np.int64, copy=False)
    if len(y) and (y.min() < 0 or (num_classes is not None and y.max() >= num_classes)):
        remedy = "; subtract 1 from the labels" if (y.min(), y.max()) == (1, num_classes) else ""
        if negative := int(np.count_nonzero(y < 0)):
            remedy = f"; leave out the {negative} samples with labels below 0, or renumber classes"
        last = "…" if num_classes is None else num_classes - 1
        fault = f"labels run from {y.min()} to {y.max()}, but classes are 0 to {last}"
        raise CarvyError(f"{where}: {fault}{remedy}")
    return Samples(_numbers(x, where), y)


def class_number(labels: Iterable[Labels], where: str) -> int:
    """Return C, the largest label plus one; labels like ids or years, far above n, are refused."""
    together = np.concatenate(list(labels))
    num_classes = int(together.max()) + 1
    if num_classes > max(len(together), 1000):
        few = f"there are only {len(together)} samples; number the classes 0, 1, 2, …"
        raise CarvyError(f"{where}: a label is {num_classes - 1}, but {few}")
    return num_classes


def as_inputs(
    inputs: Any, shape: tuple[int, ...], trained_on: str, where: str = "inputs"
) -> Inputs:
    """Return new inputs, shape (n, …), as the models saw the training data.

    For models ``trained_on`` uint8 pixels are whole numbers up to 255 or floats up to 1.
    """
    x = as_array(inputs, where)
    if x.ndim == 0 or x.shape[1:] != shape:
        expected = ", ".join(map(str, ("n", *shape)))
        raise CarvyError(f"{where}: expected shape ({expected}), not {x.shape}")
    if not len(x):
        raise CarvyError(f"{where}: no inputs; give at least one")
    numbers, brightest = _numbers(x, where), {"i": 255, "u": 255, "f": 1}.get(x.dtype.kind)
    if trained_on != "uint8":
        if numbers.dtype == np.uint8:
            raise CarvyError(f"{where}: the models were trained on floats, not on bytes (uint8)")
        return numbers
    if brightest is None or x.min() < 0 or x.max() > brightest:
        pixels = "whole numbers from 0 to 255 or floats from 0 to 1"
        raise CarvyError(f"{where}: pixels must be {pixels}")
    return np.ascontiguousarray(np.rint(x * 255) if brightest == 1 else x, dtype=np.uint8)


def _numbers(x: npt.NDArray[Any], where: str) -> Inputs:
    """Keep uint8; make everything else float32, which must be finite."""
    if x.dtype == np.uint8:
        return np.ascontiguousarray(x)
    if x.dtype.kind not in "fiub":
        raise CarvyError(f"{where}: inputs of type {x.dtype} are not numbers")
    with np.errstate(over="ignore"):
        numbers = np.ascontiguousarray(x, dtype=np.float32)
    if not np.isfinite(numbers).all():
        bad = np.flatnonzero(~np.isfinite(numbers.reshape(len(x), -1)).all(axis=1))
        raise CarvyError(f"{where}: input {bad[0]} holds NaN or infinity ({len(bad)} such in all)")
    return numbers


def as_samples(data: Any, *, num_classes: int | None, where: str) -> Samples:
    """Accept :class:`Samples`, a pair (inputs, labels) or a torch ``Dataset``, read as a whole."""
    return samples(*as_pair(data, where), num_classes=num_classes, where=where)


def usable_samples(data: Any, num_classes: int, where: str) -> tuple[Samples, int]:
    """Return the samples that fit the classes and are finite, and how many others are left out.

    For private learning: a client that refused because of one sample would tell of it.
    """
    inputs, labels = as_pair(data.train if isinstance(data, Client) else data, where)
    x, y = as_array(inputs, f"{where}: inputs"), as_array(labels, f"{where}: labels")
    if x.ndim == 0 or y.shape != x.shape[:1]:
        return samples(x, y, num_classes=num_classes, where=where), 0  # which says what is wrong
    with np.errstate(invalid="ignore", over="ignore"):
        fits = (y >= 0) & (y < num_classes) & (y == np.floor(y))
        finite = np.isfinite(x.astype(np.float32)).all(axis=tuple(range(1, x.ndim)))
    usable = np.flatnonzero(fits & finite)
    return Samples(_numbers(x[usable], where), y[usable].astype(np.int64)), len(y) - len(usable)


def as_pair(data: Any, where: str) -> tuple[Any, Any]:
    """Return the inputs and labels of what users give as samples."""
    from torch.utils.data import Dataset

    if isinstance(data, Samples):
        data = data.inputs, data.labels
    elif isinstance(data, Dataset):
        data = _pair(data, where)
    if not isinstance(data, Sequence) or len(data) != 2:
        kind = type(data).__name__
        raise CarvyError(f"{where}: expected (inputs, labels) or a torch data set, got {kind}")
    return data[0], data[1]


def _pair(dataset: Dataset[Any], where: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    from torch.utils.data import IterableDataset

    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        remedy = "give a data set with __len__ and __getitem__, or (inputs, labels)"
        raise CarvyError(f"{where}: {type(dataset).__name__} has no length or positions; {remedy}")
    items = [dataset[i] for i in range(len(dataset))]
    if not items:
        raise CarvyError(f"{where}: the data set is empty")
    for position, item in enumerate(items):
        if not isinstance(item, list | tuple) or len(item) != 2:
            fault = "is not a pair (input, label); have __getitem__ return these two"
            raise CarvyError(f"{where}: item {position} of the data set {fault}")
    inputs, labels = (
        as_array([as_array(item[i], what) for item in items], what)
        for i, what in enumerate((f"{where}: inputs", f"{where}: labels"))
    )
    return inputs, labels[:, 0] if labels.shape[1:] == (1,) else labels
