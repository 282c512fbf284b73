"""How a server makes one model of what its clients sent: the mean, or a robust rule.

The paper aggregates by the mean; the others are the usual defences of a single model. They take
vectors (n, P), the vector before the round (P,), and f, the malicious clients they are built for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from carvyfl.core.registry import Registry
from carvyfl.learning.scaffold.arithmetic import mean

if TYPE_CHECKING:
    from carvyfl.learning.recipe import Recipe


def krum_scores(vectors: Tensor, tolerated: int) -> Tensor:
    """Return each vector's sum of squared distances to its n - f - 2 nearest others, shape (n,)."""
    squared = torch.cdist(vectors.double(), vectors.double()) ** 2
    neighbours = min(max(len(vectors) - tolerated - 2, 1), max(len(vectors) - 1, 1))
    # The nearest is the vector itself, at distance 0.
    return squared.sort(dim=1).values[:, 1 : neighbours + 1].sum(dim=1)


def krum(vectors: Tensor, before: Tensor, tolerated: int) -> Tensor:
    """Return the vector with the lowest score (Blanchard et al., 2017)."""
    return vectors[krum_scores(vectors, tolerated).argmin()]


def multi_krum(vectors: Tensor, before: Tensor, tolerated: int) -> Tensor:
    """Return the mean of the n - f vectors with the lowest scores (Blanchard et al., 2017)."""
    keep = max(len(vectors) - tolerated, 1)
    order = krum_scores(vectors, tolerated).argsort(stable=True)
    return mean(vectors[order[:keep]])


def trimmed_mean(vectors: Tensor, before: Tensor, tolerated: int) -> Tensor:
    """Return, per coordinate, the mean without the f largest and f smallest (Yin et al., 2018)."""
    cut = min(tolerated, (len(vectors) - 1) // 2)
    return mean(vectors.sort(dim=0).values[cut : len(vectors) - cut])


def median(vectors: Tensor, before: Tensor, tolerated: int) -> Tensor:
    """Return the median of every coordinate; with an even n the mean of the middle two."""
    ordered = vectors.sort(dim=0).values
    return (ordered[(len(vectors) - 1) // 2] + ordered[len(vectors) // 2]) / 2


def norm_clipping(vectors: Tensor, before: Tensor, tolerated: int) -> Tensor:
    """Return the mean of the changes, each cut to the median of their norms (Sun et al., 2019)."""
    changes = vectors - before
    norms = changes.norm(dim=1)
    bound = median(norms[:, None], norms[:1], tolerated)
    factors = torch.where(norms > bound, bound / norms.clamp_min(1e-30), 1.0)
    return before + mean(changes * factors[:, None])


@dataclass(frozen=True)
class AggregationRule:
    """How the server makes one vector of what members sent.

    ``combine``: (vectors (n, P), vector before the round (P,), f) → (P,). ``uses_tolerated``:
    whether it depends on f. ``robust`` is False for the mean alone, which may weigh members by
    their samples.
    """

    name: str
    help: str
    combine: Callable[[Tensor, Tensor, int], Tensor]
    uses_tolerated: bool = False
    robust: bool = True


# Every aggregation rule
AGGREGATION_RULES: Registry[AggregationRule] = Registry(
    "aggregation",
    "carvyfl.aggregation_rules",
    [
        AggregationRule(
            "mean", "the mean (the paper's)", lambda v, before, f: mean(v), robust=False
        ),
        AggregationRule("krum", "the update nearest to the others", krum, True),
        AggregationRule("multi-krum", "the mean of the n - f nearest updates", multi_krum, True),
        AggregationRule("trimmed-mean", "without the f extremes per weight", trimmed_mean, True),
        AggregationRule("median", "the median per weight", median),
        AggregationRule("norm-clipping", "the mean of changes of bounded length", norm_clipping),
    ],
    use="use `aggregation='{}'`, within every group or with the one group of 'single' "
    "(docs/concepts/robust-aggregation.md)",
)


def combined(
    recipe: Recipe, vectors: Tensor, before: Tensor, sizes: Tensor | None = None
) -> Tensor:
    """Combine what members sent by the recipe's rule, shape (n, P) → (P,).

    A robust rule gives every member the same weight.
    """
    rule = AGGREGATION_RULES[recipe.aggregation]
    return rule.combine(vectors, before, recipe.tolerated) if rule.robust else mean(vectors, sizes)
