"""What every attack is made of: a frozen dataclass of settings, a line in ``ATTACKS``.

``poisoned`` gives the data a malicious client trains on, ``forge`` what the malicious members of a
group send in a round; ``forge_sums`` or ``forge_message``, where there is one, what they send in
one-shot or private learning.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from msgspec import Meta

from carvyfl.core.checks import returned
from carvyfl.core.errors import CarvyError
from carvyfl.core.registry import NamedFields
from carvyfl.core.schema import check
from carvyfl.data.clients import Inputs, Samples
from carvyfl.data.datasets import DataSet
from carvyfl.learning.scaffold.adversary import RoundView

if TYPE_CHECKING:
    from torch import Tensor

Count = Annotated[int, Meta(ge=1)]
Class = Annotated[int, Meta(ge=0)]
NotNegative = Annotated[float, Meta(ge=0)]


@dataclass(frozen=True)
class AttackContext(NamedFields):
    """What an attacker finds in its federation; ``pool``: samples of every class for everybody."""

    pool: Samples
    num_classes: int
    mean: float
    std: float
    seed: int


@dataclass(frozen=True)
class Backdoor:
    """What an attack's success rate (Eq. 15) is measured on."""

    inputs: Inputs  # D^trg: test inputs of all other classes with the trigger
    target: int  # the class that they shall get


STEP_ONE = ("honest", "poisoned")  # what malicious clients answer in Step 1


@dataclass(frozen=True)
class Malicious:
    """An attacker that trains on its own data and answers honestly; attacks change either.

    It does something ``against`` these learners (:data:`~carvyfl.learning.learners.LEARNERS`). It
    trains with SCAFFOLD's correction if ``corrected``; ``pull`` is λ of the term that keeps it near
    the model received. ``step_one``: ``honest``, in Step 1 it behaves, and sits where an honest
    client would; ``poisoned``, its one-epoch update, or its one message, is that of its attack.
    """

    name: ClassVar[str] = "none"
    help: ClassVar[str] = "behaves"
    against: ClassVar[tuple[str, ...]] = ("scaffold",)
    step_one: str = "honest"

    def __post_init__(self) -> None:
        check(self)
        if self.step_one not in STEP_ONE:
            raise CarvyError(f"step_one must be honest or poisoned, not {self.step_one!r}")
        for name, value in self.value().items():
            if isinstance(value, float) and not math.isfinite(value):
                raise CarvyError(f"{name} must be a finite number, not {value}")

    @property
    def corrected(self) -> bool:  # noqa: D102
        return True

    @property
    def pull(self) -> float:  # noqa: D102
        return 0.0

    def value(self) -> dict[str, Any]:
        """Return the settings as plain values."""
        return asdict(self)

    def poisoned(self, data: Samples, rank: int, context: AttackContext) -> Samples:
        """Return what a client with this data trains on; ``rank`` is its place among attackers."""
        return data

    def backdoor(self, dataset: DataSet) -> Backdoor | None:
        """Return what its success is measured on; None if it has no backdoor."""
        return None

    def forge(self, view: RoundView) -> tuple[Tensor, Tensor]:
        """Return the models and control variates sent, each of shape (V, P)."""
        return view.trained, honest_controls(view, view.trained)


def poisoned_samples(
    attack: Malicious, data: Samples, rank: int, context: AttackContext
) -> Samples:
    """Return what a malicious client trains on, refusing an attack that is not written rightly."""
    where = f"attack '{attack.name}': poisoned"
    return returned(attack.poisoned(data, rank, context), Samples, where)


def check_target(target: int, num_classes: int) -> None:
    """Refuse a target that is no class of the data."""
    if not 0 <= target < num_classes:
        classes = f"choose one of 0 to {num_classes - 1}"
        raise CarvyError(f"target {target} is no class of this data; {classes}")


def honest_controls(view: RoundView, models: Tensor) -> Tensor:
    """Return what SCAFFOLD's formula gives for models of shape (V, P)."""
    from carvyfl.learning.scaffold.arithmetic import client_control  # reading a run needs no torch

    shift = view.server_control - view.controls
    return client_control(shift, view.weights, models, view.steps, view.lr)
