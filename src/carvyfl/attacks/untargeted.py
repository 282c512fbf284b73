"""Attacks on accuracy: they want wrong answers, whichever."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from carvyfl.attacks.attack import AttackContext, Malicious, NotNegative, honest_controls
from carvyfl.core.randomness import derive, fold, hash_bits
from carvyfl.data.clients import Samples
from carvyfl.learning.scaffold.adversary import RoundView
from carvyfl.learning.scaffold.arithmetic import mean

BISECTIONS = 40  # steps in which MinMax searches


@dataclass(frozen=True)
class LabelFlip(Malicious):
    """Label flipping: class y is taught as C - 1 - y; the rest is honest."""

    name = "label-flip"
    help = "class y is taught as C - 1 - y"
    against: ClassVar[tuple[str, ...]] = ("scaffold", "one-shot", "private")

    def poisoned(self, data: Samples, rank: int, context: AttackContext) -> Samples:
        """Return the client's own pictures with flipped labels."""
        return replace(data, labels=context.num_classes - 1 - data.labels)


@dataclass(frozen=True)
class SignFlip(Malicious):
    """Sign flipping: send the opposite of what was learned, ``scale`` times."""

    name = "sign-flip"
    help = "the opposite of what was learned, scaled"
    scale: NotNegative = 5.0

    def forge(self, view: RoundView) -> tuple[Tensor, Tensor]:
        """Turn models and control variates round, seen from w and c."""
        models = view.weights - self.scale * (view.trained - view.weights)
        honest = honest_controls(view, view.trained)
        return models, view.server_control - self.scale * (honest - view.server_control)


@dataclass(frozen=True)
class Noise(Malicious):
    """Scaled noise: w and Gaussian noise of ``scale`` times the norm of the honest change."""

    name = "noise"
    help = "Gaussian noise instead of what was learned"
    scale: NotNegative = 5.0

    def forge(self, view: RoundView) -> tuple[Tensor, Tensor]:
        """Send noise as the change of the model, and an honest control variate."""
        noise = torch.stack([self._draw(view, member) for member in view.members])
        norms = (view.trained - view.weights).norm(dim=1, keepdim=True)
        change = self.scale * norms * noise / noise.norm(dim=1, keepdim=True)
        return view.weights + change, honest_controls(view, view.trained)

    @staticmethod
    def _draw(view: RoundView, member: int) -> Tensor:
        """Return standard normal numbers of shape (P,), the same on every device (Box-Muller)."""
        key = torch.tensor(derive(view.seed, "noise", member, view.round_))
        size = len(view.weights)
        u, v = ((hash_bits(fold(key, i), size).double() + 2**31 + 0.5) / 2**32 for i in (0, 1))
        drawn = torch.sqrt(-2 * torch.log(u)) * torch.cos(2 * torch.pi * v)
        return drawn.to(view.weights)


def spread(vectors: Tensor) -> Tensor:
    """Return the standard deviation of every coordinate, zero where there is one vector or none."""
    return vectors.std(dim=0) if len(vectors) > 1 else torch.zeros_like(vectors.sum(dim=0))


def _centre(benign: Tensor, honest: Tensor) -> Tensor:
    """Return the mean of the benign rows; where there are none, of the attackers' honest ones."""
    return mean(benign if len(benign) else honest)


@dataclass(frozen=True)
class ALittleIsEnough(Malicious):
    """ALIE (Baruch et al., 2019): every coordinate z standard deviations from the benign mean.

    z is the largest for which enough benign members lie farther out for a majority with the
    attackers.
    """

    name = "alie"
    help = "ALIE: a few standard deviations from the honest mean"

    def forge(self, view: RoundView) -> tuple[Tensor, Tensor]:
        """Send the same shifted mean from every attacker."""
        senders = len(view.trained)
        z, controls = self.deviations(view.size, senders), honest_controls(view, view.trained)

        def shifted(benign: Tensor, honest: Tensor) -> Tensor:
            return (_centre(benign, honest) - z * spread(benign)).repeat(senders, 1)

        models = shifted(view.benign_weights, view.trained)
        return models, shifted(view.benign_controls, controls)

    @staticmethod
    def deviations(size: int, malicious: int) -> float:
        """Return z_max: Φ(z) < (n - m - s) / (n - m), with s = ⌊n/2 + 1⌋ - m supporters needed."""
        from scipy.stats import norm

        benign, supporters = size - malicious, size // 2 + 1 - malicious
        if benign < 1 or supporters <= 0:
            return 3.0  # a majority already: as far as a normal variable ever goes
        share = (benign - supporters) / benign
        return float(max(norm.ppf(share), 0.0)) if share > 0 else 0.0


@dataclass(frozen=True)
class MinMax(Malicious):
    """Min-Max (Shejwalkar and Houmansadr, 2021): as far from the benign mean as nobody notices.

    That is γ standard deviations, with the largest γ at which no benign update is farther off than
    two of these are from each other.
    """

    name = "min-max"
    help = "as far from the honest mean as nobody notices"

    def forge(self, view: RoundView) -> tuple[Tensor, Tensor]:
        """Send the same update from every attacker, and the benign mean of control variates."""
        senders, models = len(view.trained), view.benign_weights
        models = models if len(models) else view.trained
        model = mean(models) - self.gamma(models) * spread(models)
        control = _centre(view.benign_controls, honest_controls(view, view.trained))
        return model.repeat(senders, 1), control.repeat(senders, 1)

    def gamma(self, benign: Tensor) -> float:
        """Return the largest γ, by bisection, for benign updates of shape (b, P)."""
        centre, direction = mean(benign).double(), spread(benign).double()
        if not float(direction.norm()):
            return 0.0
        benign = benign.double()
        limit = float(torch.cdist(benign, benign).max())
        low, high = 0.0, 2 * limit / float(direction.norm())
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            far = float((benign - (centre - middle * direction)).norm(dim=1).max())
            low, high = (middle, high) if far <= limit else (low, middle)
        return low
