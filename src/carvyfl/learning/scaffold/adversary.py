"""Where malicious members enter training: what they see, and what they may replace.

The engines know no attack by name. They train every member on the data its job
holds for it, then hand what the malicious members trained to the job's attack, which
returns what is sent instead. :mod:`carvyfl.attacks` holds the attacks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from carvyfl.core.registry import NamedFields

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class RoundView(NamedFields):
    """What the malicious members of a group know in one round: they collude and see everything.

    Attributes
    ----------
    weights, server_control
        w and c, float32 of shape (P,).
    trained, controls
        The models they trained, and the control variates c_i they hold, each of
        shape (V, P).
    steps
        K of each of them, shape (V, 1).
    benign_weights, benign_controls
        What the other members send, each of shape (n - V, P).
    members
        The client numbers of the malicious members, in the order of the rows.
    own_weight, all_weight
        What their updates weigh in the mean together, and what all updates weigh: V and
        N_local, or numbers of samples with FedAvg.
    lr, server_step
        η of the round, and the server's step size η_g.
    round_, seed
        r, counted from 0, and the run's seed.
    """

    weights: Tensor
    server_control: Tensor
    trained: Tensor
    controls: Tensor
    steps: Tensor
    benign_weights: Tensor
    benign_controls: Tensor
    members: tuple[int, ...]
    own_weight: float
    all_weight: float
    lr: float
    server_step: float
    round_: int
    seed: int

    @property
    def size(self) -> int:
        """N_local, the members that send an update in this round."""
        return len(self.trained) + len(self.benign_weights)


class Attack(Protocol):
    """How malicious members behave in training. Attacks are frozen dataclasses of settings."""

    name: ClassVar[str]

    @property
    def corrected(self) -> bool:
        """Whether they train with SCAFFOLD's correction c - c_i."""

    @property
    def pull(self) -> float:
        """λ of a term λ/2 ‖y - w‖² that they add to their loss to stay near w."""

    def forge(self, view: RoundView) -> tuple[Tensor, Tensor]:
        """Return the models and the control variates they send, each of shape (V, P)."""

    def value(self) -> dict[str, Any]:
        """Return the settings as plain values: part of the key of a job."""
