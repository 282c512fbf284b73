"""What the server makes of private messages: weights, heads, profiles and inputs to try heads on.

All of it follows from the messages, so none of it costs any ε. A client's weights and profile are
functions of its message alone, a group's head of its members' messages.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from carvyfl.core.errors import CarvyError
from carvyfl.core.randomness import generator
from carvyfl.learning.one_shot.sums import NEVER
from carvyfl.learning.private.message import Messages
from carvyfl.privacy.class_sums import COUNT_WEIGHT
from carvyfl.privacy.noise import STEP

DOUBT = 8.0
"""z² at which a client's part of a class counts by half, z the number of samples over its noise."""
LEAST_COUNT = 2.0
"""Standard deviations of noise: a class with fewer samples in a group is not voted for."""
LENGTHS = 0.3
"""How far squared lengths of class means are taken to differ, before any is seen."""
LEADING = 16
"""Numbers of each class's sum in a profile: along the others there is more noise than signal."""
SUMS_SCALE = 0.3
"""Of these numbers in a profile: numbers of samples matter most where both differ."""
FARTHEST = 1.5
"""Inputs that heads are tried on are so many times as far from their class mean as a length of 1
allows: heads then get about as many wrong as of real inputs."""

LEAST_ROOM = 0.05
"""Of the squared length of such inputs, the least part that lies off their class mean."""
AT_ONCE = 1 << 14
"""Clients whose messages are worked on together, where there are many."""

Floats = npt.NDArray[np.float64]
Floats32 = npt.NDArray[np.float32]


def weights(messages: Messages) -> Floats:
    """Return with which weight, 0 … 1, every client's part of each class counts, (K, C).

    A client holds few classes, as a rule, and sends as much noise for the others. With z = n over
    the noise in n, 0 if that is negative, the weight is z² / (z² + 8).
    """
    counts = np.maximum(messages.counts, 0.0)
    if messages.sigma == 0:
        return (counts > 0).astype(np.float64)
    squares = np.square(counts / messages.count_sigma)
    return squares / (squares + DOUBT)


def head(messages: Messages) -> tuple[Floats, Floats]:
    """Return the weights (C, d) and biases (C,) of the head of a group with these members.

    With w the members' weights, M = Σ w M_k and n = Σ w n_k, an input goes to the class c with the
    largest μ_c·x - ‖μ_c‖²/2, the nearest μ_c = M_c / n_c. The noise in each number of μ_c has the
    variance τ² = σ² Σ w² / n²; ‖μ_c‖² - d τ² is free of what noise adds to a length, but spreads by

        v = 2 d τ⁴ + 4 τ² ‖μ_c‖² + 4 ‖μ_c‖⁴ τ² / 0.3²,

    from the noise in M and in n. So it is drawn towards the other classes' by 0.3² / (0.3² + v).
    Without noise this is the nearest class mean. Classes with too few samples get the bias
    ``NEVER``; without any other class, all numbers are NaN, and the group does not vote.
    """
    first, counts, part = messages.sums, messages.counts, weights(messages)
    width = first.shape[2]
    sums = np.einsum("kc,kcd->cd", part, first)
    totals, noise = (part * counts).sum(axis=0), np.square(part).sum(axis=0)
    least = LEAST_COUNT * messages.count_sigma * np.sqrt(noise)
    held = np.flatnonzero((totals > least) & (totals > 0))
    matrix, biases = np.zeros(sums.shape), np.full(len(sums), NEVER)
    if not len(held):
        return np.full_like(matrix, np.nan), np.full_like(biases, np.nan)
    means = sums[held] / totals[held, None]
    variance = messages.sigma**2 * noise[held] / np.square(totals[held])
    lengths = np.square(means).sum(axis=1) - width * variance
    spread = 2 * width * variance**2 + 4 * variance * (
        np.maximum(lengths, 0.0) + np.square(lengths / COUNT_WEIGHT)
    )
    trust = LENGTHS**2 / (LENGTHS**2 + spread)
    usual = (trust * lengths).sum() / trust.sum()
    matrix[held] = means
    biases[held] = -(usual + trust * (lengths - usual)) / 2
    return matrix, biases


def profiles(messages: Messages) -> tuple[Floats32, Floats, Floats]:
    """Return what anticlustering compares of each client, its size, and the error by noise.

    Rows, float32 of shape (K, C + C·16), are label shares and the leading numbers of the sums, with
    the client's weights and over its size, which is the weighted number of its samples (K,). No row
    is longer than √(1 + 0.3²), and that of a client without any class is zero. Errors (K,) are the
    expected squared errors of the rows.
    """
    width = messages.units.shape[2] - 1
    leading = min(LEADING, width)
    classes = messages.units.shape[1]
    rows = np.zeros((len(messages), classes * (1 + leading)), np.float32)
    sizes, errors = np.zeros(len(messages)), np.zeros(len(messages))
    variance = messages.count_sigma**2 + leading * (SUMS_SCALE * messages.sigma) ** 2
    for part in _parts(len(messages)):
        some = messages.of_clients(part)
        share = weights(some)
        amounts = share * np.maximum(some.counts, 0.0)
        sums = share[..., None] * (some.units[..., :leading] * STEP)
        lengths = np.linalg.norm(sums, axis=2)
        sums *= (SUMS_SCALE * np.minimum(1.0, amounts / np.maximum(lengths, STEP)))[..., None]
        size = amounts.sum(axis=1)
        both = np.hstack([amounts, sums.reshape(len(sums), -1)])
        both /= np.maximum(size, STEP)[:, None]
        rows[part], sizes[part] = both, size
        # To first order: the noise in the size, by which a row is divided, moves all of it.
        noisy = np.square(share).sum(axis=1)
        by_size = noisy * np.square(both).sum(axis=1)
        by_size -= 2 * (np.square(share) * both[:, :classes]).sum(axis=1)
        expected = noisy * variance + by_size * messages.count_sigma**2
        errors[part] = expected / np.maximum(size, STEP) ** 2
    return rows, sizes, errors


def trial(
    messages: Messages, spread: Floats32, size: int, seed: int
) -> tuple[Floats32, npt.NDArray[np.int64]]:
    """Draw made-up vectors (size, d) and their classes (size,), to compare numbers of groups.

    A class is drawn as often as all clients together hold it. Its vectors are normal around its
    mean over all clients, with the ``spread`` of the map along each direction, and brought back to
    length 1 at most. What groups' heads make of them tells which number of groups is best; it is
    no estimate of their accuracy on real inputs.
    """
    classes, width = messages.units.shape[1], messages.units.shape[2] - 1
    sums, totals = np.zeros((classes, width)), np.zeros(classes)
    for part in _parts(len(messages)):
        some = messages.of_clients(part)
        share = weights(some)
        sums += np.einsum("kc,kcd->cd", share, some.sums)
        totals += (share * some.counts).sum(axis=0)
    if not totals.any():
        raise CarvyError(
            "the number of groups cannot be estimated: noise hides which classes clients hold; "
            "raise `epsilon`, or set `groups`"
        )
    means = sums / np.maximum(totals, 1.0)[:, None]
    draw = generator(seed, "private trial")
    labels = draw.choice(classes, size, p=totals / totals.sum()).astype(np.int64)
    room = np.sqrt(np.maximum(1 - np.square(means).sum(axis=1), LEAST_ROOM))
    vectors = draw.standard_normal((size, width)) * spread
    vectors = means[labels] + FARTHEST * room[labels, None] * vectors
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1.0)
    return vectors.astype(np.float32), labels


def _parts(clients: int) -> list[slice]:
    """Cut clients into parts whose messages are worked on together."""
    return [slice(k, k + AT_ONCE) for k in range(0, clients, AT_ONCE)]
