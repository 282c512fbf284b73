"""Label shares under local differential privacy: a client adds noise before it sends anything.

A client's message is its label shares s, a point of the simplex, plus Gaussian noise. Any two such
points are at most √2 apart, so noise of the scale of :func:`noise_scale` makes the message
(ε, δ)-differentially private, whatever all of the client's data are: the server can hardly tell one
data set of a client from any other. Nothing else is sent, not even the number of samples. What
the server does with the message costs no privacy; it takes the nearest point of the simplex.

This covers Step 1 alone. What a client sends in training is not protected.
"""

from __future__ import annotations

import numpy as np

from carvyfl.core.checks import positive
from carvyfl.core.randomness import generator
from carvyfl.data.clients import Federation
from carvyfl.learning.one_shot.sums import counts_of
from carvyfl.profiles.class_sets import class_set_types, classes_held
from carvyfl.profiles.messages import Messages, collect
from carvyfl.profiles.types import ClientTypes
from carvyfl.profiles.vectors import Floats, Vectors, chance, placed

DELTA = 1e-5
"""δ: the probability with which ε may fail to hold, at most."""
DISTANCE = float(np.sqrt(2))
"""How far two clients' label shares can be apart."""
REMEDY = "raise `epsilon`; `slots` and `wrap` gain nothing from types then"


def noise_scale(epsilon: float) -> float:
    """Return the standard deviation of the noise in each number, the least that suffices.

    Balle and Wang (2018): with distance D and a = D/(2σ), b = εσ/D, the Gaussian mechanism is
    (ε, δ)-private if and only if Φ(a - b) - exp(ε) Φ(-a - b) ≤ δ.
    """
    from scipy.optimize import brentq  # it takes a second to load, and few runs need it
    from scipy.special import log_ndtr

    positive(epsilon, "`epsilon`")

    def excess(log_scale: float) -> float:
        scale = np.exp(log_scale)
        a, b = DISTANCE / (2 * scale), epsilon * scale / DISTANCE
        return float(np.exp(log_ndtr(a - b)) - np.exp(epsilon + log_ndtr(-a - b)) - DELTA)

    return float(np.exp(brentq(excess, np.log(1e-6), np.log(1e6), xtol=1e-12)))


def private_shares(federation: Federation, epsilon: float, seed: int) -> Messages:
    """Have every client send its label shares with noise of its own."""
    scale, num_classes = noise_scale(epsilon), federation.num_classes
    rows = np.empty((len(federation), num_classes), dtype=np.float32)
    for k, client in enumerate(federation.clients):
        counts = counts_of(client.train.labels, num_classes)
        noise = generator(seed, "private shares", k).normal(size=num_classes)
        rows[k] = counts / counts.sum() + scale * noise
    return collect(rows, length=num_classes, num_classes=num_classes, lr=scale)


def onto_simplex(rows: Floats) -> Floats:
    """Return the nearest point of the simplex to each row, shape (n, C)."""
    descending = -np.sort(-rows, axis=1)
    excess = np.cumsum(descending, axis=1) - 1
    count = np.arange(1, rows.shape[1] + 1)
    kept = (descending - excess / count > 0).sum(axis=1)
    shift = excess[np.arange(len(rows)), kept - 1] / kept
    nearest: Floats = np.maximum(rows - shift[:, None], 0.0)
    return nearest


def private_vectors(messages: Messages) -> Vectors:
    """Return the nearest label shares as what is compared."""
    usable, scale = messages.usable, messages.lr
    sent = messages.values[usable].astype(np.float64)
    noise = np.full(len(sent), sent.shape[1] * scale**2)
    return Vectors(placed(onto_simplex(sent), usable, len(messages)), chance(sent, noise))


def private_types(messages: Messages) -> ClientTypes:
    """Give every client the set of classes of which it seems to hold a fair part as its type."""
    shares = onto_simplex(messages.values[messages.usable].astype(np.float64))
    return class_set_types(
        classes_held(shares),
        len(messages),
        messages.set_aside,
        method="private-shares",
        remedy=REMEDY,
    )
