"""Group isolation in private learning, and a message that no other client has a part in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from numpy.random import Generator
from torch import nn

from carvyfl.core.progress import quiet
from carvyfl.data.clients import Client, Federation, Inputs, Samples
from carvyfl.groups.methods import form_groups
from carvyfl.learning.job import GroupResult
from carvyfl.learning.learners import learner_of
from carvyfl.learning.one_shot.features import Features, features_for, one_by_one
from carvyfl.learning.private.map import make_map
from carvyfl.learning.private.message import Messages
from carvyfl.learning.private.model import PrivateModel, client_message
from carvyfl.learning.store import GroupStore
from carvyfl.pipeline import Compute, Setup, compute_features, plan_training, train
from support.federations import corners
from support.private import CLASSES, heard_setup

CLIENTS, GROUPS, HOSTILE = 9, 3, 4


@pytest.fixture(params=[1, 4, 8], ids="{} threads".format)
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


# Heads -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def setup() -> Setup:
    clients = [Client(corners(n, 30 + n), corners(99, 0)) for n in range(CLIENTS)]
    return heard_setup(Federation(tuple(clients), CLASSES))


def trained(setup: Setup, messages: Messages, order: slice, store: Path | None = None) -> Any:
    grouping = form_groups("balanced", num_clients=CLIENTS, seed=1, num_groups=GROUPS)
    jobs = plan_training(replace(setup, messages=messages), grouping)[order]
    compute = Compute.on_cores(1)
    compute = replace(compute, store=None if store is None else GroupStore(store))
    results: list[GroupResult] = train({"": jobs}, compute)[""]
    return grouping.assignment[HOSTILE], dict(
        zip([job.members for job in jobs], results, strict=True)
    )


def hostile(rng: Generator, shape: tuple[int, ...], kind: str) -> npt.NDArray[Any]:
    ends = np.array([-(2**31), 2**31 - 1, 0, 1])
    units = rng.integers(-(2**31), 2**31, shape) if kind == "any" else rng.choice(ends, shape)
    return units.astype(np.int32) if kind != "floats" else units * np.nan


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("kind", ["any", "ends", "floats"])
def test_a_hostile_message_leaves_other_groups_bit_identical(
    setup: Setup, kind: str, tmp_path: Path
) -> None:
    """Alone, among others, in another order, with a store that knows them, or knows nothing."""
    messages = setup.messages
    assert messages is not None
    whole = slice(None)
    touched, before = trained(setup, messages, whole, tmp_path)
    for seed in range(3):
        sent = hostile(np.random.default_rng(seed), messages.units.shape[1:], kind)
        attacked = messages.replaced({HOSTILE: sent})
        assert set(attacked.set_aside) == ({HOSTILE} if kind == "floats" else set())
        for order, store in ((whole, None), (whole, tmp_path), (slice(None, None, -1), None)):
            for members, result in trained(setup, attacked, order, store)[1].items():
                same = torch.equal(result.weights, before[members].weights)
                assert same == (HOSTILE not in members)
        for g in range(GROUPS):  # alone
            ((members, result),) = trained(setup, attacked, slice(g, g + 1))[1].items()
            same = torch.equal(result.weights, before[members].weights)
            assert same == (g != touched)


def test_profiles_of_others_move_in_scale_alone(setup: Setup) -> None:
    """A client counts by its size over the median one, which one client can move."""
    from carvyfl.profiles.methods import read_profiles

    messages = setup.messages
    assert messages is not None
    quiet = read_profiles("private-means", messages, seed=1)
    sent = hostile(np.random.default_rng(0), messages.units.shape[1:], "any")
    loud = read_profiles("private-means", messages.replaced({HOSTILE: sent}), seed=1)
    assert quiet.vectors is not None
    assert loud.vectors is not None
    others = np.flatnonzero(np.arange(CLIENTS) != HOSTILE)
    before, after = (
        each.rows[others]
        / np.maximum(np.linalg.norm(each.rows[others], axis=1, keepdims=True), 1e-9)
        for each in (quiet.vectors, loud.vectors)
    )
    assert after == pytest.approx(before, abs=1e-6)
    for client in others.tolist():
        types = (each.types.names[each.types.labels[client]] for each in (quiet, loud))
        assert len(set(types)) == 1


# Messages, before noise ------------------------------------------------------------------------


def exact(count: int, scale: float) -> npt.NDArray[np.int64]:
    """No noise: the sums that noise would be added to."""
    return np.zeros(count, np.int64)


def frozen_net() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        convolution = nn.Conv2d(1, 6, 5, stride=2)
        return nn.Sequential(convolution, nn.ReLU(), nn.Flatten(), nn.Linear(864, 40)).eval()


KINDS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "8×8": ("scattering", (1, 8, 8)),
    "16×16": ("scattering", (1, 16, 16)),
    "28×28": ("scattering", (1, 28, 28)),
    "3×32×32": ("scattering", (3, 32, 32)),
    "table": ("none", (300,)),
    "network": (frozen_net(), (1, 28, 28)),
}


def drawn(shape: tuple[int, ...], size: int, seed: int) -> Samples:
    rng = np.random.default_rng(seed)
    inputs: Inputs
    if len(shape) == 1:
        inputs = rng.normal(size=(size, *shape)).astype(np.float32)
    else:
        inputs = rng.integers(0, 256, (size, *shape), dtype=np.uint8)
    return Samples(inputs, rng.integers(0, CLASSES, size))


def both(first: Samples, second: Samples) -> Samples:
    inputs = np.concatenate([first.inputs, second.inputs])
    return Samples(inputs, np.concatenate([first.labels, second.labels]))


def forgetful(features: Features) -> Features:
    """The same features, of which nothing is known yet."""
    known = features.known
    cold = type(known)(known.features, known.width, known.fingerprint, by_input=known.by_input)
    return replace(features, known=cold)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("name", KINDS)
def test_a_message_has_the_same_bits_whatever_other_clients_hold(name: str, tmp_path: Path) -> None:
    chosen, shape = KINDS[name]
    features = one_by_one(features_for(chosen, shape))
    public = drawn(shape, 60, 99).inputs
    private_map = make_map(features, shape, CLASSES, public, min(32, features.width))
    mine, theirs = drawn(shape, 37, 1), drawn(shape, 50, 2)

    def message(others: list[Samples], folder: Path | None = None) -> npt.NDArray[np.int32]:
        """What I send if all of their features are computed with mine, before and beside them."""
        cold = forgetful(features)
        model = PrivateModel(cold, private_map, CLASSES, 2.0, 1e-5)
        clients = [*others[:1], mine, *others[1:]]
        federation = Federation(tuple(Client(data, mine.take([])) for data in clients), CLASSES)
        compute = Compute.on_cores(1)
        if folder is not None:
            compute = replace(compute, store=GroupStore(folder))
        if others:
            from carvyfl.learning.recipe import Recipe

            compute_features(Setup(federation, model, Recipe(), 0), compute)
        return client_message(model, mine, exact)

    alone = message([])
    assert alone[:, :-1].any()
    copies = both(theirs, mine.take(range(36, 3, -1)))
    for others in ([theirs], [copies], [copies, theirs.take([0])], [mine.take([5] * 9), mine]):
        assert np.array_equal(message(others), alone)
        assert np.array_equal(message(others, tmp_path), alone)  # others' files are there, too


@pytest.mark.usefixtures("_threads")
def test_one_sample_less_takes_its_own_vector_away(tmp_path: Path) -> None:
    """To the bit: the sensitivity that is proved is that of what is computed."""
    shape = (1, 16, 16)
    features = one_by_one(features_for("scattering", shape))
    private_map = make_map(features, shape, CLASSES, drawn(shape, 60, 99).inputs, 32)
    model, data = PrivateModel(features, private_map, CLASSES, 2.0, 1e-5), drawn(shape, 20, 3)
    whole = client_message(model, data, exact).astype(np.int64)
    for k in range(20):
        rest = data.take([i for i in range(20) if i != k])
        single = client_message(
            PrivateModel(forgetful(features), private_map, CLASSES, 2.0, 1e-5),
            data.take([k]),
            exact,
        )
        assert np.array_equal(whole - client_message(model, rest, exact), single)


def test_simulated_messages_do_not_depend_on_the_company(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("carvyfl.learning.private.model.simulated_noise", exact)
    shape = (1, 8, 8)
    features = one_by_one(features_for("scattering", shape))
    private_map = make_map(features, shape, CLASSES, drawn(shape, 60, 99).inputs, 16)
    model = PrivateModel(features, private_map, CLASSES, 2.0, 1e-5)
    clients = [Client(drawn(shape, 9 + n, n), drawn(shape, 0, 0)) for n in range(5)]
    federation = Federation(tuple(clients), CLASSES)
    together = learner_of(model).messages(model, federation, quiet)
    assert together is not None
    for k, client in enumerate(clients):
        assert np.array_equal(together.units[k], client_message(model, client.train, exact))
