"""Types from the output layer's bias: which classes a client holds.

Softmax cross-entropy moves the bias of class c by ``Δb_c = η Σ (share_c - p_c)``
over the K local steps, where ``share_c`` is the class's share of the batch and
``p_c`` the model's mean probability for it. A class the client does not hold
has share 0, so its bias can only fall. One epoch therefore tells the classes a
client holds, from C numbers of its own report and nobody else's.

A model whose output layer has no bias gives the same profile through its
weights: row c moves by ``η Σ mean((1[y=c] - p_c) · features)``, and where the
features are (mostly) nonnegative, as after ReLU, sigmoid, GELU or SiLU, the
sum over a row has the sign of the bias update. After tanh it does not; the
result then carries a warning.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from carvyfl.errors import CarvyError
from carvyfl.inference.reports import Updates
from carvyfl.inference.types import ClientTypes, size_warnings

Floats = npt.NDArray[np.float64]

REMEDY = "give the types with --types given, or set --groups"
FLAT = (0.5, 1.5)  # times the fair share 1/C: an estimated histogram within is nearly flat
GAP = 0.5  # of the profile's range: a larger gap separates classes, however flat the histogram
FELL = -0.5  # row sum over absolute row sum: -1 for a class not held, where features are >= 0
BLOCK = 256  # clients whose weights are worked on at once


def bias_profile_types(updates: Updates) -> ClientTypes:
    """Give every client the set of classes it holds as its type.

    The rule, for each client by itself: sort the bias update; the classes above
    the largest gap are the classes it holds, where only gaps below the last class
    that rose count (a class that rose is held). The type is "all classes" if every
    class rose, or if all three of these hold: the estimated label histogram is nearly
    flat (each class between 0.5 and 1.5 times 1/C), no gap exceeds half the range, and
    in the output weights, which must be in the report, no class fell across the
    features (row sum below -0.5 times the absolute row sum).

    Wherever the plain largest gap finds the classes held, the restricted one does
    too, for a class not held always falls; it also survives clients with unequal
    shares of their classes, whose largest gap may lie between two held ones. The
    weights are asked because a long epoch flattens the histogram of skewed clients
    too, while the row of a class not held falls in every feature that is never
    negative. Where features take both signs, they cannot object.

    Clients that hold all classes may still get the classes they hold most of: with
    few samples, with 2 or 3 classes, or without weights in the report. For such
    clients one grouping is as good as another; the sizes of the types give a warning.

    Parameters
    ----------
    updates
        One-epoch updates with an output bias, or output weights over features
        that are mostly nonnegative.

    Returns
    -------
    ClientTypes
        Local; numbered by the sorted class sets in lexicographic order.

    Raises
    ------
    CarvyError
        If the updates hold neither bias nor weights of the output layer.
    """
    usable = updates.usable
    profiles = _profiles(updates)[usable]
    held = _held(profiles) | _all_held(updates, profiles)[:, None]
    sets, numbers = _number_sets(held)
    labels = np.full(len(updates), -1, dtype=np.int64)
    labels[usable] = numbers
    warnings = size_warnings(np.bincount(numbers), REMEDY)
    if updates.head.bias is None and np.median(_deepest_falls(updates, usable)) > FELL:
        warnings += (
            "the output layer has no bias and its inputs seem to take both signs, or most clients "
            "hold all classes; give the layer a bias, use --types xmeans or --types given",
        )
    return ClientTypes(
        labels=labels,
        method="bias-profile",
        local=True,
        names=tuple(_name(classes, updates.num_classes) for classes in sets),
        warnings=warnings,
        set_aside=updates.set_aside,
    )


def label_histograms(updates: Updates) -> Floats:
    """Estimate every client's label shares from its own report.

    With an output bias: max(0, Δb/(ηK) + 1/C), normalised. It is exact to first
    order in η from a model that gives every class 1/C; the longer the training,
    the flatter the estimate, while its order stays. Without one the profile's
    scale is unknown, and is set such that the class which fell furthest has share 0.

    Returns
    -------
    ndarray
        float64 of shape (N, C), rows summing to 1; flat for a client that was set
        aside or reported no change.
    """
    profiles = _profiles(updates)
    shares: Floats
    if updates.head.bias is None:
        shares = profiles - profiles.min(axis=1, keepdims=True)
    else:
        per_step = updates.lr * np.maximum(updates.steps, 1)
        shares = np.maximum(0.0, profiles / per_step[:, None] + 1.0 / updates.num_classes)
    totals = shares.sum(axis=1, keepdims=True)
    empty = np.flatnonzero(totals == 0)
    shares[empty], totals[empty] = 1.0, updates.num_classes
    shares /= totals
    return shares


def _profiles(updates: Updates) -> Floats:
    """Return the bias update, or what plays its part, as shape (N, C)."""
    if updates.head.bias is not None:
        return updates.values[:, updates.head.bias].astype(np.float64)
    sums: Floats = _rows(updates).sum(axis=2, dtype=np.float64)
    return sums


def _rows(updates: Updates) -> npt.NDArray[np.float32]:
    """Return the output layer's weight update as shape (N, C, features)."""
    if updates.head.weight is None:
        raise CarvyError(
            "types 'bias-profile' need the bias or the weights of the output layer in the "
            "updates, which hold neither; use --types xmeans, given or oracle"
        )
    weights = updates.values[:, updates.head.weight]
    return weights.reshape(len(updates), updates.num_classes, -1)


def _deepest_falls(updates: Updates, clients: npt.NDArray[np.int64]) -> Floats:
    """Return, for each client, the least ratio of row sum to absolute row sum.

    Between -1 (some class fell in every feature) and 1; 0 where nothing moved.
    """
    rows = _rows(updates)
    lowest = np.zeros(len(clients))
    for start in range(0, len(clients), BLOCK):
        block = rows[clients[start : start + BLOCK]]
        sums = block.sum(axis=2, dtype=np.float64)
        sizes = np.abs(block).sum(axis=2, dtype=np.float64)
        ratios = np.divide(sums, sizes, out=np.zeros_like(sums), where=sizes > 0)
        lowest[start : start + BLOCK] = ratios.min(axis=1)
    return lowest


def _held(profiles: Floats) -> npt.NDArray[np.bool_]:
    """Cut each client's sorted profile at its largest gap; shape (N, C), True above."""
    ascending = np.sort(profiles, axis=1)
    gaps = np.diff(ascending, axis=1)
    gaps[ascending[:, :-1] > 0] = -1.0  # below such a gap lies a class that rose
    lowest_held = np.take_along_axis(ascending, gaps.argmax(axis=1)[:, None] + 1, axis=1)
    held: npt.NDArray[np.bool_] = (profiles >= lowest_held) | (ascending[:, :1] > 0)
    return held


def _all_held(updates: Updates, profiles: Floats) -> npt.NDArray[np.bool_]:
    """Tell which usable clients show no sign of a class they do not hold; shape (n,)."""
    usable, fair = updates.usable, 1.0 / updates.num_classes
    if updates.head.weight is None:
        return np.zeros(len(usable), dtype=np.bool_)
    shares = label_histograms(updates)[usable]
    flat: npt.NDArray[np.bool_] = shares.min(axis=1) >= FLAT[0] * fair
    flat &= shares.max(axis=1) <= FLAT[1] * fair
    flat &= np.diff(np.sort(profiles, axis=1)).max(axis=1) <= GAP * np.ptp(profiles, axis=1)
    flat[flat] = _deepest_falls(updates, usable[flat]) >= FELL
    return flat


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
    runs: list[list[int]] = []
    for c in classes:
        if runs and c == runs[-1][-1] + 1:
            runs[-1].append(c)
        else:
            runs.append([c])
    parts = [f"{r[0]}-{r[-1]}" if len(r) > 2 else "+".join(map(str, r)) for r in runs]
    return "classes " + "+".join(parts)
