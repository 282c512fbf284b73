"""Label shares under local differential privacy: a client adds noise before it sends anything.

A client's message is its label shares, rounded down to multiples of 2⁻¹², plus Gaussian noise of
:mod:`carvyfl.privacy`. Any two clients' shares are at most √2 apart, so the message is (ε, δ)-
differentially private, whatever all of the client's data are. Nothing else is sent, not even the
number of samples. The server takes the nearest point of the simplex, which costs no privacy.

Noise comes from the operating system, since the server knows every seed. A client that is asked
again spends ε again. What a client sends in training is not protected.
"""

from __future__ import annotations

import numpy as np

from carvyfl.data.clients import Federation
from carvyfl.learning.one_shot.sums import counts_of
from carvyfl.privacy.noise import STEP, GaussianNoise, simulated_noise
from carvyfl.profiles.messages import Messages, Rows, collect
from carvyfl.profiles.types import ClientTypes, class_set_types, classes_held
from carvyfl.profiles.vectors import Floats, Vectors, placed

DELTA = 1e-5  # δ: the probability with which ε may fail to hold, at most
WHOLE = round(1 / STEP)  # a share of 1, in units
REMEDY = "raise `epsilon`; `slots` gains nothing from types then"


def noise_for_shares(epsilon: float) -> GaussianNoise:
    """Return the noise that hides all of a client's data: the squared distance is 2 at most."""
    return GaussianNoise(epsilon, DELTA, 2 * WHOLE**2)


def private_shares(federation: Federation, epsilon: float, sent: Rows | None = None) -> Messages:
    """Have every client send its label shares with noise of its own, which nobody can draw again.

    ``sent``, shape (N, C), is what clients have sent before and are not asked for again; NaN in
    the rows of the others.
    """
    noise, num_classes = noise_for_shares(epsilon), federation.num_classes
    rows = np.full((len(federation), num_classes), np.nan, np.float32) if sent is None else sent
    rows = rows.copy()
    for k in np.flatnonzero(np.isnan(rows).all(axis=1)):
        counts = counts_of(federation.clients[k].train.labels, num_classes).astype(np.int64)
        rows[k] = noise.add(counts * WHOLE // counts.sum(), simulated_noise) * STEP
    scale = noise.scale * STEP
    return collect(rows, length=num_classes, num_classes=num_classes, noise=scale)


def onto_simplex(rows: Floats) -> Floats:
    """Return the nearest point of the simplex to each row, shape (n, C).

    A point of it, but for float32's rounding, stays as it is, to the bit.
    """
    # A number that is more than 1 below the largest has no part in it, however large that is.
    near = np.maximum(rows - rows.max(axis=1, keepdims=True), -1.0)
    descending = -np.sort(-near, axis=1)
    excess = np.cumsum(descending, axis=1) - 1
    count = np.arange(1, rows.shape[1] + 1)
    positive_ones = (descending - excess / count > 0).sum(axis=1)
    shift = excess[np.arange(len(rows)), positive_ones - 1] / positive_ones
    on_it = (rows.min(axis=1) >= 0) & (np.abs(rows.sum(axis=1) - 1) < 1e-6)
    nearest: Floats = np.where(on_it[:, None], rows, np.maximum(near - shift[:, None], 0.0))
    return nearest


def private_vectors(messages: Messages) -> Vectors:
    """Return the nearest label shares as what is compared.

    By noise alone squared distances are σ² times chi-squared with C degrees of freedom, whose
    median is C (1 - 2/(9 C))³ (Wilson and Hilferty, 1931). How much is chance is told by medians,
    since a client may send anything.
    """
    usable, size = messages.usable, messages.num_classes
    sent = messages.values[usable]
    distances = ((sent.astype(np.float64) - np.median(sent, axis=0)) ** 2).sum(axis=1)
    differ = float(np.median(distances))
    noise = messages.noise**2 * size * (1 - 2 / (9 * size)) ** 3
    by_chance = min(1.0, noise / differ) if differ > 0 else 1.0
    rows = placed(onto_simplex(sent.astype(np.float64)), usable, len(messages))
    return Vectors(rows, by_chance)


def private_types(messages: Messages) -> ClientTypes:
    """Give every client the set of classes of which it seems to hold a fair part as its type."""
    shares = private_vectors(messages).rows.astype(np.float64)  # rounded as a run keeps them
    held, set_aside = classes_held(shares), messages.set_aside
    return class_set_types(held, set_aside, method="private-shares", remedy=REMEDY)
