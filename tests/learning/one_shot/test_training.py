"""One-shot runs from data to certificate, alone and among others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from carvyfl import CarvyFL, build_federation, load
from carvyfl.data.clients import Federation
from carvyfl.learning.job import group_job
from carvyfl.learning.one_shot.head import head
from carvyfl.learning.one_shot.sums import sums_of
from carvyfl.learning.one_shot.training import one_shot_model
from carvyfl.learning.recipe import Recipe
from carvyfl.pipeline import Compute, Setup, gather_models, train
from carvyfl.voting.votes import NO_VOTE

DATA = load("embedded")
GROUPS = 4


@pytest.fixture(scope="module")
def clients() -> Federation:
    federation = build_federation(DATA, "class-disjoint", num_clients=20, samples=30, seed=2)
    return replace(federation, mean=0.0, std=1.0)


@pytest.fixture(scope="module")
def fitted(clients: Federation) -> CarvyFL:
    return CarvyFL(learner="one-shot", method="slots", groups=GROUPS, seed=2).fit(clients)


def test_the_head_of_a_group_is_that_of_its_members_pooled_data(
    clients: Federation, fitted: CarvyFL
) -> None:
    module = one_shot_model("scattering", (1, 28, 28), 10)
    for members, result in zip(fitted.grouping_.groups, fitted.results_, strict=True):
        data = [clients.clients[k].train for k in members]
        inputs = torch.from_numpy(np.concatenate([part.inputs for part in data])).float() / 255
        labels = np.concatenate([part.labels for part in data])
        x = module.features(inputs).double().numpy()
        weights, biases = head(sums_of(x, labels, 10, np.float64), module.ridge)
        expected = np.concatenate([weights.ravel(), biases])
        tolerance = {"rtol": 1e-3, "atol": 1e-3 * np.abs(weights).max()}
        np.testing.assert_allclose(result.weights.double().numpy(), expected, **tolerance)
        assert result.stopped == "closed-form"


@pytest.mark.slow
def test_it_learns_more_than_chance_and_certifies(fitted: CarvyFL) -> None:
    certificate = fitted.certify(DATA.test.inputs, DATA.test.labels)
    assert certificate.ca()[0] > 60  # ten classes, 600 samples in all
    assert certificate.basis.honest_only == 1
    assert fitted.profiles_ is not None
    truth = fitted.federation_.types
    assert truth is not None
    assert fitted.profiles_.types.agree_with(truth)


def test_heads_are_stored_and_found_again(clients: Federation, tmp_path: Path) -> None:
    first = CarvyFL(learner="one-shot", groups=GROUPS, seed=2, store=tmp_path).fit(clients)
    files = {path.name for path in tmp_path.glob("*.safetensors")}
    assert len(files) == GROUPS
    again = CarvyFL(learner="one-shot", groups=GROUPS, seed=2, store=tmp_path).fit(clients)
    other = CarvyFL(learner="one-shot", groups=GROUPS, seed=2, store=tmp_path, ridge=9)
    other.fit(clients)
    assert torch.equal(again.models_.weights, first.models_.weights)
    assert not torch.equal(other.models_.weights, first.models_.weights)
    assert len(list(tmp_path.glob("*.safetensors"))) == 2 * GROUPS


def test_a_group_without_members_casts_no_vote(clients: Federation) -> None:
    module = one_shot_model("scattering", (1, 28, 28), 10)
    setup = Setup(clients, module, Recipe(), 2)
    jobs = [group_job(clients, members, module, Recipe(), 2) for members in (range(20), ())]
    results = train({"": jobs}, Compute.on_cores(1))[""]
    assert [result.stopped for result in results] == ["closed-form", "empty"]
    votes = gather_models(setup, results).votes(DATA.test.inputs[:20])
    assert (votes.groups[1] == NO_VOTE).all()


def test_embeddings_are_used_as_they_are() -> None:
    rng = np.random.default_rng(1)
    parts = []
    for k in range(12):
        y = (rng.integers(0, 2, 25) + k) % 3
        parts.append(((np.eye(3)[y] @ np.full((3, 8), 2.0) + rng.normal(size=(25, 8))), y))
    model = CarvyFL(learner="one-shot", features="none", groups=3).fit(parts, num_classes=3)
    assert model.models_.weights.shape == (3, 3 * 8 + 3)
