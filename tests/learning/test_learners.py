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
    clients, how = federation(), dict[str, Any](engine="loop", workers=1)
    model = CarvyFL(learner="nearest-mean", method=grouping, groups=3, **how).fit(clients)
    x = np.random.default_rng(1).normal(size=(50, WIDTH)).astype(np.float32)
    ballots = model.votes(x).groups
    for members, answers in zip(model.grouping_.groups, ballots, strict=True):
        data = [clients.clients[k].train for k in members]
        inputs = np.concatenate([part.inputs for part in data])
        labels = np.concatenate([part.labels for part in data])
        means = np.stack([inputs[labels == c].mean(0) for c in range(CLASSES)])
        assert np.array_equal(np.linalg.norm(x[:, None] - means, axis=2).argmin(1), answers)


def test_a_model_says_whose_it_is() -> None:
    modules = {
        "scaffold": build_model("mlp", (WIDTH,), CLASSES, 0),
        "one-shot": one_shot_model("none", (WIDTH,), CLASSES),
        "nearest-mean": NearestMean(nn.Linear(WIDTH, CLASSES)),
    }
    assert [learner_of(module).name for module in modules.values()] == list(modules)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learner": "nearest-mean", "keep_sums": True}, "send no sums to keep"),
        ({"learner": "nearest-mean", "mean": 0.5}, "leave out `mean` and `std`"),
        ({"learner": "nearest"}, "unknown learner 'nearest'"),
        ({"learner": "one-shoot"}, "did you mean 'one-shot'"),
    ],
)
def test_settings_that_a_learner_does_not_have_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(CarvyError, match=message):
        RunConfig(**settings)


@pytest.mark.parametrize("learner", ["nearest-mean", "one-shot"])
@pytest.mark.parametrize("types", ["bias-profile", "xmeans"])
def test_types_that_need_an_update_are_refused(learner: str, types: str) -> None:
    model = CarvyFL(learner=learner, features="none", types=types, groups=2, engine="loop")
    with pytest.raises(CarvyError, match="read from a trained update"):
        model.fit(federation())
