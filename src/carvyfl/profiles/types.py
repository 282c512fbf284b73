"""A distribution type for every client, and whether the result looks sound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from carvyfl.core.arrays import plain_array
from carvyfl.core.errors import CarvyError

Labels = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ClientTypes:
    """The distribution type of every client (Algorithm 1: the clusters h_1 … h_L).

    Types are numbered so that neighbouring numbers are alike. Step 2 deals clients
    out in this order, so a true type that was split into neighbouring parts still
    spreads over all groups. A type's *number* depends on which other types occur;
    its *name* does not, where ``local`` is true.

    Attributes
    ----------
    labels
        int64 of shape (N,): 0 … L-1, or -1 for a client that was set aside.
    local
        True iff every client's type is a function of its own message alone, or was
        known before any message: then no client can disturb another one's type.
    names
        L names for people, all different.
    """

    labels: Labels
    method: str
    local: bool
    names: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    set_aside: Mapping[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        present = np.unique(self.labels)
        if not np.array_equal(present[present != -1], np.arange(len(self.names))):
            raise CarvyError(
                f"client types: labels must use every number from 0 to {len(self.names) - 1} "
                "(one per type name), or -1 for a client set aside"
            )
        if len(set(self.names)) != len(self.names):
            raise CarvyError("client types: two types have the same name; rename one")
        if sorted(self.set_aside) != np.flatnonzero(self.labels == -1).tolist():
            raise CarvyError("client types: exactly the clients set aside must have type -1")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def known(self) -> bool:
        """Whether no client was asked for its type, so that none can have lied about it."""
        from carvyfl.profiles.methods import PROFILE_METHODS  # its entries need this class

        method = PROFILE_METHODS.get(self.method)
        return method is not None and not method.asks_clients

    @property
    def num_types(self) -> int:
        """L, the number of types."""
        return len(self.names)

    @property
    def sizes(self) -> Labels:
        """Clients of each type, int64 of shape (L,)."""
        return np.bincount(self.labels[self.labels >= 0], minlength=self.num_types)

    def agree_with(self, truth: Labels, among: Labels | None = None) -> bool:
        """Whether these are the true types up to their names, and nobody was set aside.

        ``among`` are the clients that are looked at; default all.
        """
        clients = np.arange(len(self)) if among is None else among
        pairs = set(zip(self.labels[clients].tolist(), truth[clients].tolist(), strict=True))
        found, true = ({pair[i] for pair in pairs} for i in (0, 1))
        return -1 not in found and len(pairs) == len(found) == len(true)

    def to_json(self) -> dict[str, Any]:
        """Return plain lists and strings, ready for ``json.dump``."""
        found: dict[str, Any] = msgspec.to_builtins(self, str_keys=True, enc_hook=np.ndarray.tolist)
        return found

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ClientTypes:
        """Read what :meth:`to_json` wrote."""
        try:
            return msgspec.convert(
                data, cls, str_keys=True, dec_hook=lambda _, numbers: np.array(numbers, np.int64)
            )
        except msgspec.ValidationError as error:
            raise CarvyError(
                f"client types: not a saved ClientTypes ({error}); infer the types again"
            ) from error

    def __str__(self) -> str:
        influence = "each client's by itself" if self.local else "from all clients jointly"
        lines = [f"{self.num_types} types of {len(self)} clients ({self.method}, {influence})"]
        rows = [f"  {t:>4}  {self.names[t]:<24} {n:>8}" for t, n in enumerate(self.sizes.tolist())]
        lines += _shortened(rows, 20)
        aside = [f"  client {c} set aside: {why}" for c, why in self.set_aside.items()]
        lines += _shortened(aside, 5)
        lines += [f"  warning: {text}" for text in self.warnings]
        return "\n".join(lines)


def _shortened(lines: list[str], most: int) -> list[str]:
    """Keep the first lines and say how many were left out."""
    hidden = len(lines) - most
    return lines if hidden <= 0 else [*lines[:most], f"  … and {hidden} more"]


def given_types(
    labels: Sequence[int | str] | npt.NDArray[Any], method: str = "given"
) -> ClientTypes:
    """Take types the operator already knows: one whole number or one string per client.

    Sorted, they become 0 … L-1. ``method`` is "oracle" for a simulation's true types.
    """
    array = plain_array(labels, f"{method} types")
    if array.ndim != 1 or len(array) == 0:
        raise CarvyError(f"{method} types of shape {array.shape}: give one label per client")
    mixed = len({isinstance(label, str) for label in labels}) > 1
    if array.dtype.kind not in "iuU" or mixed:
        raise CarvyError(f"{method} types must be all whole numbers or all strings")
    prefix = "type "
    if array.dtype.kind == "U":  # NumPy's own strings lose NUL characters at their end
        prefix, array = "", np.asarray(labels, dtype=object)
    values, numbers = np.unique(array, return_inverse=True)
    return ClientTypes(
        labels=numbers.astype(np.int64),
        method=method,
        local=True,
        names=tuple(f"{prefix}{value}" for value in values.tolist()),
    )


SMALL, LARGE = 0.6, 1.75  # of the typical size; an even split gives 0.5, an even merger 2


def size_warnings(sizes: Labels, remedy: str) -> tuple[str, ...]:
    """Say where the sizes of inferred types look wrong.

    The typical size is the median over clients of the size of the client's type.
    Groups get one client of each type, so types of very unequal size are a sign
    of types merged (one much above the typical) or split (several much below).
    """
    clients, types = int(sizes.sum()), len(sizes)
    if clients < 2:
        return ()
    if 2 * types > clients:
        return (f"over-segmented: {types} types for {clients} clients, hardly two alike; {remedy}",)
    ascending = np.sort(sizes)
    typical = int(ascending[np.searchsorted(np.cumsum(ascending), clients // 2, side="right")])
    small = sizes <= SMALL * typical
    found = []
    if np.count_nonzero(~small) == 1:
        found.append(
            f"under-segmented: {sizes.max()} of {clients} clients have the same type, "
            f"so every group would be alike; if they do differ, {remedy}"
        )
    if sizes.max() >= LARGE * typical:
        found.append(
            f"under-segmented: type {sizes.argmax()} has {sizes.max()} clients, the typical one "
            f"{typical}, so types may have been merged; {remedy}"
        )
    if np.count_nonzero(small) > 1:
        found.append(
            f"over-segmented: {np.count_nonzero(small)} of {types} types have at most "
            f"{sizes[small].max()} clients, the typical one {typical}, so a type may have been "
            f"split; {remedy}"
        )
    return tuple(found)
