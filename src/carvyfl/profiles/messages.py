"""What the clients sent in Step 1, checked one client at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from carvyfl.core.arrays import form_fault, vector
from carvyfl.core.errors import CarvyError

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True)
class OutputLayer:
    """Where the output layer, or what a client made of it, sits in a message; None where it is not.

    ``bias`` are the C biases, ``weight`` the C × features weights, row by row. Of the weights' rows
    there may be the C means (``row_means``, from a layer without bias), the C largest ``rises``, 0
    where none rose, and one ``fall`` (:func:`~carvyfl.profiles.bias_profile.profile_form`).
    """

    bias: slice | None = None
    weight: slice | None = None
    row_means: slice | None = None
    rises: slice | None = None
    fall: slice | None = None


@dataclass(frozen=True)
class MessageForm:
    """What a client makes of its update before it sends it.

    ``make``: finite updates, float32 of shape (n, P) → messages, float32 of shape (n, length),
    each made of its own update alone. None where a message is not made of an update.
    """

    length: int
    head: OutputLayer
    make: Callable[[Rows], Rows] | None


@dataclass(frozen=True, eq=False)
class Messages:
    """What all clients sent (Algorithm 1: the rows Δw_k of F, or what is read of them).

    ``values``, float32 of shape (N, length), are finite, and zero for clients in ``set_aside``,
    which says why. ``steps``, int64 of shape (N,), are K, the local steps, ``lr`` is the learning
    rate, and ``noise`` the standard deviation of the noise that clients added to every number.
    """

    values: Rows
    set_aside: Mapping[int, str]
    num_classes: int
    head: OutputLayer
    steps: npt.NDArray[np.int64]
    lr: float = 0.0
    noise: float = 0.0

    def __len__(self) -> int:
        return len(self.values)

    @property
    def usable(self) -> npt.NDArray[np.int64]:
        """Numbers of the clients not set aside, ascending."""
        return np.setdiff1d(np.arange(len(self)), list(self.set_aside))

    def replaced(self, values: Sequence[Any] | npt.NDArray[Any]) -> Messages:
        """Return what the server collects if clients send these numbers instead."""
        rest = {
            name: getattr(self, name) for name in ("num_classes", "head", "steps", "lr", "noise")
        }
        return collect(values, length=self.values.shape[1], **rest)


def collect(
    messages: Sequence[Any] | npt.NDArray[Any],
    *,
    length: int,
    num_classes: int,
    head: OutputLayer | None = None,
    steps: npt.ArrayLike | None = None,
    lr: float = 0.0,
    noise: float = 0.0,
) -> Messages:
    """Stack the clients' messages, setting aside those that cannot be used.

    Every message is checked by itself: a bad one leaves everybody else's row as it is, bit for bit.

    Parameters
    ----------
    messages
        One flat message per client, of ``length`` numbers; None where nothing arrived. An array of
        shape (N, ``length``) is checked at once, by the same rules.
    steps
        The local steps that each client made, one at least; None stands for one.
    """
    made = np.ones(len(messages), np.int64) if steps is None else np.asarray(steps, np.int64)
    if made.shape != (len(messages),):
        fault = f"{len(messages)} messages but step counts of shape {made.shape}"
        raise CarvyError(f"{fault}; give one per client")
    values, set_aside = np.zeros((len(messages), length), dtype=np.float32), dict[int, str]()
    array = messages if isinstance(messages, np.ndarray) else None
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is found below
        if array is not None and form_fault(array.dtype, array.shape[1:], length) is None:
            values[:] = array
        else:
            for client, message in enumerate(messages):
                numbers = "no message" if message is None else vector(message, length)
                if isinstance(numbers, str):
                    set_aside[client] = numbers
                else:
                    values[client] = numbers
    for client in np.flatnonzero(~np.isfinite(values).all(axis=1)).tolist():
        sent = np.asarray(messages[client])
        fault = "infinity" if np.isinf(sent).any() else "a number too large for float32"
        set_aside[client] = f"holds {'NaN' if np.isnan(sent).any() else fault}"
    set_aside |= dict.fromkeys(np.flatnonzero(made < 1).tolist(), "made no local step")
    if len(set_aside) == len(messages):
        fault = f"none of {len(messages)} clients sent a usable message"
        first = f" (client 0: {set_aside[0]})" if set_aside else ""
        raise CarvyError(f"{fault}{first}; check the clients")
    values[list(set_aside)] = 0.0
    values.flags.writeable = False
    aside = dict(sorted(set_aside.items()))
    return Messages(values, aside, num_classes, head or OutputLayer(), made, lr, noise)
