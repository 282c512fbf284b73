"""What the clients sent after one epoch, checked one client at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from carvyfl.errors import CarvyError


@dataclass(frozen=True)
class OutputLayer:
    """Where the output layer sits in a flat update.

    Attributes
    ----------
    bias
        The C biases, one per class; None if the layer has none.
    weight
        The C × features weights, row by row; None if they are not in the update
        (a client may report the biases alone).
    """

    bias: slice | None = None
    weight: slice | None = None


@dataclass(frozen=True, eq=False)
class Updates:
    """One-epoch updates of all clients (Algorithm 1: the rows Δw_k of F).

    Attributes
    ----------
    values
        float32 of shape (N, P), all finite; zero for clients set aside.
    set_aside
        Clients whose report cannot be used, and why.
    lr
        η, the local learning rate of that epoch.
    steps
        int64 of shape (N,): K, the local steps each client made.
    num_classes
        C.
    head
        Where the output layer sits in a row of ``values``.
    """

    values: npt.NDArray[np.float32]
    set_aside: Mapping[int, str]
    lr: float
    steps: npt.NDArray[np.int64]
    num_classes: int
    head: OutputLayer

    def __len__(self) -> int:
        return len(self.values)

    @property
    def usable(self) -> npt.NDArray[np.int64]:
        """Numbers of the clients not set aside, ascending."""
        kept = np.ones(len(self), dtype=np.bool_)
        kept[list(self.set_aside)] = False
        return np.flatnonzero(kept)


def collect(
    reports: Sequence[Any],
    *,
    length: int,
    lr: float,
    steps: npt.ArrayLike,
    num_classes: int,
    head: OutputLayer,
) -> Updates:
    """Stack the clients' reports, setting aside those that cannot be used.

    Every report is judged by itself: a bad one costs its sender a place and
    leaves everybody else's row as it is, bit for bit.

    Parameters
    ----------
    reports
        One flat update per client; None where nothing arrived.
    length
        P, the number of parameters a report must hold.
    lr
        η, the local learning rate.
    steps
        K, the local steps each client made, shape (N,).
    num_classes
        C.
    head
        Where the output layer sits in a report.

    Raises
    ------
    CarvyError
        If the description of the reports makes no sense, or no report is usable.
    """
    made = np.asarray(steps, dtype=np.int64)
    if made.shape != (len(reports),):
        raise CarvyError(
            f"{len(reports)} reports but step counts of shape {made.shape}; give one per client"
        )
    if not (math.isfinite(lr) and lr > 0):
        raise CarvyError(f"local learning rate {lr}: must be a positive number")
    _check_head(head, length, num_classes)

    values = np.zeros((len(reports), length), dtype=np.float32)
    set_aside: dict[int, str] = {}
    for client, report in enumerate(reports):
        row = _checked(report, length)
        if made[client] < 1:
            row = "made no local step"
        if isinstance(row, str):
            set_aside[client] = row
        else:
            values[client] = row
    if len(set_aside) == len(reports):
        first = f" (client 0: {set_aside[0]})" if set_aside else ""
        raise CarvyError(
            f"none of {len(reports)} clients sent a usable report{first}; check the clients"
        )
    values.flags.writeable = False
    return Updates(values, set_aside, lr, made, num_classes, head)


def _checked(report: Any, length: int) -> npt.NDArray[np.float32] | str:
    """Return the report as float32 of shape (length,), or what is wrong with it."""
    if report is None:
        return "no report"
    try:
        array = np.asarray(report)
    except (TypeError, ValueError, RuntimeError):  # ragged lists, tensors that are not plain
        return f"not an array of numbers ({type(report).__name__})"
    if array.dtype.kind not in "fiu":
        return f"not an array of numbers ({array.dtype})"
    if array.shape != (length,):
        return f"wrong shape: {array.shape} instead of ({length},)"
    if np.isnan(array).any():
        return "holds NaN"
    if np.isinf(array).any():
        return "holds infinity"
    with np.errstate(over="ignore"):
        row = array.astype(np.float32)
    if not np.isfinite(row).all():
        return "holds a number too large for float32"
    return row


def _check_head(head: OutputLayer, length: int, num_classes: int) -> None:
    """Refuse an output layer that does not fit C classes and P parameters."""
    if num_classes < 2:
        raise CarvyError(f"{num_classes} classes: classification needs at least 2")
    for name, part in (("bias", head.bias), ("weight", head.weight)):
        if part is None:
            continue
        size = len(range(*part.indices(length)))
        if size == 0 or size % num_classes or (name == "bias" and size != num_classes):
            raise CarvyError(
                f"output layer {name} holds {size} of {length} numbers, which does not fit "
                f"{num_classes} classes; the model's last layer must give one logit per class"
            )
