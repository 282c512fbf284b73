"""Types from the output layer: which classes a client holds.

Softmax cross-entropy moves row c of the output weights by ``η Σ mean((1[y=c] - p_c) · features)``
over the K local steps, and its bias by ``η Σ (share_c - p_c)``, where ``share_c`` is the class's
share of the batch and ``p_c`` the model's mean probability for it. For a class the client does not
hold the indicator is 0: its bias can then only fall and, where features are never negative (as
after ReLU), so can every weight of its row; the row of a class it does hold rises in the features
that its samples show most. Without an output bias the sum over a row of weights has the sign of the
bias update, but not after tanh; the result then carries a warning.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import numpy.typing as npt

from carvyfl.core.errors import CarvyError
from carvyfl.profiles.messages import MessageForm, Messages, OutputLayer, Rows
from carvyfl.profiles.types import ClientTypes, class_set_types
from carvyfl.profiles.vectors import Floats

Ints = npt.NDArray[np.int64]

RISE = 0.15  # of the largest rise in any row: a class whose row rose less counts for nothing
FLAT = (0.5, 1.5)  # times the fair share 1/C: an estimated histogram within is nearly flat
GAP = 0.5  # of the profile's range: a larger gap separates classes, however flat the histogram
FELL = -0.5  # row sum over absolute row sum: -1 for a class not held, where features are >= 0
UPDATES_AT_ONCE = 64  # whole updates, of perhaps 100,000 weights each
CLIENTS_AT_ONCE = 65_536  # profiles, of C numbers each
NO_OUTPUT_LAYER = (
    "types 'bias-profile' need the bias or the weights of the output layer in the "
    "updates, which hold neither; use `types='xmeans'`, given or oracle"
)


def bias_profile_types(updates: Messages) -> ClientTypes:
    """Give every client the set of classes it holds as its type.

    The rule, for each client by itself: the classes whose row of output weights rose somewhere, by
    at least 0.15 times the largest rise of all, if that leaves a class out. With features that are
    never negative no class is ever taken for held that is not; the threshold leaves out classes of
    which a client has next to nothing, and the small rises that features such as GELU's allow.

    If every row rose (the client holds all classes, or features take both signs), or if the weights
    are not in the message, the bias decides: sort its update; the classes above the largest gap are
    held, where only gaps below the last class that rose count. Then the type is "all classes" if
    every class rose, or if all three of these hold: the estimated label histogram is nearly flat
    (each class between 0.5 and 1.5 times 1/C), no gap exceeds half the range, and in the output
    weights no class fell across the features (row sum below -0.5 times the absolute row sum). The
    bias alone is not enough: in an epoch of few steps that of a held class often falls.

    ``updates`` are one-epoch updates with an output bias, or output weights over features that
    are mostly nonnegative; or what :func:`profile_form` makes of them.
    """
    messages, usable = _in_form(updates), updates.usable
    held = np.zeros((len(updates), updates.num_classes), dtype=np.bool_)
    for first in range(0, len(usable), CLIENTS_AT_ONCE):
        clients = usable[first : first + CLIENTS_AT_ONCE]
        held[clients] = _classes_held(messages, clients)
    warnings: tuple[str, ...] = ()
    if updates.head.bias is None and np.median(_falls(messages, usable)) > FELL:
        warnings = (
            "the output layer has no bias and its inputs seem to take both signs, or most clients "
            "hold all classes; give the layer a bias, use `types='xmeans'` or `types='given'`",
        )
    return class_set_types(held, updates.set_aside, method="bias-profile", warnings=warnings)


def label_histograms(updates: Messages) -> Floats:
    """Estimate every client's label shares from its own message, float64 of shape (N, C).

    With an output bias: max(0, Δb/(ηK) + 1/C), normalised. It is exact to first order in η from a
    model that gives every class 1/C; the longer the training, the flatter the estimate, while its
    order stays. Without one the profile's scale is unknown, and is set such that the class which
    fell furthest has share 0. Flat for a client that was set aside or sent no change.
    """
    messages, everybody = _in_form(updates), np.arange(len(updates))
    return _shares(messages, everybody, _profiles(messages, everybody))


def profile_form(head: OutputLayer, num_classes: int) -> MessageForm:
    """Return the 2 C + 1 numbers that the rules here read of an update.

    They are the profile (the bias update, or the mean of each row of the weight update where there
    is no bias), the largest rise in each row of the weights, and the fall: the least ratio, over
    the rows, of the row sum to the absolute row sum; -1 if some class fell in every feature, 0 if
    no weight moved. Whole updates are brought into this form first.
    """
    if head.weight is None:
        raise CarvyError(NO_OUTPUT_LAYER)
    length = 2 * num_classes + 1
    profile, rises = slice(0, num_classes), slice(num_classes, length - 1)
    bias, means = (None, profile) if head.bias is None else (profile, None)
    sent = OutputLayer(bias, row_means=means, rises=rises, fall=slice(length - 1, length))
    make = functools.partial(_summary, head.weight, head.bias, num_classes)
    return MessageForm(length, sent, make)


def _summary(weight: slice, bias: slice | None, num_classes: int, updates: Rows) -> Rows:
    """Bring whole updates, shape (n, P), into the form of :func:`profile_form`."""
    messages = np.empty((len(updates), 2 * num_classes + 1), dtype=np.float32)
    for first in range(0, len(updates), UPDATES_AT_ONCE):
        block = slice(first, first + UPDATES_AT_ONCE)
        # As float64 first: the sum of one client's rows then is the same alone and stacked.
        rows = updates[block, weight].astype(np.float64)
        rows = rows.reshape(len(rows), num_classes, -1)
        sums, sizes = rows.sum(axis=2), np.abs(rows).sum(axis=2)
        ratios = np.divide(sums, sizes, out=np.zeros_like(sums), where=sizes > 0)
        # Means, not sums: the mean of float32 numbers is within float32's range again.
        profile = sums / rows.shape[2] if bias is None else updates[block, bias]
        messages[block, :num_classes] = profile
        messages[block, num_classes:-1] = np.maximum(rows.max(axis=2), 0)
        messages[block, -1] = ratios.min(axis=1)
    return messages


def _in_form(updates: Messages) -> Messages:
    """Reduce whole updates to what the rules read; leave messages that are small already."""
    head = updates.head
    if head.weight is None:
        if head.bias is None and head.row_means is None:
            raise CarvyError(NO_OUTPUT_LAYER)
        return updates
    form = profile_form(head, updates.num_classes)
    assert form.make is not None
    return dataclasses.replace(updates, values=form.make(updates.values), head=form.head)


def _profiles(messages: Messages, clients: Ints) -> Floats:
    """Return the bias update, or what plays its part, as shape (n, C)."""
    profile = messages.head.bias or messages.head.row_means
    return messages.values[clients, profile].astype(np.float64)


def _falls(messages: Messages, clients: Ints) -> Rows:
    """Return how far each client's most fallen class fell; -1 where no weights were seen."""
    if messages.head.fall is None:
        return np.full(len(clients), -1.0, dtype=np.float32)
    return messages.values[clients, messages.head.fall][:, 0]


def _shares(messages: Messages, clients: Ints, profiles: Floats) -> Floats:
    """Estimate these clients' label shares from their profiles; both of shape (n, C)."""
    shares: Floats
    if messages.head.bias is None:
        shares = profiles - profiles.min(axis=1, keepdims=True)
    else:
        per_step = messages.lr * np.maximum(messages.steps[clients], 1)
        shares = np.maximum(0.0, profiles / per_step[:, None] + 1.0 / messages.num_classes)
    totals = shares.sum(axis=1, keepdims=True)
    empty = np.flatnonzero(totals == 0)
    shares[empty], totals[empty] = 1.0, messages.num_classes
    shares /= totals
    return shares


def _classes_held(messages: Messages, clients: Ints) -> npt.NDArray[np.bool_]:
    """Tell which classes each of these clients holds; shape (n, C)."""
    profiles = _profiles(messages, clients)
    ascending = np.sort(profiles, axis=1)
    gaps = np.diff(ascending, axis=1)

    shares, fair = _shares(messages, clients, profiles), 1.0 / messages.num_classes
    everything = (
        (shares.min(axis=1) >= FLAT[0] * fair)
        & (shares.max(axis=1) <= FLAT[1] * fair)
        & (gaps.max(axis=1) <= GAP * (ascending[:, -1] - ascending[:, 0]))
        & (_falls(messages, clients) >= FELL)
    ) | (ascending[:, 0] > 0)  # or every class rose

    gaps[ascending[:, :-1] > 0] = -1.0  # below such a gap lies a class that rose
    lowest_held = np.take_along_axis(ascending, gaps.argmax(axis=1)[:, None] + 1, axis=1)
    held: npt.NDArray[np.bool_] = (profiles >= lowest_held) | everything[:, None]
    if messages.head.rises is None:
        return held
    rises = messages.values[clients, messages.head.rises]
    rose = rises > RISE * rises.max(axis=1, keepdims=True)
    telling = rose.any(axis=1) & ~rose.all(axis=1)
    return np.where(telling[:, None], rose, held)
