"""What the clients sent after one epoch, checked one client at a time."""

from __future__ import annotations

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
    """Where the output layer, or what a client made of it, sits in a message.

    Attributes
    ----------
    bias
        The C biases, one per class; None if the layer has none.
    weight
        The C × features weights, row by row; None if they are not in the message.
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


NO_LAYER = OutputLayer()
"""For messages that are not made of an update."""


@dataclass(frozen=True)
class MessageForm:
    """What a client makes of its update before it sends it.

    ``make``: finite updates, float32 of shape (n, P) → messages, float32 of shape (n, length),
    row by row: a message depends on its own update alone. None where a message is not made of an
    update.
    """

    length: int
    head: OutputLayer
    make: Callable[[Rows], Rows] | None


@dataclass(frozen=True, eq=False)
class Messages:
    """One-epoch updates of all clients (Algorithm 1: the rows Δw_k of F).

    A row is what a client sent: its whole update of P numbers, or the few that a type
    method reads of it. With the latter a million clients fit into memory.

    Attributes
    ----------
    values
        float32 of shape (N, numbers in a message), all finite; zero for clients set aside.
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
    messages: Sequence[Any] | npt.NDArray[Any],
    *,
    length: int,
    num_classes: int,
    lr: float = 0.0,
    steps: npt.ArrayLike | None = None,
    head: OutputLayer = NO_LAYER,
) -> Messages:
    """Stack the clients' messages, setting aside those that cannot be used.

    Every message is checked by itself: a bad one excludes its sender and
    leaves everybody else's row as it is, bit for bit.

    Parameters
    ----------
    messages
        One flat message per client; None where nothing arrived. An array of shape
        (N, ``length``) is checked at once, by the same rules.
    length
        The numbers a message must hold: P for a whole update.
    steps
        The local steps that each client made, one at least; None stands for one.
    """
    made = np.ones(len(messages), np.int64) if steps is None else np.asarray(steps, np.int64)
    if made.shape != (len(messages),):
        raise CarvyError(
            f"{len(messages)} messages but step counts of shape {made.shape}; give one per client"
        )
    values, set_aside = _stacked(messages, length)
    lazy = np.flatnonzero(made < 1)
    set_aside |= dict.fromkeys(lazy.tolist(), "made no local step")
    values[lazy] = 0.0
    if len(set_aside) == len(messages):
        first = f" (client 0: {set_aside[0]})" if set_aside else ""
        raise CarvyError(
            f"none of {len(messages)} clients sent a usable message{first}; check the clients"
        )
    values.flags.writeable = False
    return Messages(values, dict(sorted(set_aside.items())), lr, made, num_classes, head)


def _stacked(
    messages: Sequence[Any] | npt.NDArray[Any], length: int
) -> tuple[Rows, dict[int, str]]:
    """Return the messages as float32 rows, zero where unusable, and why those are."""
    values = np.zeros((len(messages), length), dtype=np.float32)
    set_aside: dict[int, str] = {}
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is found below
        if (
            isinstance(messages, np.ndarray)
            and form_fault(messages.dtype, messages.shape[1:], length) is None
        ):
            values[:] = messages
        else:
            for client, message in enumerate(messages):
                found = "no message" if message is None else vector(message, length)
                if isinstance(found, str):
                    set_aside[client] = found
                else:
                    values[client] = found
    for client in np.flatnonzero(~np.isfinite(values).all(axis=1)).tolist():
        set_aside[client] = _not_finite(np.asarray(messages[client]))
        values[client] = 0.0
    return values, set_aside


def _not_finite(message: npt.NDArray[Any]) -> str:
    """Say why a message is not finite in float32."""
    if np.isnan(message).any():
        return "holds NaN"
    if np.isinf(message).any():
        return "holds infinity"
    return "holds a number too large for float32"
