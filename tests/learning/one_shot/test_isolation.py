"""Group isolation in one-shot learning, over shapes, threads and companies.

One client holds copies of the others' images, in an order and number of its own. Whatever it
holds, and whatever was computed before, the other groups' heads, the other clients' messages and
the other groups' votes are the same to the bit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from carvyfl.core.fingerprint import fingerprint
from carvyfl.data.clients import Client, Federation, Samples
from carvyfl.groups.methods import form_groups
from carvyfl.learning.backends import make_backend
from carvyfl.learning.one_shot import features as features_module
from carvyfl.learning.one_shot.training import one_shot_model
from carvyfl.learning.recipe import Recipe
from carvyfl.learning.store import GroupStore
from carvyfl.pipeline import (
    Compute,
    Setup,
    cast_votes,
    compute_features,
    gather_models,
    plan_training,
    train,
)
from carvyfl.profiles.asking import all_class_means

HOSTILE, CLASSES = 1, 3


def company(shape: tuple[int, ...]) -> Callable[[torch.Tensor], torch.Tensor]:
    """A map that hangs on its batch by as much as rounding may, wherever this runs."""
    return lambda x: x.flatten(1) * (1 + 1e-4 * x.square().mean())


def frozen(shape: tuple[int, ...]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(shape[0], 16, 5, stride=2), nn.ReLU(), nn.Flatten())


MAPS: list[tuple[tuple[int, ...], str | Callable[[tuple[int, ...]], Any]]] = [
    ((1, 8, 8), "scattering"),
    ((1, 16, 16), "scattering"),
    ((1, 28, 28), "scattering"),
    ((3, 32, 32), "scattering"),
    ((13,), "none"),
    ((3, 16, 16), frozen),
    ((13,), company),
]


def federation(shape: tuple[int, ...], sizes: tuple[int, ...]) -> Federation:
    draw = np.random.default_rng(0)
    images = len(shape) == 3

    def samples(number: int) -> Samples:
        labels = draw.integers(0, CLASSES, number)
        inputs = draw.random((number, *shape), dtype=np.float32)
        inputs += labels.reshape(-1, *[1] * len(shape))
        return Samples((inputs * 60).astype(np.uint8) if images else inputs, labels)

    clients = tuple(Client(samples(number), samples(2)) for number in sizes)
    return Federation(clients, CLASSES)


def copies(clients: Federation, seed: int, number: int) -> Federation:
    """Return the same clients, but one holds copies of the others' samples."""
    inputs = np.concatenate([client.train.inputs for client in clients.clients])
    labels = np.concatenate([client.train.labels for client in clients.clients])
    drawn = np.random.default_rng(seed).permutation(len(labels))[:number]
    changed = list(clients.clients)
    changed[HOSTILE] = Client(Samples(inputs[drawn], labels[drawn]), changed[HOSTILE].validation)
    return dataclasses.replace(clients, clients=tuple(changed))


@pytest.fixture(autouse=True)
def threads_of_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def run(
    clients: Federation, features: Any, shape: tuple[int, ...], device: str | None, store: Path
) -> tuple[Any, ...]:
    """Return the groups, every client's message, every group's head and its votes."""
    module = one_shot_model(features, shape, CLASSES)
    setup = Setup(clients, module, Recipe(), seed=0)
    engine = make_backend("loop" if device is None else "batched", workers=1)
    compute = Compute(engine, store=GroupStore(store))
    grouping = form_groups("balanced", num_clients=len(clients), seed=3, num_groups=3)
    inputs = federation(shape, (20,)).clients[0].train.inputs
    compute_features(setup, compute, inputs)
    messages = all_class_means(clients, module, setup.recipe, 0, engine=engine)
    results = train({"balanced": plan_training(setup, grouping)}, compute)["balanced"]
    votes = cast_votes(gather_models(setup, results), inputs, compute)
    heads = np.stack([result.weights.numpy() for result in results])
    return grouping, messages.values, heads, votes.groups


def check(shape: tuple[int, ...], features: Any, device: str | None, place: Path) -> None:
    chosen = features(shape) if callable(features) else features
    sizes = (12, 9, 12, 13, 5, 12)
    honest = federation(shape, sizes)
    features_module._registered.cache_clear()
    grouping, messages, heads, votes = run(honest, chosen, shape, device, place / "honest")
    others = np.arange(len(sizes)) != HOSTILE
    groups = np.arange(3) != grouping.assignment[HOSTILE]
    for case, number in enumerate((1, 50)):
        for cold in (True, False):  # and once with what the run before left in memory and on disk
            if cold:
                features_module._registered.cache_clear()
            attacked = run(copies(honest, case, number), chosen, shape, device, place / f"{case}")
            assert np.array_equal(messages[others], attacked[1][others])
            assert np.array_equal(heads[groups], attacked[2][groups])
            assert np.array_equal(votes[groups], attacked[3][groups])


@pytest.mark.parametrize("threads", [1, 4, 8])
@pytest.mark.parametrize(("shape", "features"), MAPS)
def test_copies_of_others_inputs_leave_other_groups_bit_identical(
    shape: tuple[int, ...], features: Any, threads: int, tmp_path: Path
) -> None:
    torch.set_num_threads(threads)
    check(shape, features, None, tmp_path)


@pytest.mark.parametrize("projection", [None, 20])
def test_a_store_keeps_what_other_numbers_of_threads_gave_apart(
    projection: int | None, tmp_path: Path
) -> None:
    """The last bits of a network's features, and of a projection, hang on it."""
    clients = federation((1, 8, 8), (12, 9, 12))
    grouping = form_groups("balanced", num_clients=3, seed=3, num_groups=3)
    heads = {}

    def threaded(x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1) * (1 + 1e-4 * torch.get_num_threads())

    for threads, store in ((1, "one"), (2, "two"), (2, "one"), (1, "two")):
        torch.set_num_threads(threads)
        module = one_shot_model(threaded, (1, 8, 8), CLASSES, projection=projection)
        setup = Setup(clients, module, Recipe(), seed=0)
        compute = Compute(make_backend("loop", workers=1), store=GroupStore(tmp_path / store))
        (results,) = train({"balanced": plan_training(setup, grouping)}, compute).values()
        heads[threads, store] = np.stack([result.weights.numpy() for result in results])
    assert not np.array_equal(heads[1, "one"], heads[2, "two"])
    assert np.array_equal(heads[1, "one"], heads[1, "two"])
    assert np.array_equal(heads[2, "one"], heads[2, "two"])


@pytest.mark.parametrize(("projection", "apart"), [(None, False), (20, True)])
def test_what_does_not_hang_on_threads_is_shared(projection: int | None, apart: bool) -> None:
    names = set()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        names.add(fingerprint(one_shot_model("scattering", (1, 8, 8), 3, projection=projection)))
    assert (len(names) == 2) == apart


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("shape", "features"), MAPS)
def test_copies_of_others_inputs_leave_other_groups_bit_identical_on_a_gpu(
    shape: tuple[int, ...], features: Any, tmp_path: Path
) -> None:
    check(shape, features, "cuda", tmp_path)
