"""A learner of somebody else's: one more entry, and all steps know it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from carvyfl import CarvyError, CarvyFL
from carvyfl.data.clients import Client, Federation, Samples
from carvyfl.learning.job import GroupJob, GroupResult
from carvyfl.learning.learners import LEARNERS, Learner, learner_of
from carvyfl.learning.models import build_model
from carvyfl.learning.one_shot.training import one_shot_model
from carvyfl.runs.config import RunConfig
from support.registries import restored

CLASSES, WIDTH = 3, 6


class NearestMean(nn.Sequential):
    """Scores that fall with the distance from each class mean."""


class ClassMeanLearner(Learner):
    """Every client sends its class sums; a group's model is the nearest class mean."""

    name = "nearest-mean"
    help = "the nearest class mean"
    sends = "class sums"
    stored_inputs = True

    def owns(self, module: nn.Module) -> bool:
        return isinstance(module, NearestMean)

    def build(self, settings: Any, shape: Any, num_classes: int, seed: int) -> nn.Module:
        return NearestMean(nn.Flatten(), nn.Linear(int(np.prod(shape)), num_classes))

    def train(self, jobs: Sequence[GroupJob], *rest: object) -> Iterator[tuple[int, GroupResult]]:
        for position, job in enumerate(jobs):
            x = np.concatenate([client.train.inputs for client in job.clients])
            labels = np.concatenate([client.train.labels for client in job.clients])
            means = np.stack([x[labels == c].mean(0) for c in range(CLASSES)])
            flat = np.concatenate([means.ravel(), -0.5 * (means**2).sum(1)]).astype(np.float32)
            yield position, GroupResult(torch.from_numpy(flat), (), "closed-form")


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    with restored(LEARNERS):
        LEARNERS.add(ClassMeanLearner())
        yield


def federation() -> Federation:
    rng = np.random.default_rng(0)

    def draw(size: int) -> Samples:
        labels = np.arange(size) % CLASSES
        x = rng.normal(size=(size, WIDTH)) + 3 * np.eye(CLASSES, WIDTH)[labels]
        return Samples(x.astype(np.float32), labels)

    return Federation(tuple(Client(draw(12), draw(0)) for _ in range(6)), CLASSES, 0.4, 2.0)


@pytest.mark.filterwarnings("ignore:.*is the chance of sampling")  # the clients are alike
@pytest.mark.parametrize("grouping", ["balanced", "carvy"])
def test_a_third_learner_trains_votes_and_certifies(grouping: str) -> None:
    clients = federation()
    model = CarvyFL(
        learner="nearest-mean", method=grouping, groups=3, engine="loop", workers=1
    ).fit(clients)
    x = np.random.default_rng(1).normal(size=(50, WIDTH)).astype(np.float32)
    expected = []
    for members in model.grouping_.groups:
        own = [clients.clients[k].train for k in members]
        inputs = np.concatenate([part.inputs for part in own])
        labels = np.concatenate([part.labels for part in own])
        means = np.stack([inputs[labels == c].mean(0) for c in range(CLASSES)])
        expected.append(np.linalg.norm(x[:, None] - means, axis=2).argmin(1))
    assert np.array_equal(model.votes(x).groups, np.stack(expected))


def test_a_model_says_whose_it_is() -> None:
    modules = {
        "scaffold": build_model("mlp", (WIDTH,), CLASSES, 0),
        "one-shot": one_shot_model("none", (WIDTH,), CLASSES),
        "nearest-mean": NearestMean(nn.Linear(WIDTH, CLASSES)),
    }
    assert {name: learner_of(module).name for name, module in modules.items()} == {
        name: name for name in modules
    }


def test_what_a_learner_cannot_do_is_refused() -> None:
    with pytest.raises(CarvyError, match="send no sums to keep"):
        RunConfig(learner="nearest-mean", keep_sums=True)
    with pytest.raises(CarvyError, match="leave out `mean` and `std`"):
        RunConfig(learner="nearest-mean", mean=0.5)
    with pytest.raises(CarvyError, match="unknown learner 'nearest'"):
        RunConfig(learner="nearest")
    with pytest.raises(CarvyError, match="read from a trained update"):
        CarvyFL(learner="nearest-mean", types="bias-profile", groups=2, engine="loop").fit(
            federation()
        )
