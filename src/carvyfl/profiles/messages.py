"""What the clients sent after one epoch, checked one client at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from carvyfl.core.errors import CarvyError
from carvyfl.core.messages import form_fault, vector

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True)
class OutputLayer:
    """Where the output layer, or what a client made of it, sits in a report.

    Attributes
    ----------
    bias
        The C biases, one per class; None if the layer has none.
    weight
        The C × features weights, row by row; None if they are not in the report.
    row_means
        The C means of the weights' rows, from a layer without bias.
    rises
        The C largest rises in each row of the weights, 0 where none rose.
    fall
        One number that stands for the weights: how far their most fallen row fell
        (:func:`~carvyfl.profiles.bias_profile.profile_form`).
    """

    bias: slice | None = None
    weight: slice | None = None
    row_means: slice | None = None
    rises: slice | None = None
    fall: slice | None = None


@dataclass(frozen=True)
class MessageForm:
    """What a client makes of its update before it sends it.

    Attributes
    ----------
    make
        From finite updates, float32 of shape (n, P), to reports, float32 of shape
        (n, ``length``), row by row: a report depends on its own update alone.
    """

    length: int
    head: OutputLayer
    make: Callable[[Rows], Rows]


@dataclass(frozen=True, eq=False)
class Messages:
    """One-epoch updates of all clients (Algorithm 1: the rows Δw_k of F).

    A row is what a client sent: its whole update of P numbers, or the few that a type
    method reads of it. With the latter a million clients fit into memory.

    Attributes
    ----------
    values
        float32 of shape (N, numbers in a report), all finite; zero for clients set aside.
    set_aside
        Clients whose report cannot be used, and why.
    steps
        int64 of shape (N,): K, the local steps each client made.
    """

    values: Rows
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
    reports: Sequence[Any] | npt.NDArray[Any],
    *,
    length: int,
    lr: float,
    steps: npt.ArrayLike,
    num_classes: int,
    head: OutputLayer,
) -> Messages:
    """Stack the clients' reports, setting aside those that cannot be used.

    Every report is judged by itself: a bad one costs its sender a place and
    leaves everybody else's row as it is, bit for bit.

    Parameters
    ----------
    reports
        One flat report per client; None where nothing arrived. As an array of shape
        (N, ``length``) a million reports are checked at once, by the same rules.
    length
        The numbers a report must hold: P for a whole update.
    """
    made = np.asarray(steps, dtype=np.int64)
    if made.shape != (len(reports),):
        raise CarvyError(
            f"{len(reports)} reports but step counts of shape {made.shape}; give one per client"
        )
    if not (math.isfinite(lr) and lr > 0):
        raise CarvyError(f"local learning rate {lr}: must be a positive number")
    _check_head(head, length, num_classes)

    values, set_aside = _stacked(reports, length)
    lazy = np.flatnonzero(made < 1)
    set_aside |= dict.fromkeys(lazy.tolist(), "made no local step")
    values[lazy] = 0.0
    if len(set_aside) == len(reports):
        first = f" (client 0: {set_aside[0]})" if set_aside else ""
        raise CarvyError(
            f"none of {len(reports)} clients sent a usable report{first}; check the clients"
        )
    values.flags.writeable = False
    return Messages(values, dict(sorted(set_aside.items())), lr, made, num_classes, head)


def _stacked(reports: Sequence[Any] | npt.NDArray[Any], length: int) -> tuple[Rows, dict[int, str]]:
    """Return the reports as float32 rows, zero where unusable, and why those are."""
    values = np.zeros((len(reports), length), dtype=np.float32)
    set_aside: dict[int, str] = {}
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is found below
        if (
            isinstance(reports, np.ndarray)
            and form_fault(reports.dtype, reports.shape[1:], length) is None
        ):
            values[:] = reports
        else:
            for client, report in enumerate(reports):
                found = "no report" if report is None else vector(report, length)
                if isinstance(found, str):
                    set_aside[client] = found
                else:
                    values[client] = found
    for client in np.flatnonzero(~np.isfinite(values).all(axis=1)).tolist():
        set_aside[client] = _not_finite(np.asarray(reports[client]))
        values[client] = 0.0
    return values, set_aside


def _not_finite(report: npt.NDArray[Any]) -> str:
    """Say what a report holds that is no finite float32."""
    if np.isnan(report).any():
        return "holds NaN"
    if np.isinf(report).any():
        return "holds infinity"
    return "holds a number too large for float32"


def _check_head(head: OutputLayer, length: int, num_classes: int) -> None:
    """Refuse an output layer that does not fit C classes and the reports' length."""
    if num_classes < 2:
        raise CarvyError(f"{num_classes} classes: classification needs at least 2")
    for name, exact in (
        ("bias", num_classes),
        ("weight", None),
        ("row_means", num_classes),
        ("rises", num_classes),
    ):
        part = getattr(head, name)
        if part is None:
            continue
        size = _size(part, length)
        if size == 0 or size % num_classes or exact not in (None, size):
            raise CarvyError(
                f"output layer {name} holds {size} of {length} numbers, which does not fit "
                f"{num_classes} classes; the model's last layer must give one logit per class"
            )
    if head.fall is not None and _size(head.fall, length) != 1:
        raise CarvyError(f"output layer: 'fall' is one number, not {_size(head.fall, length)}")


def _size(part: slice, length: int) -> int:
    return len(range(*part.indices(length)))
