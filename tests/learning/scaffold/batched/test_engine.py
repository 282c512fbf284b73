"""The batched engine against the loop engine, on a CPU: same keys, same numbers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from carvyfl.core.errors import CarvyError
from carvyfl.data.clients import Client, Federation, Samples
from carvyfl.learning.backends import Cores, Gpus
from carvyfl.learning.job import group_job
from carvyfl.learning.models import build_model, flat_weights
from carvyfl.learning.recipe import Recipe
from carvyfl.learning.scaffold.batched.engine import chunks, training_works
from carvyfl.learning.scaffold.batched.net import StackedNet
from carvyfl.learning.scaffold.batched.training import LocalSteps
from carvyfl.learning.scaffold.group import train_group
from carvyfl.learning.store import train_groups
from carvyfl.voting.group_models import GroupModels
from support.federations import class_disjoint_federation, small_net

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
    found = dict(engine.train_groups(jobs, lambda position, made: rounds.update({position: made})))
    for position, alone in enumerate(by_engine(jobs)):
        assert torch.equal(found[position].weights, alone.weights)
        assert found[position].accuracy == pytest.approx(alone.accuracy, nan_ok=True)
        assert rounds[position] <= alone.rounds


def test_what_fails_on_one_device_stops_the_others():
    jobs = jobs_of(dataclasses.replace(RECIPE, rounds=10_000, patience=None))
    unknown = nn.Sequential(nn.Bilinear(8, 8, 4))
    broken = group_job(class_disjoint_federation(), [0], unknown, RECIPE, 5)
    with pytest.raises(CarvyError, match="cannot stack layer"):
        by_engine([broken, *jobs], Gpus("cpu", "fp32", threads=2))


def image_federation(shape, sizes):
    rng = np.random.default_rng(0)
    clients = []
    for size in sizes:
        images = rng.integers(0, 256, (size + 6, *shape), dtype=np.uint8)
        labels = rng.integers(0, 4, size + 6)
        clients.append(
            Client(Samples(images[:size], labels[:size]), Samples(images[size:], labels[size:]))
        )
    return Federation(tuple(clients), 4, mean=0.3, std=0.4)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("compact-cnn", (1, 12, 12)),
        pytest.param("resnet", (3, 32, 32), marks=pytest.mark.slow),
        ("mlp", (1, 9, 9)),
    ],
)
def test_built_in_models_match_the_loop_engine(name, shape):
    federation = image_federation(shape, [19, 8, 33])
    module = build_model(name, shape, 4, seed=1)
    recipe = Recipe(rounds=3, lr=0.02, batch_size=8)
    jobs = [group_job(federation, group, module, recipe, 2) for group in ([0, 1], [2])]
    assert_same(by_engine(jobs), [train_group(job) for job in jobs], tolerance=2e-4)


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


def test_a_users_own_module_matches_the_loop_engine():
    torch.manual_seed(3)
    federation = image_federation((1, 8, 8), [20, 11])
    recipe = Recipe(rounds=3, lr=0.05, batch_size=4)
    jobs = [group_job(federation, group, LayersOfAllKinds(), recipe, 2) for group in ([0, 1], [1])]
    assert_same(by_engine(jobs), [train_group(job) for job in jobs], tolerance=2e-4)


class Mixing(nn.Module):
    """Takes the mean over the batch away, which stacked would be over all clients."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(8, 4)

    def forward(self, x):
        return self.out(x - x.mean(0))


class Turned(nn.Module):
    """Moves the batch away from the first axis."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 4)

    def forward(self, x):
        return self.out(x.unflatten(1, (2, 4)).transpose(0, 1)).sum(0)


def starting_at_zero(module):
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    return module


@pytest.mark.parametrize("module", [Mixing(), Turned(), starting_at_zero(Mixing())])
def test_a_model_that_would_mix_clients_is_refused(module):
    job = group_job(class_disjoint_federation(), [0], module, RECIPE, 0)
    with pytest.raises(CarvyError, match="cannot stack this model"):
        by_engine([job])


class MixingLater(nn.Module):
    """Mixes the samples of a batch once it is told to."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(8, 4)
        self.mixing = False

    def forward(self, x):
        return self.out(x - x.mean(0) if self.mixing else x)


def test_a_model_that_was_changed_is_checked_again():
    module = MixingLater()
    by_engine([group_job(class_disjoint_federation(), [0], module, RECIPE, 0)])
    module.mixing = True
    with pytest.raises(CarvyError, match="cannot stack this model"):
        by_engine([group_job(class_disjoint_federation(), [0], module, RECIPE, 0)])


def test_a_layer_in_two_places_is_refused():
    layer = nn.Linear(8, 8)
    module = nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(8, 4))
    job = group_job(class_disjoint_federation(), [0], module, RECIPE, 0)
    with pytest.raises(CarvyError, match="layer '0', which the model has in 2 places"):
        by_engine([job])


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


@pytest.mark.parametrize("make", [PartsOfASequence, leaky_net])
def test_layers_are_fused_only_where_nobody_sees_it(make):
    torch.manual_seed(0)
    federation = image_federation((1, 8, 8), [20, 11])
    module = make()
    jobs = [group_job(federation, group, module, RECIPE, 2) for group in ([0, 1], [1])]
    assert_same(by_engine(jobs), [train_group(job) for job in jobs], tolerance=2e-4)


def test_a_layer_that_cannot_be_stacked_is_refused_by_name():
    module = nn.Sequential(nn.Linear(8, 4), nn.PReLU())
    job = group_job(class_disjoint_federation(), [0], module, RECIPE, 0)
    with pytest.raises(CarvyError, match=r"'1' \(PReLU\).*loop"):
        by_engine([job])
    grouped = nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten())
    with pytest.raises(CarvyError, match=r"groups=2.*loop"):
        StackedNet(grouped, CPU, "fp32")


def test_a_groups_result_does_not_depend_on_its_company():
    together = by_engine(jobs_of())
    for position, job in enumerate(jobs_of()):
        alone = by_engine([job])[0]
        assert torch.equal(alone.weights, together[position].weights)
        np.testing.assert_array_equal(alone.accuracy, together[position].accuracy)


def test_a_hostile_client_leaves_other_groups_untouched_and_is_set_aside():
    federation = class_disjoint_federation()
    clients = list(federation.clients)
    train = clients[2].train
    clients[2] = Client(
        Samples(train.inputs * np.float32(1e37), train.labels), clients[2].validation
    )
    hostile = dataclasses.replace(federation, clients=tuple(clients))
    quiet, loud = by_engine(jobs_of()), by_engine(jobs_of(federation=hostile))
    for group, old, new in zip(GROUPS, quiet, loud, strict=True):
        if 2 in group:
            assert list(new.set_aside) == [2]
        else:
            assert torch.equal(old.weights, new.weights)
    assert loud[2].stopped == "empty"
    expected = [train_group(job) for job in jobs_of(federation=hostile)]
    assert_same(loud, expected)


def test_different_recipes_and_models_train_side_by_side():
    jobs = [
        *jobs_of()[:2],
        *jobs_of(dataclasses.replace(RECIPE, lr=0.01))[:1],
        *jobs_of(module=nn.Sequential(nn.Linear(8, 4)))[:1],
    ]
    assert_same(train_groups(jobs, engine=ENGINE), [train_group(job) for job in jobs])


def test_running_out_of_memory_halves_the_width_and_changes_nothing(monkeypatch):
    limit, tried = 2, []
    compute = LocalSteps.epoch

    def limited(self, start, *args):
        tried.append(len(start))
        if len(start) > limit:
            raise torch.OutOfMemoryError("fake")
        return compute(self, start, *args)

    expected = by_engine(jobs_of())
    monkeypatch.setattr(LocalSteps, "epoch", limited)
    assert_same(by_engine(jobs_of()), expected)
    assert tried[:4] == [12, 6, 3, 1]


def test_one_client_too_many_for_memory_is_a_clear_error(monkeypatch):
    def full(self, *args):
        raise torch.OutOfMemoryError("fake")

    monkeypatch.setattr(LocalSteps, "epoch", full)
    with pytest.raises(CarvyError, match="use engine loop"):
        by_engine(jobs_of())


def test_chunks_respect_the_memory_and_a_group_too_large_is_refused():
    jobs = jobs_of()
    weights = 4 * len(flat_weights(small_net()))

    def need(job):
        data = sum(c.train.inputs.nbytes + c.validation.inputs.nbytes for c in job.clients)
        return (3 * len(job.members) + 4) * weights + data

    largest = max(need(job) for job in jobs)
    budget = max(largest, need(jobs[0]) + need(jobs[1]))
    found = list(chunks(jobs, [0, 1, 2, 3], int(budget / 0.4) + 3))
    assert [position for chunk in found for position in chunk] == [0, 1, 2, 3]
    assert all(sum(need(jobs[i]) for i in chunk) <= budget + 1 for chunk in found)
    assert len(found) > 1
    with pytest.raises(CarvyError, match="use engine loop"):
        list(chunks(jobs, [0, 1, 2, 3], int(largest / 0.4) - 10))


def test_votes_of_stacked_models_equal_those_of_workers():
    module = small_net()
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn((5, len(flat_weights(module))), generator=generator)
    casts = np.array([True, True, False, True, True])
    models = GroupModels(module, weights, casts, 4)
    inputs = np.random.default_rng(0).normal(size=(700, 8)).astype(np.float32)
    stacked = models.votes(inputs, Gpus("cpu")).groups
    assert (stacked == models.votes(inputs, Cores(1)).groups).all()
    assert (stacked[2] == -1).all()


@pytest.mark.parametrize(("size", "expected"), [(19, {8, 4}), (16, {8}), (3, {4})])
def test_every_size_of_the_largest_clients_batches_is_loaded(size, expected, monkeypatch):
    sizes, plain = [], LocalSteps._step

    def noted(self, epoch, rows, wide):
        sizes.append(wide)
        plain(self, epoch, rows, wide)

    monkeypatch.setattr(LocalSteps, "_step", noted)
    rng = np.random.default_rng(0)

    def draw(count: int) -> Samples:
        return Samples(rng.normal(size=(count, 8)).astype(np.float32), rng.integers(0, 4, count))

    clients = (Client(draw(1), draw(5)), Client(draw(size), draw(5)))
    module, recipe = small_net(), Recipe(rounds=2, batch_size=8)
    jobs = [group_job(Federation(clients, 4), [k], module, recipe, 0) for k in range(2)]
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
