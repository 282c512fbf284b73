"""Label shares under local differential privacy: a client adds noise before it sends anything.

A client's message is its label shares, a point of the simplex, plus Gaussian noise. Any two such
points are at most √2 apart, so noise of the scale of :func:`noise_scale` makes the message
(ε, δ)-differentially private, whatever all of the client's data are. Nothing else is sent, not even
the number of samples. The server takes the nearest point of the simplex, which costs no privacy.

Noise comes from the operating system, since the server knows every seed. A client that is asked
again spends ε again. Noise is computed in floating-point numbers, against whose gaps (Mironov,
2012) nothing is done. What a client sends in training is not protected.
"""

from __future__ import annotations

import secrets

import numpy as np

from carvyfl.core.checks import positive
from carvyfl.core.errors import CarvyError
from carvyfl.data.clients import Federation
from carvyfl.learning.one_shot.sums import counts_of
from carvyfl.profiles.messages import Messages, Rows, collect
from carvyfl.profiles.types import ClientTypes, class_set_types, classes_held
from carvyfl.profiles.vectors import Floats, Vectors, placed

DELTA = 1e-5  # δ: the probability with which ε may fail to hold, at most
DISTANCE = float(np.sqrt(2))  # how far two clients' label shares can be apart
LARGEST_EPSILON = 1e6  # a larger ε protects nothing: its noise is below a thousandth
REMEDY = "raise `epsilon`; `slots` gains nothing from types then"


def noise_scale(epsilon: float) -> float:
    """Return the standard deviation of the noise in each number, the least that suffices.

    Balle and Wang (2018): with distance D and a = D/(2σ), b = εσ/D, the Gaussian mechanism is
    (ε, δ)-private if and only if Φ(a - b) - exp(ε) Φ(-a - b) ≤ δ.
    """
    from scipy.optimize import brentq  # it takes a second to load, and few runs need it
    from scipy.special import log_ndtr

    if positive(epsilon, "`epsilon`") > LARGEST_EPSILON:
        raise CarvyError(
            f"`epsilon` must be at most {LARGEST_EPSILON:,.0f}, not {epsilon:g}: with more nothing "
            "is private; use `types='class-counts'` to send exact counts"
        )

    def excess(log_scale: float) -> float:
        scale = np.exp(log_scale)
        a, b = DISTANCE / (2 * scale), epsilon * scale / DISTANCE
        return float(np.exp(log_ndtr(a - b)) - np.exp(epsilon + log_ndtr(-a - b)) - DELTA)

    return float(np.exp(brentq(excess, np.log(1e-6), np.log(1e6), xtol=1e-12)))


def private_shares(federation: Federation, epsilon: float, sent: Rows | None = None) -> Messages:
    """Have every client send its label shares with noise of its own, which nobody can draw again.

    ``sent``, shape (N, C), is what clients have sent before and are not asked for again; NaN in
    the rows of the others.
    """
    scale, num_classes = noise_scale(epsilon), federation.num_classes
    rows = np.full((len(federation), num_classes), np.nan, np.float32) if sent is None else sent
    rows = rows.copy()
    for k in np.flatnonzero(np.isnan(rows).all(axis=1)):
        counts = counts_of(federation.clients[k].train.labels, num_classes)
        rows[k] = counts / counts.sum() + scale * secret_normals(num_classes)
    return collect(rows, length=num_classes, num_classes=num_classes, noise=scale)


def secret_normals(count: int) -> Floats:
    """Draw standard normal numbers from the operating system's secure source."""
    from scipy.special import ndtri

    bits = np.frombuffer(secrets.token_bytes(8 * count), np.uint64) >> np.uint64(12)
    normals: Floats = ndtri((bits + 0.5) / 2**52)
    return normals


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
