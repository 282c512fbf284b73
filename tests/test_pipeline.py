"""The estimator, the command line and the plain functions are the same four steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from carvyfl import CarvyError, CarvyFL, Recipe, build_federation, certify, load
from carvyfl.groups.grouping import Grouping
from carvyfl.learning.models import build_model
from carvyfl.pipeline import (
    Compute,
    Setup,
    cast_votes,
    check_methods,
    form_all,
    gather_models,
    plan_training,
    train,
)
from carvyfl.runs.folder import RunFolder
from carvyfl.settings import LISTED, GroupingSettings, RunSettings
from carvyfl.voting.group_models import GroupModels
from support.cli import carvy

SEED, CLIENTS, SAMPLES = 3, 10, 20
RECIPE = Recipe(rounds=2, lr=0.05)
RUN = ("run", "--model", "mlp", "--clients", CLIENTS, "--samples", SAMPLES, "--seed", SEED)


@pytest.fixture
def setup() -> Setup:
    data = load("embedded")
    federation = build_federation(
        data, "class-disjoint", num_clients=CLIENTS, samples=SAMPLES, seed=SEED
    )
    module = build_model("mlp", data.train.inputs.shape[1:], data.num_classes, SEED)
    return Setup(federation, module, RECIPE, SEED)


def by_functions(
    setup: Setup, method: str, settings: GroupingSettings
) -> tuple[Grouping, GroupModels]:
    compute = Compute.on_cores(1)
    grouping = form_all([method], settings, setup, compute).groupings[method]
    (results,) = train({method: plan_training(setup, grouping)}, compute).values()
    return grouping, gather_models(setup, results)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "types", "groups"),
    [
        ("carvy", "class-means", None),
        ("carvy", "class-means", 2),
        ("carvy", "class-counts", 2),
        ("carvy", "xmeans", None),
        ("slots", "class-means", 2),
        ("slots", "bias-profile", 2),
        ("slots", "oracle", 2),
        ("flcert", "bias-profile", 3),
        ("cluster", "bias-profile", 2),
        ("single", "bias-profile", None),
    ],
)
def test_every_way_gives_the_same_groups_and_models_to_the_bit(
    setup: Setup, tmp_path: Path, method: str, types: str, groups: int | None
):
    grouping, models = by_functions(setup, method, RunSettings(types=types, groups=groups))

    given: dict[str, Any] = {"method": method, "types": types, "groups": groups, "seed": SEED}
    ensemble = CarvyFL("mlp", **given, training=RECIPE, engine="loop", workers=1)
    ensemble.fit(setup.federation)

    training = ("--rounds", RECIPE.rounds, "--lr", RECIPE.lr, "--engine", "loop", "--workers", 1)
    asked = () if groups is None else ("--groups", groups)
    where = ("--out", tmp_path / "run", "--store", tmp_path / "store")
    answer = carvy(*RUN, "--methods", method, "--types", types, *asked, *training, *where)
    assert answer.code == 0, answer.err
    folder = RunFolder(tmp_path / "run")

    assert ensemble.grouping_ == folder.grouping(method) == grouping
    assert len(models.weights) == grouping.num_groups
    assert torch.equal(ensemble.models_.weights, models.weights)
    assert torch.equal(folder.models(method).weights, models.weights)
    test = load("embedded").test
    votes = cast_votes(models, test.inputs, Compute.on_cores(1))
    assert np.array_equal(ensemble.votes(test.inputs).groups, votes.groups)
    certificate = certify(votes, test.labels, grouping.basis)
    recorded = folder.record().methods[method]
    assert recorded.ca == pytest.approx(certificate.ca().tolist(), abs=1e-4)


@pytest.mark.slow
def test_another_seed_gives_other_models(setup: Setup):
    """Otherwise the test above could not fail."""
    _, models = by_functions(setup, "single", GroupingSettings())
    other = Setup(setup.federation, setup.module, setup.recipe, SEED + 1)
    _, others = by_functions(other, "single", GroupingSettings())
    assert not torch.equal(models.weights, others.weights)


@pytest.mark.parametrize(
    ("groups", "baseline", "types", "proved"),
    [
        (None, None, "class-means", (False, False)),  # chosen from all clients' data
        (None, 2, "class-means", (False, True)),
        (2, None, "class-means", (False, True)),  # the baseline takes a G that was set
        (2, 2, "class-means", (False, True)),
        (None, None, "bias-profile", (False, False)),
        (None, None, "oracle", (True, True)),
    ],
)
def test_what_decided_on_the_number_of_groups_decides_what_is_proved(
    setup: Setup, groups: int | None, baseline: int | None, types: str, proved: tuple[bool, bool]
):
    settings = RunSettings(types=types, groups=groups, baseline_groups=baseline)
    formed = form_all(["flcert", "carvy"], settings, setup, Compute.on_cores(1))
    assert (formed.count is None) == (types != "class-means" or groups is not None)
    bases = [formed.groupings[method].basis for method in ("carvy", "flcert")]
    assert tuple(basis.honest_only is not None for basis in bases) == proved
    assert [basis.given_groups for basis in bases] == [1, 1]


@pytest.mark.parametrize("profiles", ["given", "covariates"])
def test_types_of_another_number_of_clients_are_refused_by_name(setup: Setup, profiles: str):
    three = np.zeros((3, 2)) if profiles == "covariates" else np.zeros(3, int)
    known: dict[str, Any] = {LISTED[profiles]: three}
    with pytest.raises(CarvyError, match="`types` has 3 entries, but there are 10 clients"):
        check_methods(["carvy"], GroupingSettings(types=profiles, **known), setup)
