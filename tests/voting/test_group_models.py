"""Group models: which of them vote."""

from __future__ import annotations

import torch
from torch import nn

from carvyfl.learning.job import GroupResult
from carvyfl.voting.group_models import GroupModels


def test_models_that_are_not_finite_or_not_trained_abstain() -> None:
    module = nn.Linear(2, 2)
    results = [
        GroupResult(torch.tensor([1.0, 2, 3, 4, 5, last]), (), stopped)
        for last in (6.0, 3e38, float("nan"), float("inf"), -float("inf"))
        for stopped in ("rounds", "diverged", "empty")
    ]
    models = GroupModels.of(module, results, num_classes=2, mean=0.0, std=1.0)
    assert models.casts.tolist() == [result.votes for result in results]
    assert models.casts.sum() == 2
