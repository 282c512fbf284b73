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

    ``labels``, int64 of shape (N,), run from 0 to L-1, or are -1 for a client that was set aside;
    ``names`` are L names for people, all different. Neighbouring numbers are alike, and Step 2
    deals clients out in this order, so a true type that was split still spreads over all groups.
    ``local`` is true iff every client's type (and so its name) is a function of its own message
    alone, or was known before any message: then no client can disturb another one's type.
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
            numbers = f"every number from 0 to {len(self.names) - 1} (one per type name)"
            fault = f"labels must use {numbers}, or -1 for a client set aside"
            raise CarvyError(f"client types: {fault}")
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
        """Whether types of ``among`` (all clients) are true up to names, and none is set aside."""
        clients = slice(None) if among is None else among
        pairs = set(zip(self.labels[clients].tolist(), truth[clients].tolist(), strict=True))
        inferred, true = ({pair[i] for pair in pairs} for i in (0, 1))
        return -1 not in inferred and len(pairs) == len(inferred) == len(true)

    def to_json(self) -> dict[str, Any]:
        """Return plain lists and strings, ready for ``json.dump``."""
        plain: dict[str, Any] = msgspec.to_builtins(self, str_keys=True, enc_hook=np.ndarray.tolist)
        return plain

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ClientTypes:
        """Read what :meth:`to_json` wrote."""
        try:
            return msgspec.convert(
                data, cls, str_keys=True, dec_hook=lambda _, numbers: np.array(numbers, np.int64)
            )
        except msgspec.ValidationError as error:
            fault = f"client types: not a saved ClientTypes ({error})"
            raise CarvyError(f"{fault}; infer the types again") from error

    def __str__(self) -> str:
        influence = "each client's by itself" if self.local else "from all clients jointly"
        lines = [f"{self.num_types} types of {len(self)} clients ({self.method}, {influence})"]
        rows = [f"  {t:>4}  {self.names[t]:<24} {n:>8}" for t, n in enumerate(self.sizes.tolist())]
        aside = [f"  client {c} set aside: {why}" for c, why in self.set_aside.items()]
        for part, most in ((rows, 20), (aside, 5)):
            hidden = [f"  … and {len(part) - most} more"] if len(part) > most else []
            lines += part[:most] + hidden
        lines += [f"  warning: {text}" for text in self.warnings]
        return "\n".join(lines)


def given_types(
    labels: Sequence[int | str] | npt.NDArray[Any], method: str = "given"
) -> ClientTypes:
    """Take known types, one whole number or one string per client; sorted, they become 0 … L-1."""
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
    names = tuple(f"{prefix}{value}" for value in values.tolist())
    return ClientTypes(numbers.astype(np.int64), method, local=True, names=names)


SMALL, LARGE = 0.6, 1.75  # of the typical size; an even split gives 0.5, an even merger 2


def size_warnings(sizes: Labels, remedy: str) -> tuple[str, ...]:
    """Say where the sizes of inferred types look wrong.

    The typical size is the median over clients of the size of the client's type. Types of very
    unequal size are a sign of types merged (one much above it) or split (several much below).
    """
    clients, types, most = int(sizes.sum()), len(sizes), int(sizes.max())
    if clients < 2:
        return ()
    if 2 * types > clients:
        return (f"over-segmented: {types} types for {clients} clients, hardly two alike; {remedy}",)
    ascending = np.sort(sizes)
    typical = int(ascending[np.searchsorted(np.cumsum(ascending), clients // 2, side="right")])
    small = sizes[sizes <= SMALL * typical]
    signs = {
        f"under-segmented: {most} of {clients} clients have the same type, so every group would be "
        "alike; if they do differ,": types - len(small) == 1,
        f"under-segmented: type {sizes.argmax()} has {most} clients, the typical one {typical}, so "
        "types may have been merged;": most >= LARGE * typical,
        f"over-segmented: {len(small)} of {types} types have at most {small.max(initial=0)} "
        f"clients, the typical one {typical}, so a type may have been split;": len(small) > 1,
    }
    return tuple(f"{text} {remedy}" for text, holds in signs.items() if holds)


REMEDY = "give the types with `types='given'`, or set `groups`"
MANY_TYPES = "`slots` gains nothing from types then; `carvy` compares profiles instead"
HELD = 0.15  # of a client's largest share: from this part on a class counts as held


def classes_held(shares: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Tell of which classes clients hold a fair part, from their label shares, shape (N, C)."""
    held: npt.NDArray[np.bool_] = shares >= HELD * shares.max(axis=1, keepdims=True)
    return held


def class_set_types(
    held: npt.NDArray[np.bool_],
    set_aside: Mapping[int, str],
    *,
    method: str,
    warnings: tuple[str, ...] = (),
    remedy: str = REMEDY,
) -> ClientTypes:
    """Give every client the set of classes it holds as its type.

    ``held``, shape (N, C), says which classes each client holds, by its own message alone. Types
    are local, and numbered by the sorted class sets in lexicographic order. ``remedy`` is what to
    do where their sizes look wrong; ``warnings`` say what else does.
    """
    usable = np.setdiff1d(np.arange(len(held)), list(set_aside))
    # Sets are compared as packed bits: one step in Python per distinct set.
    packed = np.packbits(held[usable], axis=1)
    keys = packed.view(f"V{packed.shape[1]}")[:, 0]
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    sets = [tuple(np.flatnonzero(held[client]).tolist()) for client in usable[first]]
    rank = {classes: number for number, classes in enumerate(sorted(sets))}
    numbers = np.array([rank[classes] for classes in sets])[inverse]
    labels = np.full(len(held), -1, dtype=np.int64)
    labels[usable] = numbers
    names = tuple(_name(classes, held.shape[1]) for classes in rank)
    signs = size_warnings(np.bincount(numbers), remedy)
    return ClientTypes(labels, method, True, names, signs + warnings, set_aside)


def _name(classes: tuple[int, ...], num_classes: int) -> str:
    """Name a class set: "class 3", "classes 0+1", "classes 0-4+7", "all classes"."""
    if len(classes) == num_classes:
        return "all classes"
    if len(classes) == 1:
        return f"class {classes[0]}"
    runs = np.split(classes, np.flatnonzero(np.diff(classes) > 1) + 1)
    parts = [f"{r[0]}-{r[-1]}" if len(r) > 2 else "+".join(map(str, r)) for r in runs]
    return "classes " + "+".join(parts)
