"""Attacks on private learning: malicious clients send other class means than those of their data.

A message is any 32-bit integers: the server checks nothing else, as noise makes anything possible.
It is sent before groups are formed and serves all steps, so an attacker sends the same one whatever
group it comes into.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from carvyfl.attacks.attack import AttackContext, Class, Count, Malicious, check_target
from carvyfl.attacks.untargeted import LabelFlip
from carvyfl.data.clients import Samples
from carvyfl.learning.private.model import MessageView, Units32
from carvyfl.privacy.class_sums import LARGEST

FAR = 64
"""How far the means of a forged head are: so many times as far as numbers of one size in sums and
counts would give."""


def scaled(units: Units32, factor: int) -> Units32:
    """Return units many times over, as far as 32 bits go."""
    many: Units32 = np.clip(units * float(factor), -LARGEST, LARGEST).astype(np.int32)
    return many


@dataclass(frozen=True)
class ScaledMeans(LabelFlip):
    """Flipped labels that count many times: ``factor`` times the message of the flipped data."""

    name = "scaled-means"
    help = "the message of data with flipped labels, many times over"
    against = ("private",)
    factor: Count = 1000

    def forge_message(self, view: MessageView) -> Units32:
        """Return the message so many times, as far as 32 bits go."""
        return scaled(view.units, self.factor)


@dataclass(frozen=True)
class SwappedMeans(Malicious):
    """Two classes change places, and both count ``factor`` times."""

    name = "swapped-means"
    help = "the means of two classes exchanged, many times over"
    against = ("private",)
    first: Class = 0
    second: Class = 1
    factor: Count = 1000

    def poisoned(self, data: Samples, rank: int, context: AttackContext) -> Samples:
        """Return the client's own data, having checked the classes."""
        check_target(self.first, context.num_classes)
        check_target(self.second, context.num_classes)
        return data

    def forge_message(self, view: MessageView) -> Units32:
        """Return the message with the numbers of both classes exchanged."""
        both, units = [self.first, self.second], view.units.copy()
        units[both] = scaled(view.units[both[::-1]], self.factor)
        return units


@dataclass(frozen=True)
class ConstantMeans(Malicious):
    """The group gets a head that answers ``target`` for every input.

    The target's mean is at the origin, near every vector, as these are no longer than 1; those of
    all other classes are far away.
    """

    name = "constant-means"
    help = "means so far away that the target's is always the nearest"
    against = ("private",)
    target: Class = 0

    def poisoned(self, data: Samples, rank: int, context: AttackContext) -> Samples:
        """Return the client's own data, having checked the target."""
        check_target(self.target, context.num_classes)
        return data

    def forge_message(self, view: MessageView) -> Units32:
        """Return sums and counts at the ends of 32 bits."""
        units = np.full_like(view.units, LARGEST)
        units[:, -1] //= FAR
        units[self.target, :-1] = 0
        return units
