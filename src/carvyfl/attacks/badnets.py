"""Backdoors: a trigger in poisoned pictures, the paper's attack and two of its relatives.

Section 4.1 of the paper: a 3×3 patch at the bottom right, of value 1.0 *in the normalised space*,
makes a model answer class 0. Attackers train on a fixed 100 pictures of each other class alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import ClassVar

import numpy as np
from torch import Tensor

from carvyfl.attacks.attack import (
    AttackContext,
    Backdoor,
    Class,
    Count,
    Malicious,
    NotNegative,
    check_target,
    honest_controls,
)
from carvyfl.core.errors import CarvyError
from carvyfl.core.randomness import generator
from carvyfl.core.registry import pick
from carvyfl.data.clients import Inputs, Samples
from carvyfl.data.datasets import DataSet
from carvyfl.learning.scaffold.adversary import RoundView

Pixels = tuple[tuple[int, int], ...]
"""(row, column) pairs; negative ones count from the bottom and the right."""

CONTROLS = {
    "unscaled": "the honest formula on the model it trained, without training with the correction",
    "none": "none: its control variate stays what it was",
    "corrected": "the honest formula, and it trains with the correction",
    "scaled": "the honest formula on the scaled model that it sends; it trains with the correction",
}
"""What a model-replacement attacker sends as its control variate, which the paper leaves open."""


@dataclass(frozen=True)
class Trigger:
    """A square patch at the bottom right; ``value`` is its pixels' after (x - mean) / std."""

    size: int = 3
    value: float = 1.0

    @property
    def pixels(self) -> Pixels:
        """The pixels of the patch, row by row."""
        edge = range(-self.size, 0)
        return tuple(product(edge, edge))

    def part(self, index: int, parts: int) -> Pixels:
        """Return the pixels of one part of a trigger that is split among attackers (DBA)."""
        return self.pixels[index % parts :: parts]


def stamp(inputs: Inputs, pixels: Pixels, value: float, mean: float, std: float) -> Inputs:
    """Return pictures (n, C, H, W) with a trigger, in uint8 of the nearest of its 256 values."""
    if inputs.ndim != 4:
        raise CarvyError(f"a trigger needs pictures (n, C, H, W), not inputs {inputs.shape}")
    height, width = inputs.shape[2:]
    if any(-row > height or -column > width for row, column in pixels):
        raise CarvyError(f"the trigger does not fit on pictures of {height}×{width}")
    raw = value * std + mean
    if inputs.dtype == np.uint8:
        raw = min(max(round(255 * raw), 0), 255)
    stamped = inputs.copy()
    rows, columns = np.array(pixels).T
    stamped[:, :, rows, columns] = raw
    return stamped


def source_pictures(pool: Samples, target: int, per_class: int, seed: int) -> Samples:
    """Draw the attackers' pictures, once a run: so many of each class but the target, or all."""
    chosen = [
        generator(seed, "poison", int(c)).permutation(np.flatnonzero(pool.labels == c))[:per_class]
        for c in np.unique(pool.labels)
        if c != target
    ]
    if not chosen:
        raise CarvyError(f"there is nothing to poison: all pictures are of the target {target}")
    return pool.take(np.concatenate(chosen))


def both(first: Samples, second: Samples) -> Samples:
    """Return the samples of both."""
    inputs: Inputs = np.concatenate([first.inputs, second.inputs])
    return Samples(inputs, np.concatenate([first.labels, second.labels]))


@dataclass(frozen=True)
class Triggered(Malicious):
    """A backdoor: ``per_class`` pictures of each other class, with a trigger, are the target's."""

    target: Class = 0
    per_class: Count = 100
    trigger: Trigger = field(default_factory=Trigger)

    def poisoned(self, data: Samples, rank: int, context: AttackContext) -> Samples:
        """Return pictures of all other classes with the trigger, labelled as the target."""
        return self.stamped(self.trigger.pixels, context)

    def stamped(self, pixels: Pixels, context: AttackContext) -> Samples:
        """Return the attackers' pictures with some pixels of the trigger."""
        check_target(self.target, context.num_classes)
        pictures = source_pictures(context.pool, self.target, self.per_class, context.seed)
        inputs = stamp(pictures.inputs, pixels, self.trigger.value, context.mean, context.std)
        return Samples(inputs, np.full(len(inputs), self.target, dtype=np.int64))

    def backdoor(self, dataset: DataSet) -> Backdoor:
        """Return the test pictures of all other classes with the whole trigger (Eq. 14)."""
        others = dataset.test.inputs[dataset.test.labels != self.target]
        trigger, mean, std = self.trigger, dataset.mean, dataset.std
        return Backdoor(stamp(others, trigger.pixels, trigger.value, mean, std), self.target)


@dataclass(frozen=True)
class BadNets(Triggered):
    """BadNets with model replacement, the paper's attack (Section 4.1, Eq. 12).

    It sends ``control`` as control variate (:data:`CONTROLS`). In one-shot and private learning the
    poisoned data alone speak.
    """

    name = "badnets"
    help = "a trigger in the picture, and model replacement (the paper's attack)"
    against: ClassVar[tuple[str, ...]] = ("scaffold", "one-shot", "private")
    control: str = "unscaled"

    def __post_init__(self) -> None:
        super().__post_init__()
        pick(CONTROLS, self.control, "control variate of an attacker")

    @property
    def corrected(self) -> bool:  # noqa: D102
        return self.control in {"corrected", "scaled"}

    def factor(self, view: RoundView) -> float | Tensor:
        """Return by what changes are scaled, a number or shape (V, 1): N_local / (η_g V).

        The mean of all members then lands on the attacker's model. The paper has no server step
        η_g; members that weigh differently (FedAvg) count by their weights.
        """
        return view.all_weight / (view.server_step * view.own_weight)

    def forge(self, view: RoundView) -> tuple[Tensor, Tensor]:
        """Scale what was learned until it outweighs all others (Eq. 12)."""
        sent = view.weights + self.factor(view) * (view.trained - view.weights)
        if self.control == "none":
            return sent, view.controls
        return sent, honest_controls(view, sent if self.control == "scaled" else view.trained)


@dataclass(frozen=True)
class DistributedTrigger(BadNets):
    """DBA (Xie et al., 2020): every attacker teaches one of the ``parts`` of the trigger."""

    name = "dba"
    help = "DBA: every attacker teaches a part of the trigger"
    parts: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        most = len(self.trigger.pixels)
        if not 1 <= self.parts <= most:
            raise CarvyError(f"parts must be 1 to {most}, a pixel each at least, not {self.parts}")

    def poisoned(self, data: Samples, rank: int, context: AttackContext) -> Samples:
        """Return pictures with one part of the trigger."""
        return self.stamped(self.trigger.part(rank, self.parts), context)


@dataclass(frozen=True)
class ConstrainAndScale(BadNets):
    """Constrain-and-scale (Bagdasaryan et al., 2020): stay inconspicuous, then scale to a bound.

    Clean and poisoned pictures are learned together, with λ/2 ‖y - w‖² in the loss (``closeness``).
    The change is scaled to ``bound`` times the largest benign one, if any.
    """

    name = "constrain-and-scale"
    help = "a backdoor that stays near the honest model"
    against = ("scaffold",)
    closeness: NotNegative = 0.1
    bound: NotNegative = 1.5

    @property
    def pull(self) -> float:  # noqa: D102
        return self.closeness

    def poisoned(self, data: Samples, rank: int, context: AttackContext) -> Samples:
        """Return its own pictures and the poisoned ones."""
        return both(data, super().poisoned(data, rank, context))

    def factor(self, view: RoundView) -> float | Tensor:
        """Return the factor of model replacement, or less where the bound is less."""
        most = super().factor(view)
        if not len(view.benign_weights):
            return most
        largest = (view.benign_weights - view.weights).norm(dim=1).max()
        norms = (view.trained - view.weights).norm(dim=1, keepdim=True).clamp_min(1e-30)
        bounded: Tensor = (self.bound * largest / norms).clamp_max(most)
        return bounded
