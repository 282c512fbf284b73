"""A client's type as the set of classes it holds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from carvyfl.profiles.types import ClientTypes, size_warnings

REMEDY = "give the types with `types='given'`, or set `groups`"
MANY_TYPES = "`slots` gains nothing from types then; `carvy` compares profiles instead"
"""What to do about types of clients who also have vectors."""

HELD = 0.15
"""A class counts as held from this part of the client's largest share on."""


def classes_held(shares: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Tell of which classes clients hold a fair part, from their label shares, shape (n, C)."""
    held: npt.NDArray[np.bool_] = shares >= HELD * shares.max(axis=1, keepdims=True)
    return held


def class_set_types(
    held: npt.NDArray[np.bool_],
    num_clients: int,
    set_aside: Mapping[int, str],
    *,
    method: str,
    warnings: tuple[str, ...] = (),
    remedy: str = REMEDY,
) -> ClientTypes:
    """Give every client the set of classes it holds as its type.

    ``held``, shape (n, C), says which classes each client holds that was not set aside; a row
    depends on its own client alone. Types are local, and numbered by the sorted class sets in
    lexicographic order. ``remedy`` is what to do where their sizes look wrong; ``warnings`` say
    what else does.
    """
    sets, numbers = _number_sets(held)
    labels = np.full(num_clients, -1, dtype=np.int64)
    kept = np.ones(num_clients, dtype=np.bool_)
    kept[list(set_aside)] = False
    labels[kept] = numbers
    return ClientTypes(
        labels=labels,
        method=method,
        local=True,
        names=tuple(_name(classes, held.shape[1]) for classes in sets),
        warnings=size_warnings(np.bincount(numbers), remedy) + warnings,
        set_aside=set_aside,
    )


def _number_sets(
    held: npt.NDArray[np.bool_],
) -> tuple[list[tuple[int, ...]], npt.NDArray[np.int64]]:
    """Return the distinct class sets in lexicographic order, and every client's number.

    Sets are compared as packed bits, so that the work in Python is one step per
    distinct set, however many clients there are.
    """
    packed = np.packbits(held, axis=1)
    if packed.shape[1] <= 8:  # one machine word: sorts much faster than raw bytes
        words = np.zeros((len(held), 8), dtype=np.uint8)
        words[:, : packed.shape[1]] = packed
        keys = words.view(np.uint64)[:, 0]
    else:
        keys = packed.view(f"V{packed.shape[1]}")[:, 0]
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    sets = [tuple(np.flatnonzero(held[client]).tolist()) for client in first]
    order = sorted(range(len(sets)), key=sets.__getitem__)
    numbers = np.empty(len(sets), dtype=np.int64)
    numbers[order] = np.arange(len(sets))
    return [sets[i] for i in order], numbers[inverse]


def _name(classes: tuple[int, ...], num_classes: int) -> str:
    """Name a class set: "class 3", "classes 0+1", "classes 0-4+7", "all classes"."""
    if len(classes) == num_classes:
        return "all classes"
    if len(classes) == 1:
        return f"class {classes[0]}"
    runs = np.split(classes, np.flatnonzero(np.diff(classes) > 1) + 1)
    parts = [f"{r[0]}-{r[-1]}" if len(r) > 2 else "+".join(map(str, r)) for r in runs]
    return "classes " + "+".join(parts)
