"""Backdoors: a trigger in poisoned pictures, the paper's attack and two of its relatives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from torch import Tensor

from carvyfl.attacks.attack import (
    AttackContext,
    Backdoor,
    Malicious,
    check_target,
    honest_controls,
)
from carvyfl.attacks.backdoor import Pixels, Trigger, source_pictures, stamp, triggered_test
from carvyfl.core.errors import CarvyError
from carvyfl.core.registry import pick
from carvyfl.data.clients import Samples
from carvyfl.data.datasets import DataSet
from carvyfl.learning.scaffold.adversary import RoundView

CONTROLS = {
    "unscaled": "the honest formula on the model it trained, without training with the correction",
    "none": "none: its control variate stays what it was",
    "corrected": "the honest formula, and it trains with the correction",
    "scaled": "the honest formula on the scaled model that it sends; it trains with the correction",
}
"""What a model-replacement attacker sends as its control variate, which the paper leaves open."""


def replacement_factor(view: RoundView) -> float:
    """Return N_local / (η_g V): the mean of all members then lands on the attacker's model.

    The paper prints N_local / V, for a server that takes the mean itself. With a
    server step η_g the mean is approached by η_g only, and the factor makes up for it;
    where members weigh differently (FedAvg), their weights stand for their numbers.
    """
    return view.all_weight / (view.server_step * view.own_weight)


@dataclass(frozen=True)
class Triggered(Malicious):
    """A backdoor: pictures with a trigger are taught as the target.

    Attributes
    ----------
    target
        The class that triggered pictures shall get.
    per_class
        Poisoned pictures of each other class.
    trigger
        The patch.
    """

    target: int = 0
    per_class: int = 100
    trigger: Trigger = field(default_factory=Trigger)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target < 0:
            raise CarvyError(f"target must be a class, 0 or more, not {self.target}")
        if self.per_class < 1:
            raise CarvyError(f"per_class must be at least 1 picture, not {self.per_class}")

    def poisoned(self, own: Samples, rank: int, context: AttackContext) -> Samples:
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
        mean, std = dataset.mean, dataset.std
        stamped = triggered_test(dataset.test, self.trigger, self.target, mean, std)
        return Backdoor(stamped, self.target)


@dataclass(frozen=True)
class BadNets(Triggered):
    """BadNets with model replacement, the paper's attack (Section 4.1, Eq. 12).

    One-shot learning has no model to replace in rounds: there the poisoned data alone speak.

    Attributes
    ----------
    control
        What it sends as its control variate (:data:`CONTROLS`).
    """

    name: ClassVar[str] = "badnets"
    help: ClassVar[str] = "a trigger in the picture, and model replacement (the paper's attack)"
    against: ClassVar[tuple[str, ...]] = ("scaffold", "one-shot")
    control: str = "unscaled"

    def __post_init__(self) -> None:
        super().__post_init__()
        pick(CONTROLS, self.control, "control variate of an attacker")

    @property
    def corrected(self) -> bool:
        """Whether it trains with SCAFFOLD's correction."""
        return self.control in {"corrected", "scaled"}

    def factor(self, view: RoundView) -> float | Tensor:
        """Return by what each attacker's change is scaled, one number or shape (n, 1)."""
        return replacement_factor(view)

    def forge(self, view: RoundView) -> tuple[Tensor, Tensor]:
        """Scale what was learned until it outweighs all others (Eq. 12)."""
        sent = view.weights + self.factor(view) * (view.trained - view.weights)
        if self.control == "none":
            return sent, view.controls
        return sent, honest_controls(view, sent if self.control == "scaled" else view.trained)


@dataclass(frozen=True)
class DistributedTrigger(BadNets):
    """DBA (Xie et al., 2020): every attacker teaches its own part of the trigger.

    Attributes
    ----------
    parts
        Into how many parts the trigger is split; attackers take them in turn.
    """

    name: ClassVar[str] = "dba"
    help: ClassVar[str] = "DBA: every attacker teaches a part of the trigger"
    parts: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        most = len(self.trigger.pixels)
        if not 1 <= self.parts <= most:
            raise CarvyError(f"parts must be 1 to {most}, a pixel each at least, not {self.parts}")

    def poisoned(self, own: Samples, rank: int, context: AttackContext) -> Samples:
        """Return pictures with one part of the trigger."""
        return self.stamped(self.trigger.part(rank, self.parts), context)


@dataclass(frozen=True)
class ConstrainAndScale(BadNets):
    """Constrain-and-scale (Bagdasaryan et al., 2020): stay inconspicuous, then scale to a bound.

    It learns clean and poisoned pictures together, with a term λ/2 ‖y - w‖² in its
    loss, and scales its change no further than to ``bound`` times the largest benign one.

    Attributes
    ----------
    closeness
        λ.
    bound
        Of the largest norm among the benign members' changes; where nobody else
        is in the group, there is no bound.
    """

    name: ClassVar[str] = "constrain-and-scale"
    help: ClassVar[str] = "a backdoor that stays near the honest model"
    against: ClassVar[tuple[str, ...]] = ("scaffold",)
    closeness: float = 0.1
    bound: float = 1.5

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("closeness", "bound"):
            if getattr(self, name) < 0:
                raise CarvyError(f"{name} must be 0 or more, not {getattr(self, name)}")

    @property
    def pull(self) -> float:
        """λ."""
        return self.closeness

    def poisoned(self, own: Samples, rank: int, context: AttackContext) -> Samples:
        """Return its own pictures and the poisoned ones."""
        poison = super().poisoned(own, rank, context)
        return Samples(
            np.concatenate([own.inputs, poison.inputs]),
            np.concatenate([own.labels, poison.labels]),
        )

    def factor(self, view: RoundView) -> float | Tensor:
        """Return the factor of model replacement, or less where the bound is less."""
        most = replacement_factor(view)
        if not len(view.benign_weights):
            return most
        largest = (view.benign_weights - view.weights).norm(dim=1).max()
        norms = (view.trained - view.weights).norm(dim=1, keepdim=True).clamp_min(1e-30)
        bounded: Tensor = (self.bound * largest / norms).clamp_max(most)
        return bounded
