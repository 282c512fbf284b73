"""Group models: which of them vote, and what they do when a device's memory runs out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from carvyfl.core.errors import CarvyError
from carvyfl.learning.backends import Cores, Gpus
from carvyfl.learning.job import GroupResult
from carvyfl.learning.scaffold.batched.net import StackedNet
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


def run_out_beyond(most: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let a device hold so many models; return how many were tried at a time."""
    plain, tried = StackedNet.logits, []

    def logits(net: StackedNet, models: dict[str, Tensor], *rest: Any) -> Tensor:
        tried.append(len(next(iter(models.values()))))
        if tried[-1] > most:
            raise torch.OutOfMemoryError
        return plain(net, models, *rest)

    monkeypatch.setattr(StackedNet, "logits", logits)
    return tried


def some_models() -> tuple[GroupModels, np.ndarray[Any, np.dtype[np.float32]]]:
    rng = np.random.default_rng(0)
    weights = torch.from_numpy(rng.standard_normal((11, 15), dtype=np.float32))
    results = [GroupResult(own, (), "rounds") for own in weights]
    models = GroupModels.of(nn.Linear(4, 3), results, num_classes=3, mean=0.0, std=1.0)
    return models, rng.standard_normal((20, 4), dtype=np.float32)


def test_fewer_models_vote_at_a_time_when_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    models, inputs = some_models()
    expected = models.votes(inputs, Cores(1)).groups
    tried = run_out_beyond(2, monkeypatch)
    assert (models.votes(inputs, Gpus("cpu")).groups == expected).all()
    assert tried[:3] == [11, 5, 2]
    assert max(tried[3:]) == 2  # what once ran out is not tried again


def test_a_model_that_no_memory_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    models, inputs = some_models()
    run_out_beyond(0, monkeypatch)
    with pytest.raises(CarvyError, match="memory does not hold one model's step"):
        models.votes(inputs, Gpus("cpu"))
