"""The training recipe: what every group is trained with, and when it stops."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

from carvyfl.core.checks import number, whole_number
from carvyfl.core.errors import CarvyError, call_text
from carvyfl.core.registry import ELSEWHERE, NamedParameters, pick

if TYPE_CHECKING:
    from carvyfl.learning.scaffold.aggregation import AggregationRule

ALGORITHMS = {
    "scaffold": "control variates against client drift, equal-weight mean (Algorithms 3 and 4)",
    "fedavg": "no control variates, mean weighted by client size",
}
ELSEWHERE["fedavg"] = (
    "a training algorithm; use `algorithm='fedavg'`, for one global model with 'single'"
)


@dataclass(frozen=True)
class Recipe(NamedParameters):
    """How a group trains; the same for every group of a run."""

    algorithm: str = "scaffold"
    """`scaffold`, or `fedavg` to compare."""
    rounds: int = 150
    """R, the largest number of rounds; each is one local epoch per client."""
    lr: float = 0.02
    """Local learning rate of the first round."""
    lr_min: float = 0.0001
    """What its cosine decays to."""
    batch_size: int = 16
    """Mini-batch size; the last batch of an epoch may be shorter."""
    patience: int | None = None
    """Stop after so many rounds without improvement; none never stops early (`--patience 0`)."""
    min_improvement: float = 1e-4
    """How much the mean validation accuracy (0…1) must rise to count."""
    server_step: float = 1.0
    """η_g, how far the server goes from its model towards the aggregate; 1, the paper's, takes the
    aggregate itself."""
    aggregation: str = "mean"
    """How the server combines updates, `mean` or a robust rule: {aggregation_rules}."""
    tolerated: int = 0
    """f, the malicious members that `krum`, `multi-krum` and `trimmed-mean` are built for."""

    def __post_init__(self) -> None:
        pick(ALGORITHMS, self.algorithm, "training algorithm")
        rule = self._rule  # refuses an unknown one
        for name, least in (("rounds", 1), ("batch_size", 1), ("patience", 1), ("tolerated", 0)):
            value = getattr(self, name)
            if name != "patience" or value is not None:
                object.__setattr__(self, name, whole_number(value, name, least))
        for name in ("lr", "lr_min", "min_improvement", "server_step"):
            object.__setattr__(self, name, number(getattr(self, name), name))
        if not 0 < self.lr_min <= self.lr < math.inf:
            raise CarvyError(
                f"learning rates must satisfy 0 < lr_min <= lr, but lr_min is {self.lr_min} and lr "
                f"is {self.lr}; change either"
            )
        if not 0 <= self.min_improvement < math.inf:
            raise CarvyError(f"min_improvement must be 0 or more, not {self.min_improvement}")
        if not 0 < self.server_step < math.inf:
            raise CarvyError(f"server_step must be above 0, not {self.server_step}")
        if self.tolerated and not (rule and rule.uses_tolerated):
            raise CarvyError(
                f"aggregation '{self.aggregation}' does not depend on tolerated "
                f"({self.tolerated}); leave it at 0"
            )

    def __repr__(self) -> str:
        default = {field.name: field.default for field in fields(self)}
        return call_text("Recipe", asdict(self), default)

    @property
    def weighs_samples(self) -> bool:
        """Whether a member's update counts by how many samples it trained on (FedAvg's mean)."""
        return self.algorithm == "fedavg" and not (self._rule and self._rule.robust)

    @property
    def _rule(self) -> AggregationRule | None:
        """The aggregation rule; None for the mean, which is known without importing torch."""
        if self.aggregation == "mean":
            return None
        from carvyfl.learning.scaffold.aggregation import AGGREGATION_RULES

        return AGGREGATION_RULES.pick(self.aggregation)

    def learning_rate(self, round_: int) -> float:
        """Return η of a round (0 … R-1): cosine annealing over R, once a round."""
        cosine = (1 + math.cos(math.pi * round_ / self.rounds)) / 2
        return self.lr_min + (self.lr - self.lr_min) * cosine


# Why a group's training ended, where it casts no vote, and in words
UNUSABLE = {
    "diverged": "diverged",
    "empty": "without usable members",
    "untrained": "without a round",
}

LATE = frozenset({"deadline", "untrained"})  # Why it ended, where the operator's deadline ended it


def lost_groups(stopped: Sequence[str]) -> list[str]:
    """Return a sentence that says how many groups cast no vote and why, if any do not."""
    why = Counter(UNUSABLE[reason] for reason in stopped if reason in UNUSABLE)
    if not why:
        return []
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(why.items()))
    lost = f"{why.total()} of {len(stopped)} groups cast no vote ({reasons})"
    if why.total() == len(stopped):
        lost += ": nothing is answered, and nothing certified; use a smaller `lr` or scaled inputs"
    return [lost]


def stale_rounds(accuracies: Sequence[float], recipe: Recipe) -> int:
    """Count the last rounds without improvement (Algorithm 3, lines 8 and 14-18)."""
    best, stale = -math.inf, 0
    for accuracy in accuracies:
        improved = accuracy > best + recipe.min_improvement
        best, stale = (accuracy, 0) if improved else (best, stale + 1)
    return stale
