"""The model of one-shot learning: fixed features and a linear head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from carvyfl.core.checks import number
from carvyfl.core.errors import CarvyError
from carvyfl.learning.learners import RIDGE as RIDGE
from carvyfl.learning.models.registry import Shape
from carvyfl.learning.one_shot.features import Features, Function, features_for


class OneShotModel(nn.Module):
    """A linear head on fixed features, whose weights are found in closed form.

    The features are no part of what is learned: the module's parameters are those of the head.

    Attributes
    ----------
    features
        The feature map.
    ridge
        λ of the head (:func:`~carvyfl.learning.one_shot.head.head`).
    arithmetic
        Part of the class, and so of the key of every group.
    """

    arithmetic = (
        1  # raised whenever the same sums give another head: stored heads then count no more
    )

    def __init__(self, features: Features, num_classes: int, ridge: float) -> None:
        super().__init__()
        self.features = features
        self.ridge = ridge
        self.head = nn.Linear(features.width, num_classes)
        with torch.no_grad():
            for parameter in self.head.parameters():
                parameter.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of inputs."""
        logits: Tensor = self.head(self.features(x))
        return logits

    def scores(self, features: Tensor, weights: Tensor) -> Tensor:
        """Return the logits of several heads, shape (G, n, C), for features of shape (n, d).

        ``weights`` are flat, shape (G, P), as everywhere.
        """
        classes, width = self.head.weight.shape
        matrix = weights[:, : classes * width].reshape(-1, width)
        logits = features @ matrix.T + weights[:, classes * width :].reshape(-1)
        return logits.reshape(len(features), len(weights), classes).transpose(0, 1)


def one_shot_model(
    features: str | nn.Module | Function,
    shape: Shape,
    num_classes: int,
    ridge: float = RIDGE,
    projection: int | None = None,
) -> OneShotModel:
    """Build the one-shot model for inputs of a shape; see :func:`.features.features_for`."""
    if not number(ridge, "ridge") > 0:
        raise CarvyError(f"ridge must be above 0, not {ridge}")
    return OneShotModel(features_for(features, shape, projection), num_classes, float(ridge))
