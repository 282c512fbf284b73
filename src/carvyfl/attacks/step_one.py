"""Attacks on Step 1: what malicious clients report instead of their one-epoch update.

An attack sees every honest report and may choose its own as a function of all of them: the
attackers know everything but the server's coins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from carvyfl.core.errors import pick
from carvyfl.profiles.messages import Rows, Updates, collect

Numbers = npt.NDArray[np.int64]
StepOneAttack = Callable[[Rows, Numbers, np.random.Generator], Rows]
"""From what all clients would report, float32 of shape (N, P), the numbers of the malicious ones
and a generator, to what all clients do report; the rows of honest clients stay as they are."""


def orthogonal(
    reports: Rows,
    malicious: Numbers,
    draw: np.random.Generator,
    *,
    scale: float,
    shared: bool = True,
) -> Rows:
    """Report directions orthogonal to every honest report.

    Parameters
    ----------
    reports, malicious, draw
        See :data:`StepOneAttack`.
    scale
        Length, in median lengths of an honest report.
    shared
        Whether all malicious clients report the same direction, or different ones that
        are orthogonal to each other as well.
    """
    others = np.delete(reports, malicious, axis=0).astype(np.float64)
    count = 1 if shared else len(malicious)
    found = draw.normal(size=(count, reports.shape[1]))
    span = np.linalg.qr(others.T)[0]
    if span.shape[1] < reports.shape[1]:  # where they fill the space, no direction is left
        found -= (found @ span) @ span.T
    found = np.linalg.qr(found.T)[0].T
    length = scale * np.median(np.linalg.norm(others, axis=1))
    sent = reports.copy()
    sent[malicious] = length * found
    return sent


def giant(reports: Rows, malicious: Numbers, draw: np.random.Generator) -> Rows:
    """Report finite numbers so large that any sum with them overflows float32."""
    return _filled(reports, malicious, 3e38)


def not_a_number(reports: Rows, malicious: Numbers, draw: np.random.Generator) -> Rows:
    """Report NaN."""
    return _filled(reports, malicious, np.nan)


def infinite(reports: Rows, malicious: Numbers, draw: np.random.Generator) -> Rows:
    """Report infinity."""
    return _filled(reports, malicious, np.inf)


def mimic(reports: Rows, malicious: Numbers, draw: np.random.Generator) -> Rows:
    """Report, each, what some honest client reports: a plausible type, but not one's own."""
    sent = reports.copy()
    sent[malicious] = reports[draw.choice(_honest(reports, malicious), len(malicious))]
    return sent


def flood(reports: Rows, malicious: Numbers, draw: np.random.Generator) -> Rows:
    """Report, all, what one honest client reports, so that its type grows by m."""
    sent = reports.copy()
    sent[malicious] = reports[draw.choice(_honest(reports, malicious))]
    return sent


def between(reports: Rows, malicious: Numbers, draw: np.random.Generator) -> Rows:
    """Report the point half-way between two honest clients that are far from each other."""
    honest = _honest(reports, malicious)
    first = reports[draw.choice(honest)].astype(np.float64)
    far = np.argmax(np.linalg.norm(reports[honest] - first, axis=1))
    sent = reports.copy()
    sent[malicious] = (first + reports[honest[far]]) / 2
    return sent


def unheard_of(reports: Rows, malicious: Numbers, draw: np.random.Generator) -> Rows:
    """Report the opposite of one's own update: a type that nobody else has."""
    sent = reports.copy()
    sent[malicious] *= -1
    return sent


def honest_then_gone(reports: Rows, malicious: Numbers, draw: np.random.Generator) -> Rows:
    """Report honestly; these clients take no part in training afterwards."""
    return reports.copy()


def _filled(reports: Rows, malicious: Numbers, value: float) -> Rows:
    sent = reports.copy()
    sent[malicious] = value
    return sent


def _honest(reports: Rows, malicious: Numbers) -> Numbers:
    return np.delete(np.arange(len(reports)), malicious)


STEP_ONE_ATTACKS: Final[Mapping[str, StepOneAttack]] = {
    "orthogonal-1.5": partial(orthogonal, scale=1.5),
    "orthogonal-2": partial(orthogonal, scale=2.0),
    "orthogonal-10": partial(orthogonal, scale=10.0),
    "colluding-orthogonal": partial(orthogonal, scale=2.0, shared=False),
    "giant": giant,
    "nan": not_a_number,
    "infinity": infinite,
    "mimic": mimic,
    "flood": flood,
    "between": between,
    "unheard-of": unheard_of,
    "honest-then-gone": honest_then_gone,
}
"""Every attack on Step 1, by name."""

GONE: Final = frozenset({"honest-then-gone"})
"""The attacks whose clients take no part in training."""


def attacked(
    updates: Updates, attack: str, malicious: Numbers, draw: np.random.Generator
) -> Updates:
    """Return what the server collects when some clients attack Step 1.

    Parameters
    ----------
    updates
        What all clients would report, none of them set aside.
    attack
        A name in :data:`STEP_ONE_ATTACKS`.
    malicious
        The numbers of the malicious clients.
    draw
        The attackers' own randomness.
    """
    send = pick(STEP_ONE_ATTACKS, attack, "attack on Step 1")
    with np.errstate(over="ignore"):
        sent = send(updates.values, malicious, draw)
    return collect(
        sent,
        length=sent.shape[1],
        lr=updates.lr,
        steps=updates.steps,
        num_classes=updates.num_classes,
        head=updates.head,
    )
