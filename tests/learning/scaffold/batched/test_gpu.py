"""What only a GPU shows: recorded steps, and isolation bit for bit. Skipped where there is none."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from carvyfl.attacks.registry import ATTACKS
from carvyfl.data.clients import Client, Federation, Samples
from carvyfl.learning.backends import Cores, Gpus
from carvyfl.learning.job import GroupJob, GroupResult, group_job
from carvyfl.learning.models import build_model, flat_weights
from carvyfl.learning.recipe import Recipe
from carvyfl.learning.scaffold.batched import training
from carvyfl.learning.scaffold.batched.net import StackedNet
from carvyfl.voting.group_models import GroupModels
from support.federations import image_federation

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
SHAPES = {"compact-cnn": (1, 28, 28), "mlp": (1, 28, 28), "resnet": (3, 32, 32), "own": (1, 9, 8)}
CLASSES, SIZES = 4, [40, 33, 16, 5, 21, 40, 18, 32]


class Waits(nn.Module):
    """Looks at its input on the host: what cannot be recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(72, CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out * (2.0 if float(x.abs().sum()) >= 0 else 1.0)


def own_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 5, 3, padding=1), nn.GroupNorm(1, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Dropout(0.3), nn.Flatten(), nn.Linear(80, CLASSES),
    )  # fmt: skip


def jobs_of(name: str, clients: Federation | None = None, **recipe: object) -> list[GroupJob]:
    shape = SHAPES[name]
    torch.manual_seed(0)
    module = own_net() if name == "own" else build_model(name, shape, CLASSES, 0)
    settings = Recipe(rounds=5, lr=0.05, patience=2)
    settings = dataclasses.replace(settings, **recipe)  # type: ignore[arg-type]
    clients, groups = clients or image_federation(shape, SIZES), ([0, 1, 2], [3, 4], [5, 6, 7])
    return [group_job(clients, members, module, settings, 3) for members in groups]


def trained(jobs: list[GroupJob], precision: str) -> list[GroupResult]:
    results = dict(Gpus("cuda", precision).train_groups(jobs, lambda position, rounds: None))
    return [results[position] for position in range(len(jobs))]


def same(one: GroupResult, other: GroupResult) -> bool:
    return torch.equal(one.weights, other.weights) and one.stopped == other.stopped


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("name", SHAPES)
def test_a_group_is_the_same_recorded_or_not_alone_or_beside_a_hostile_one(
    name: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = trained(jobs_of(name), precision)
    alone = [trained([job], precision)[0] for job in jobs_of(name)]
    assert all(map(same, together, alone))

    clients = list(image_federation(SHAPES[name], SIZES).clients)
    noise = np.full((40, *SHAPES[name]), 255, np.uint8)
    clients[0] = Client(Samples(noise, np.zeros(40, np.int64)), clients[0].validation)
    hostile = Federation(tuple(clients), CLASSES, mean=0.3, std=0.4)
    beside = jobs_of(name, hostile)
    beside[0] = dataclasses.replace(beside[0], attack=ATTACKS["sign-flip"](), malicious=(0,))
    hurt = trained(beside, precision)
    assert not same(hurt[0], together[0])
    assert all(map(same, hurt[1:], together[1:]))

    monkeypatch.setattr(training, "RECORDED", 0)
    assert all(map(same, trained(jobs_of(name), precision), together))


@pytest.mark.parametrize("precision", ["bf16", "fp32", "tf32"])
def test_a_gradient_is_the_same_every_time(precision: str) -> None:
    """A kernel that reads what another overwrites errs now and then, for some client."""
    torch.manual_seed(0)
    module, clients = build_model("compact-cnn", SHAPES["compact-cnn"], CLASSES, 0), 100
    net = StackedNet(module, torch.device("cuda"), precision)
    weights = flat_weights(module).repeat(clients, 1).cuda()
    keys = net.dropout_keys(torch.arange(clients, device="cuda"))
    x = torch.randn(clients, 16, *SHAPES["compact-cnn"], device="cuda").to(net.dtype)
    labels = torch.randint(0, CLASSES, (clients, 16), device="cuda")
    batch = (x, labels, torch.ones(clients, 16, device="cuda"))
    first = net.gradient(net.views(weights), keys, *batch)
    for _ in range(100):
        again = net.gradient(net.views(weights), keys, *batch)
        assert all(torch.equal(again[name], gradient) for name, gradient in first.items())


def test_what_cannot_be_recorded_trains_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    clients, recipe = image_federation((1, 9, 8), SIZES), Recipe(rounds=3)
    jobs = [group_job(clients, [0, 1], Waits(), recipe, 0)]
    results = trained(jobs, "fp32")
    monkeypatch.setattr(training, "RECORDED", 0)
    assert same(results[0], trained(jobs, "fp32")[0])
    # What follows a recording that failed is recorded again.
    monkeypatch.setattr(training, "RECORDED", 1024)
    assert all(map(same, trained(jobs_of("mlp"), "bf16"), trained(jobs_of("mlp"), "bf16")))


@pytest.mark.parametrize("name", SHAPES)
def test_models_vote_as_on_a_cpu(name: str) -> None:
    """Logits are as exact as float32 but for a few millionths, which near ties alone show."""
    module = jobs_of(name)[0].module
    torch.manual_seed(1)
    start = flat_weights(module)
    weights = start + 0.3 * start.std() * torch.randn(40, len(start))
    models = GroupModels(module, weights, np.ones(40, dtype=bool), CLASSES, 0.3, 0.3)
    shape = (300, *SHAPES[name])
    inputs = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    results, expected = (models.votes(inputs, engine).groups for engine in (Gpus(), Cores()))
    assert (results != expected).mean() < 1e-3


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_training_and_votes_need_no_kernel_that_was_not_loaded_at_once(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All kernels are asked for before the first is launched, and no others."""
    from triton import knobs

    from carvyfl.learning.scaffold.batched import kernels

    compiled: list[bool] = []

    def note(**asked: object) -> bool:
        compiled.append(getattr(kernels._threads, "asked", None) is not None)
        return False

    monkeypatch.setattr(knobs.runtime, "jit_cache_hook", note)
    classes, shape = 7, SHAPES["compact-cnn"]  # sizes that no other test compiles kernels for
    clients = image_federation(shape, [37] * 6, classes)
    module, recipe = build_model("compact-cnn", shape, classes, 0), Recipe(rounds=3, patience=2)
    jobs = [group_job(clients, members, module, recipe, 3) for members in ([0, 1, 2], [3, 4, 5])]
    results = trained(jobs, precision)
    models = GroupModels.of(module, results, num_classes=classes, mean=0.3, std=0.4)
    models.votes(clients.clients[0].train.inputs[:8], Gpus())
    assert compiled
    assert all(compiled)
