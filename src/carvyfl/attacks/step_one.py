"""Attacks on Step 1: what malicious clients send instead of their one-epoch update.

The attackers know everything but the server's coins: an attack sees every honest message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from carvyfl.core.registry import Registry
from carvyfl.profiles.messages import Messages, Rows

Numbers = npt.NDArray[np.int64]
Send = Callable[[Rows, Numbers, np.random.Generator], npt.ArrayLike]
"""From what all clients would send, float32 of shape (N, P), the numbers of the m malicious ones
and a generator, to what the malicious ones send: shape (m, P), or one row or number for all."""


def orthogonal(
    messages: Rows, malicious: Numbers, draw: np.random.Generator, scale: float, shared: bool = True
) -> npt.NDArray[np.float64]:
    """Send directions, shared or not, orthogonal to all honest ones, of scaled median length."""
    honest = _honest(messages, malicious)
    count = 1 if shared else len(malicious)
    directions = draw.normal(size=(count, messages.shape[1]))
    span = np.linalg.qr(honest.T)[0]
    if span.shape[1] < messages.shape[1]:  # where they fill the space, no direction is left
        directions -= (directions @ span) @ span.T
    directions = np.linalg.qr(directions.T)[0].T
    return float(scale * np.median(np.linalg.norm(honest, axis=1))) * directions


def mimic(messages: Rows, malicious: Numbers, draw: np.random.Generator) -> npt.ArrayLike:
    """Send, each, what an honest client sends: a plausible type, but not one's own."""
    honest = _honest(messages, malicious)
    return np.asarray(honest[draw.choice(len(honest), len(malicious))])


def flood(messages: Rows, malicious: Numbers, draw: np.random.Generator) -> npt.ArrayLike:
    """Send, all, what one honest client sends, so that its type grows by m."""
    honest = _honest(messages, malicious)
    return np.asarray(honest[draw.choice(len(honest))])


def between(messages: Rows, malicious: Numbers, draw: np.random.Generator) -> npt.ArrayLike:
    """Send the point half-way between two honest clients that are far from each other."""
    honest = _honest(messages, malicious)
    first = honest[draw.choice(len(honest))]
    far = np.argmax(np.linalg.norm(honest - first, axis=1))
    return np.asarray((first + honest[far]) / 2)


def complement(messages: Rows, malicious: Numbers, draw: np.random.Generator) -> npt.ArrayLike:
    """Send what balances a victim, one of the farthest honest clients, to be grouped with it."""
    honest = _honest(messages, malicious)
    mean = honest.mean(axis=0)
    victims = np.argsort(-np.linalg.norm(honest - mean, axis=1), kind="stable")
    return np.asarray(2 * mean - honest[np.resize(victims, len(malicious))])


def crowd(messages: Rows, malicious: Numbers, draw: np.random.Generator) -> npt.ArrayLike:
    """Send, all, the same profile of the greatest length, which many others must balance.

    It is the farthest honest message, magnified, with a first number that outweighs the rest:
    lengths that are limited part by part are at their limits.
    """
    honest = _honest(messages, malicious)
    deviation = np.linalg.norm(honest - honest.mean(axis=0), axis=1)
    profile = 1e6 * np.asarray(honest[np.argmax(deviation)])
    profile[0] = 1e6 * max(1.0, float(np.abs(profile).max()))
    return profile


def _honest(messages: Rows, malicious: Numbers) -> npt.NDArray[np.float64]:
    return np.delete(messages, malicious, axis=0).astype(np.float64)


@dataclass(frozen=True)
class StepOneAttack:
    """An attack on Step 1; ``leaves`` is whether its clients take no part in training."""

    name: str
    help: str
    send: Send
    leaves: bool = False


STEP_ONE_ATTACKS: Registry[StepOneAttack] = Registry(
    "attack on Step 1",
    "carvyfl.step_one_attacks",
    [
        *(
            StepOneAttack(
                name, f"a direction {whose}", partial(orthogonal, scale=scale, shared=shared)
            )
            for name, whose, scale, shared in (
                ("orthogonal-1.5", "nobody else has, 1.5 times as long", 1.5, True),
                ("orthogonal-2", "nobody else has, twice as long", 2.0, True),
                ("orthogonal-10", "nobody else has, ten times as long", 10.0, True),
                ("colluding-orthogonal", "of its own for every attacker", 2.0, False),
            )
        ),
        StepOneAttack("giant", "finite numbers whose sums overflow in float32", lambda *_: 3e38),
        StepOneAttack("nan", "NaN", lambda *_: np.nan),
        StepOneAttack("infinity", "infinity", lambda *_: np.inf),
        StepOneAttack("mimic", "what some honest client sends", mimic),
        StepOneAttack("flood", "all send what one honest client sends", flood),
        StepOneAttack("between", "the point between two distant clients", between),
        StepOneAttack("complement", "what balances a distant client, its victim", complement),
        StepOneAttack("crowd", "all the same profile, as long as can be", crowd),
        StepOneAttack(
            "unheard-of", "the opposite: a type nobody has", lambda r, liars, _: -r[liars]
        ),
        StepOneAttack(
            "honest-then-gone", "the truth, and no training", lambda r, liars, _: r[liars], True
        ),
    ],
)
"""Every attack on Step 1."""


def attacked(
    updates: Messages, attack: str, malicious: Numbers, draw: np.random.Generator
) -> Messages:
    """Return what the server collects when these clients attack, none of whom were set aside."""
    send, messages = STEP_ONE_ATTACKS.pick(attack).send, updates.values.copy()
    with np.errstate(over="ignore"):
        messages[malicious] = send(updates.values, malicious, draw)
    return updates.replaced(messages)
