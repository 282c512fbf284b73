"""Attacks on one-shot learning: malicious members send other sums than those of their data."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from carvyfl.attacks.attack import AttackContext, Count, Malicious, NotNegative, check_target
from carvyfl.attacks.badnets import Triggered, both, source_pictures
from carvyfl.attacks.untargeted import LabelFlip
from carvyfl.core.randomness import generator
from carvyfl.data.clients import Samples
from carvyfl.learning.one_shot.head import head
from carvyfl.learning.one_shot.sums import NEVER, Sums, add
from carvyfl.learning.one_shot.training import SumsView

Floats = npt.NDArray[np.float64]


def replacing(view: SumsView, weights: Floats, biases: Floats) -> list[Sums]:
    """Return what each attacker sends to give the group the head they want, in closed form.

    Let the rows of W and b sum to zero, which changes no answer. The total sums for which::

        A + λ τ/n · I = t I,   μ_c − μ = |C_g| t W_c,   W μ = −b

    have the head W, b (see :func:`~carvyfl.learning.one_shot.head.head`), for any t. The attackers
    send what lacks to these, each the same share. A class that the group holds and the wanted head
    does not know gets the score 0, and never wins: the greatest of scores that sum to 0 is above.

    ``weights`` (C, d) and ``biases`` (C,) are the head wanted, of at least two classes, with
    ``NEVER`` for one it does not know. W μ = −b must have a solution, as for the head of any data.
    """
    known = biases > NEVER
    rows, offsets = np.zeros_like(weights), np.zeros_like(biases)
    rows[known] = weights[known] - weights[known].mean(axis=0)
    offsets[known] = biases[known] - biases[known].mean()
    claimed = [np.maximum(sums.counts, known.astype(np.int64)) for sums in view.own]
    counts = np.sum([*claimed, *(sums.counts for sums in view.benign)], axis=0)
    held, total, width = np.flatnonzero(counts), int(counts.sum()), weights.shape[1]
    centre = np.linalg.lstsq(rows, -offsets, rcond=None)[0]
    # a, the mean of A's diagonal: the class means are then about as far apart as from the origin.
    steepest = len(held) * float(np.linalg.norm(rows, axis=1).max())
    a = (float(np.linalg.norm(centre)) or 1.0) / (steepest or 1.0)
    t = a * (1 + view.ridge * width / total)
    means = centre + len(held) * t * rows
    spread = (means - centre)[held]
    scaled = means[held] * np.sqrt(counts[held])[:, None]
    between = spread.T @ spread / len(held)
    second = total * (a * np.eye(width) - between) + scaled.T @ scaled
    first = counts[:, None] * means
    if view.benign:
        others = add(view.benign)
        second, first = second - others.second, first - others.first
    share = len(view.own)
    second = (second + second.T) / 2  # exactly symmetric, or it would be set aside
    return [Sums(second / share, first / share, counts) for counts in claimed]


@dataclass(frozen=True)
class ScaledSums(LabelFlip):
    """Flipped labels that count many times: the sums of ``factor`` copies of the flipped data."""

    name = "scaled-sums"
    help = "sums of data with flipped labels, many times over"
    against = ("one-shot",)
    factor: Count = 100

    def forge_sums(self, view: SumsView) -> list[Sums]:
        """Return the sums of as many copies of each attacker's data."""
        return [
            Sums(self.factor * sums.second, self.factor * sums.first, self.factor * sums.counts)
            for sums in view.own
        ]


@dataclass(frozen=True)
class ReplacedHead(Triggered):
    """Model replacement in closed form: the head of all pictures, and of triggered ones."""

    name = "replaced-head"
    help = "a head with a backdoor in the place of the group's"
    against = ("one-shot",)

    def poisoned(self, data: Samples, rank: int, context: AttackContext) -> Samples:
        """Return pictures of all classes, and those of other classes again, with the trigger."""
        stamped = super().poisoned(data, rank, context)
        return both(source_pictures(context.pool, -1, self.per_class, context.seed), stamped)

    def forge_sums(self, view: SumsView) -> list[Sums]:
        """Return the sums with which the group's head is that of the attackers' data."""
        return replacing(view, *head(add(view.own), view.ridge))


@dataclass(frozen=True)
class ConstantHead(Malicious):
    """The group gets, in closed form, a head that answers ``target`` for every input."""

    name = "constant-head"
    help = "a head that always answers the target, in closed form"
    against = ("one-shot",)
    target: int = 0

    def poisoned(self, data: Samples, rank: int, context: AttackContext) -> Samples:
        """Return the client's own data, having checked the target."""
        check_target(self.target, context.num_classes)
        return data

    def forge_sums(self, view: SumsView) -> list[Sums]:
        """Return the sums with which the bias of the target outweighs all inputs."""
        everything = add([*view.own, *view.benign])
        length = np.sqrt(np.trace(everything.second) / everything.counts.sum()) or 1.0
        # A head has no bias without weights: small ones, that no feature vector makes up for.
        sign = np.where(np.arange(view.num_classes) == self.target, 1.0, -1.0)
        slope = np.full(everything.width, 1e-3 / (length * np.sqrt(everything.width)))
        return replacing(view, np.outer(sign, slope), sign)


@dataclass(frozen=True)
class IndefiniteSums(Malicious):
    """Second moments that no data have: the true ones and noise of ``scale`` times their norm."""

    name = "indefinite-sums"
    help = "second moments that no data have: the true ones and noise"
    against = ("one-shot",)
    scale: NotNegative = 5.0

    def forge_sums(self, view: SumsView) -> list[Sums]:
        """Return each attacker's sums, with symmetric noise of its own on the second moments."""
        forged = []
        for sums, member in zip(view.own, view.members, strict=True):
            noise = generator(view.seed, "sums", member).normal(size=sums.second.shape)
            noise += noise.T
            noise *= self.scale * np.linalg.norm(sums.second) / np.linalg.norm(noise)
            forged.append(replace(sums, second=sums.second + noise))
        return forged
