"""The batched engine against the loop engine, on a CPU: same keys, same numbers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from carvyfl.core.errors import CarvyError
from carvyfl.data.clients import Client, Federation, Samples
from carvyfl.learning.backends import Gpus
from carvyfl.learning.job import group_job
from carvyfl.learning.models import build_model, flat_weights
from carvyfl.learning.recipe import Recipe
from carvyfl.learning.scaffold.batched.engine import chunks, training_works
from carvyfl.learning.scaffold.batched.net import StackedNet
from carvyfl.learning.scaffold.batched.training import LocalSteps
from carvyfl.learning.scaffold.group import train_group
from carvyfl.learning.store import train_groups
from support.federations import class_disjoint_federation, image_federation, small_net

CPU = torch.device("cpu")
ENGINE = Gpus("cpu", "fp32")
RECIPE = Recipe(rounds=4, lr=0.05, batch_size=8, patience=3)
GROUPS = ([0, 3], [1, 4, 5], [2], [0, 1, 2, 3, 4, 5])


def jobs_of(recipe=RECIPE, federation=None, module=None):
    federation = federation or class_disjoint_federation()
    return [group_job(federation, group, module or small_net(), recipe, 5) for group in GROUPS]


def by_engine(jobs, engine=ENGINE):
    results = dict(engine.train_groups(jobs, lambda position, rounds: None))
    return [results[position] for position in range(len(jobs))]


def assert_same(results, expected, tolerance=1e-5):
    for one, other in zip(results, expected, strict=True):
        torch.testing.assert_close(one.weights, other.weights, rtol=tolerance, atol=tolerance)
        assert one.accuracy == pytest.approx(other.accuracy, nan_ok=True)
        assert one.stopped == other.stopped


@pytest.mark.parametrize("algorithm", ["scaffold", "fedavg"])
@pytest.mark.parametrize(("width", "batch_size"), [(1, 8), (2, 10), (5, 24), (100, 8), (100, 50)])
def test_ragged_groups_match_the_loop_engine(algorithm, width, batch_size):
    jobs = jobs_of(dataclasses.replace(RECIPE, algorithm=algorithm, batch_size=batch_size))
    expected = [train_group(job) for job in jobs]
    assert_same(by_engine(jobs, Gpus("cpu", "fp32", width)), expected)


@pytest.mark.parametrize("threads", [2, 3, 9])
def test_groups_dealt_to_several_devices_give_the_same_bits(threads):
    jobs = jobs_of() + jobs_of(dataclasses.replace(RECIPE, rounds=6))
    rounds = {}
    engine = Gpus("cpu", "fp32", threads=threads)
    results = dict(
        engine.train_groups(jobs, lambda position, made: rounds.update({position: made}))
    )
    for position, alone in enumerate(by_engine(jobs)):
        assert torch.equal(results[position].weights, alone.weights)
        assert results[position].accuracy == pytest.approx(alone.accuracy, nan_ok=True)
        assert rounds[position] <= alone.rounds


def test_what_fails_on_one_device_stops_the_others():
    jobs = jobs_of(dataclasses.replace(RECIPE, rounds=10_000, patience=None))
    unknown = nn.Sequential(nn.Bilinear(8, 8, 4))
    broken = group_job(class_disjoint_federation(), [0], unknown, RECIPE, 5)
    with pytest.raises(CarvyError, match="cannot stack layer"):
        by_engine([broken, *jobs], Gpus("cpu", "fp32", threads=2))


class LayersOfAllKinds(nn.Module):
    """A module with a forward of its own, residual addition and every stackable layer."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.second = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.head = nn.Sequential(
            nn.Flatten(), nn.LayerNorm(32), nn.Dropout(0.2), nn.Linear(32, 16), nn.GELU()
        )
        self.out = nn.Linear(16, 4, bias=False)

    def forward(self, x):
        x = self.norm(self.first(x))
        x = nn.functional.gelu(x) + self.second(x)
        return self.out(self.head(nn.functional.max_pool2d(x, 3)))


class Leaky(nn.ReLU):
    """Derived from ReLU, and not one."""

    def forward(self, x):
        return nn.functional.leaky_relu(x, 0.3)


class PartsOfASequence(nn.Module):
    """Uses a sequence layer by layer and by slices, and what lies between for something else."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1)
        )
        self.pool = nn.Sequential(nn.ReLU(), nn.MaxPool2d((2, 2)))
        self.out = nn.Linear(64, 4)
        self.unused = nn.Linear(3, 3)

    def forward(self, x):
        before = self.body[0](x)
        between = self.body[:2](x)
        after = self.body[2:](between)
        return self.out(self.pool(before + between + after).flatten(1))


def leaky_net():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), Leaky(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 3, 1), nn.Flatten(), nn.Linear(12, 4),
    )  # fmt: skip


def test_a_groups_result_does_not_depend_on_its_company():
    together = by_engine(jobs_of())
    for position, job in enumerate(jobs_of()):
        alone = by_engine([job])[0]
        assert torch.equal(alone.weights, together[position].weights)
        np.testing.assert_array_equal(alone.accuracy, together[position].accuracy)


def test_a_hostile_client_leaves_other_groups_untouched_and_is_set_aside():
    clients = list(class_disjoint_federation().clients)
    train = clients[2].train
    giants = Samples(train.inputs * np.float32(1e37), train.labels)
    clients[2] = Client(giants, clients[2].validation)
    hostile = jobs_of(federation=Federation(tuple(clients), 4))
    quiet, loud = by_engine(jobs_of()), by_engine(hostile)
    for group, old, new in zip(GROUPS, quiet, loud, strict=True):
        if 2 in group:
            assert list(new.set_aside) == [2]
        else:
            assert torch.equal(old.weights, new.weights)
    assert loud[2].stopped == "empty"
    assert_same(loud, [train_group(job) for job in hostile])


def test_different_recipes_and_models_train_side_by_side():
    jobs = [
        *jobs_of()[:2],
        *jobs_of(dataclasses.replace(RECIPE, lr=0.01))[:1],
        *jobs_of(module=nn.Sequential(nn.Linear(8, 4)))[:1],
    ]
    assert_same(train_groups(jobs, engine=ENGINE), [train_group(job) for job in jobs])


@pytest.mark.parametrize("limit", [2, 0])
def test_running_out_of_memory_halves_the_width_and_changes_nothing(limit, monkeypatch):
    tried = []
    compute = LocalSteps.epoch

    def limited(self, start, *args):
        tried.append(len(start))
        if len(start) > limit:
            raise torch.OutOfMemoryError("fake")
        return compute(self, start, *args)

    expected = by_engine(jobs_of())
    monkeypatch.setattr(LocalSteps, "epoch", limited)
    if limit:
        assert_same(by_engine(jobs_of()), expected)
    else:
        with pytest.raises(CarvyError, match="use engine loop"):
            by_engine(jobs_of())
    assert tried[:4] == [12, 6, 3, 1]


def test_chunks_respect_the_memory_and_a_group_too_large_is_refused():
    jobs = jobs_of()
    weights = 4 * len(flat_weights(small_net()))

    def need(job):
        data = sum(c.train.inputs.nbytes + c.validation.inputs.nbytes for c in job.clients)
        return (3 * len(job.members) + 4) * weights + data

    largest = max(need(job) for job in jobs)
    budget = max(largest, need(jobs[0]) + need(jobs[1]))
    results = list(chunks(jobs, [0, 1, 2, 3], int(budget / 0.4) + 3))
    assert [position for chunk in results for position in chunk] == [0, 1, 2, 3]
    assert all(sum(need(jobs[i]) for i in chunk) <= budget + 1 for chunk in results)
    assert len(results) > 1
    with pytest.raises(CarvyError, match="use engine loop"):
        list(chunks(jobs, [0, 1, 2, 3], int(largest / 0.4) - 10))


@pytest.mark.parametrize(("size", "expected"), [(19, {8, 4}), (16, {8}), (3, {4})])
def test_every_size_of_the_largest_clients_batches_is_loaded(size, expected, monkeypatch):
    sizes, plain = [], LocalSteps._step

    def noted(self, epoch, rows, wide):
        sizes.append(wide)
        plain(self, epoch, rows, wide)

    monkeypatch.setattr(LocalSteps, "_step", noted)
    federation, module = image_federation((8,), [1, size]), small_net()
    recipe = Recipe(rounds=2, batch_size=8)
    jobs = [group_job(federation, [k], module, recipe, 0) for k in range(2)]
    for work in training_works(jobs, StackedNet(module, CPU, "fp32")):
        work()
    assert set(sizes) == expected
    sizes.clear()
    by_engine(jobs[1:])
    assert set(sizes) == expected


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_the_engine_says_so():
    with pytest.raises(CarvyError, match="use loop"):
        Gpus()


class Mixing(nn.Module):
    """Mixes the samples of a batch, which stacked would be those of all clients."""

    def __init__(self, mix):
        super().__init__()
        self.out, self.mix = nn.Linear(8, 4), mix

    def forward(self, x):
        return self.mix(self.out, x)


def centred(layer, x):
    return layer(x - x.mean(0))


def turned(layer, x):
    return layer(torch.cat([x, x], 1).unflatten(1, (2, 8)).transpose(0, 1)).sum(0)


def starting_at_zero(module):
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    return module


def layer_in_two_places():
    layer = nn.Linear(8, 8)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(8, 4))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Mixing(centred), "cannot stack this model"),
        (Mixing(turned), "cannot stack this model"),
        (starting_at_zero(Mixing(centred)), "cannot stack this model"),
        (layer_in_two_places(), "layer '0', which the model has in 2 places"),
        (nn.Sequential(nn.Linear(8, 4), nn.PReLU()), r"'1' \(PReLU\).*loop"),
        (nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten()), r"groups=2.*loop"),
    ],
)
def test_a_model_that_cannot_be_stacked_is_refused(module, message):
    with pytest.raises(CarvyError, match=message):
        by_engine([group_job(class_disjoint_federation(), [0], module, RECIPE, 0)])


def test_a_model_that_was_changed_is_checked_again():
    module = Mixing(lambda layer, x: layer(x))
    by_engine([group_job(class_disjoint_federation(), [0], module, RECIPE, 0)])
    module.mix = centred
    with pytest.raises(CarvyError, match="cannot stack this model"):
        by_engine([group_job(class_disjoint_federation(), [0], module, RECIPE, 0)])


MODULES = {
    "compact-cnn": ((1, 12, 12), lambda: build_model("compact-cnn", (1, 12, 12), 4, 1)),
    "resnet": ((3, 32, 32), lambda: build_model("resnet", (3, 32, 32), 4, 1)),
    "mlp": ((1, 9, 9), lambda: build_model("mlp", (1, 9, 9), 4, 1)),
    "layers of all kinds": ((1, 8, 8), LayersOfAllKinds),
    "parts of a sequence": ((1, 8, 8), PartsOfASequence),
    "derived layers": ((1, 8, 8), leaky_net),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n == "resnet" else n for n in MODULES]
)
def test_models_match_the_loop_engine(name):
    """Layers are fused only where nobody sees it."""
    torch.manual_seed(3)
    shape, make = MODULES[name]
    federation, module = image_federation(shape, [19, 8, 33]), make()
    recipe = Recipe(rounds=3, lr=0.05, batch_size=8)
    jobs = [group_job(federation, group, module, recipe, 2) for group in ([0, 1], [2])]
    assert_same(by_engine(jobs), [train_group(job) for job in jobs], tolerance=2e-4)
