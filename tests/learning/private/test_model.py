"""The private model: its head, its map's file, and what is refused before anything is sent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from carvyfl.core.environment import usable_cores
from carvyfl.core.errors import CarvyError
from carvyfl.data.clients import Client, Federation, Samples
from carvyfl.groups.methods import form_groups
from carvyfl.learning.job import GroupJob, job_keys
from carvyfl.learning.learners import LEARNERS, learner_of
from carvyfl.learning.models import flat_weights
from carvyfl.learning.one_shot.features import features_for
from carvyfl.learning.private import map as maps
from carvyfl.learning.private.images import dead_leaves
from carvyfl.learning.private.map import Map, make_map, plain_map, public_inputs, stored_map
from carvyfl.learning.private.message import Messages
from carvyfl.learning.private.model import PrivateModel, check_clients, group_head
from carvyfl.pipeline import gather_models, plan_training
from carvyfl.runs.config import RunConfig
from support.federations import corners
from support.private import CLASSES, heard_setup, small_model

SHAPE = (1, 8, 8)


def federation(*sizes: int) -> Federation:
    clients = [Client(corners(n, size), corners(99, 0)) for n, size in enumerate(sizes)]
    return Federation(tuple(clients), CLASSES)


def sent_in(job: GroupJob) -> Messages:
    assert job.messages is not None
    return job.messages


@pytest.mark.parametrize("features", ["none", "scattering"])
def test_a_model_alone_scores_as_many_at_once_do(features: str) -> None:
    chosen = features_for(features, SHAPE)
    private_map = make_map(chosen, SHAPE, CLASSES, corners(300, 60).inputs, 12)
    setup = heard_setup(federation(30, 40, 50), PrivateModel(chosen, private_map, CLASSES, 9, 1e-5))
    grouping = form_groups("balanced", num_clients=3, seed=1, num_groups=2)
    results = [group_head(j.module, j.members, sent_in(j)) for j in plan_training(setup, grouping)]
    models, inputs = gather_models(setup, results), corners(7, 25).inputs
    scores = learner_of(setup.module).scores(setup.module, inputs, None)
    assert scores is not None
    together = scores(models.weights, slice(3, 20))
    x = torch.from_numpy(inputs[3:20]).float() / 255
    vectors = private_map.vectors(chosen(x).numpy())
    for g, result in enumerate(results):
        module = models.module
        torch.nn.utils.vector_to_parameters(result.weights, module.parameters())
        alone = module(x)
        torch.testing.assert_close(together[g], alone, rtol=1e-5, atol=1e-5)
        matrix, biases = np.split(result.weights.numpy(), [CLASSES * 12])
        by_hand = vectors @ matrix.reshape(CLASSES, 12).T + biases
        assert np.allclose(by_hand, alone.detach().numpy(), atol=1e-4)
    assert not module.training or module(x).requires_grad  # its parameters are those of the head
    assert flat_weights(module).numel() == CLASSES * 13


def test_a_model_is_loaded_with_its_own_map_and_no_other(tmp_path: Path) -> None:
    model, learner = small_model(), LEARNERS["private"]
    learner.save(model, tmp_path)
    settings = RunConfig(learner="private", types="private-means", features="none", validation=0)
    loaded = learner.load(settings, SHAPE, CLASSES, tmp_path)
    assert isinstance(loaded, PrivateModel)
    assert loaded.map.digest == model.map.digest
    assert loaded.about == model.about | {
        name: value for name, value in loaded.about.items() if name in ("epsilon", "guarantee")
    }
    inputs = corners(8, 9).inputs
    rows = model.features.of(inputs)
    assert np.array_equal(loaded.map.vectors(loaded.features.of(inputs)), model.map.vectors(rows))
    assert learner.head_width(settings, SHAPE, tmp_path) == 12
    plain_map(30, 12).save(tmp_path / "map.safetensors")  # of other features
    with pytest.raises(CarvyError, match="takes 30 features"):
        learner.load(settings, SHAPE, CLASSES, tmp_path)
    wide = replace(model.map, matrix=np.zeros((64, 64), np.float32), spread=np.ones(64, np.float32))
    wide.save(tmp_path / "map.safetensors")
    with pytest.raises(CarvyError, match="to 64 numbers"):  # 100 classes: no message is so large
        learner.load(settings, SHAPE, 100, tmp_path)
    (tmp_path / "map.safetensors").unlink()
    with pytest.raises(CarvyError, match="cannot read the map"):
        learner.load(settings, SHAPE, CLASSES, tmp_path)


def test_stored_groups_are_those_of_the_messages_and_of_nothing_less() -> None:
    setup = heard_setup(federation(30, 40, 50, 20))
    grouping = form_groups("balanced", num_clients=4, seed=1, num_groups=2)
    jobs = plan_training(setup, grouping)
    messages = setup.messages
    assert messages is not None
    other = messages.replaced({0: messages.units[0] + np.int32(1)})
    changed = plan_training(replace(setup, messages=other), grouping)
    same = [a == b for a, b in zip(job_keys(jobs), job_keys(changed), strict=True)]
    assert same == [0 not in job.members for job in jobs]
    less = replace(messages, sigma=messages.sigma / 2)
    quieter = plan_training(replace(setup, messages=less), grouping)
    assert not set(job_keys(jobs)) & set(job_keys(quieter))


def test_a_group_whose_messages_cannot_be_used_is_empty() -> None:
    setup = heard_setup(federation(30, 40))
    messages = setup.messages
    assert messages is not None
    sent: Any = np.zeros((CLASSES, 3), np.int32)
    unusable = messages.replaced({0: sent, 1: messages.units[1].astype(np.float64)})
    result = group_head(setup.module, (4, 9), unusable)
    assert (result.stopped, result.votes, [*result.set_aside]) == ("empty", False, [4, 9])
    silent = group_head(setup.module, (4,), Messages(0 * messages.units[:1], messages.sigma))
    assert (silent.stopped, silent.votes) == ("diverged", False)


def test_a_map_is_made_once_and_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maps, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(maps, "IMAGES", 60)
    features, shown = features_for("none", SHAPE), list[tuple[int, int]]()
    first = stored_map(features, SHAPE, CLASSES)
    made = make_map(features, SHAPE, CLASSES, progress=lambda *done: shown.append(done))
    assert first.digest == made.digest
    assert shown == [(50, 60), (60, 60)]
    monkeypatch.setattr(maps, "make_map", None)
    assert stored_map(features, SHAPE, CLASSES).digest == first.digest
    (file,) = (tmp_path / "maps").iterdir()
    monkeypatch.undo()
    monkeypatch.setattr(maps, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(maps, "IMAGES", 60)
    file.write_bytes(b"damaged")
    assert stored_map(features, SHAPE, CLASSES).digest == first.digest
    assert maps.load(file).digest == first.digest


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_map_has_the_same_bits_on_any_number_of_threads(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maps, "IMAGES", 120)
    features = features_for("scattering", (1, 12, 12))
    before = torch.get_num_threads()
    first = make_map(features, (1, 12, 12), CLASSES)
    monkeypatch.setattr(maps, "usable_cores", lambda: threads)
    torch.set_num_threads(threads)
    try:
        assert make_map(features, (1, 12, 12), CLASSES).digest == first.digest
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert usable_cores() >= 1


def test_public_inputs_of_any_kind_are_read(tmp_path: Path) -> None:
    images = corners(5, 12).inputs
    np.save(tmp_path / "images.npy", images[:, 0])
    for given in (images, images[:, 0], tmp_path / "images.npy", str(tmp_path / "images.npy")):
        assert np.array_equal(public_inputs(given, SHAPE), images)
    assert public_inputs("embedded", (1, 28, 28)).shape[1:] == (1, 28, 28)
    floats = public_inputs(images.astype(np.float64) / 255, SHAPE)
    assert floats.dtype == np.float32
    for wrong in (images[:1], images[:, :, 1:], images.reshape(12, -1), np.zeros(5), 3.0):
        with pytest.raises(CarvyError, match="`public` inputs have the shape"):
            public_inputs(wrong, SHAPE)


# What is refused before a client is heard --------------------------------------------------------


def test_public_inputs_that_a_client_holds_are_refused() -> None:
    clients = federation(20, 30)
    public, theirs = corners(300, 50).inputs, clients.clients[1].train.inputs
    check_clients(clients, 1e-5, public)
    check_clients(clients, 1e-5, None)
    for one in (theirs[7:8], theirs[:1].astype(np.float32) / np.float32(255)):
        both = np.concatenate([public.astype(one.dtype), one])
        with pytest.raises(CarvyError, match="inputs of client 1, which are not public"):
            check_clients(clients, 1e-5, both)
    held = replace(clients.clients[0], validation=Samples(public[3:4], np.zeros(1, np.int64)))
    with pytest.raises(CarvyError, match="of client 0"):
        check_clients(replace(clients, clients=(held, clients.clients[1])), 1e-5, public)


def test_an_input_of_a_single_number_is_nobodys() -> None:
    blank = Samples(np.zeros((3, *SHAPE), np.uint8), np.arange(3))
    clients = Federation((Client(blank, blank.take([])),), CLASSES)
    check_clients(clients, 1e-5, np.concatenate([corners(1, 5).inputs, blank.inputs]))


def test_delta_is_below_one_over_the_largest_client() -> None:
    check_clients(federation(20, 30), 0.0333, None)
    with pytest.raises(CarvyError, match="30 samples"):
        check_clients(federation(20, 30), 1 / 30, None)


def test_synthetic_images_are_no_clients_data_but_their_copies_are_none_either() -> None:
    """Clients may hold anything; only inputs that somebody gives are compared."""
    drawn = dead_leaves(SHAPE, range(4)).reshape(-1, *SHAPE)
    clients = Federation((Client(Samples(drawn, np.zeros(16, np.int64)), corners(1, 0)),), CLASSES)
    check_clients(clients, 1e-5, None)


def test_a_map_says_what_it_was_made_of() -> None:
    features = features_for("none", SHAPE)
    images = corners(300, 40).inputs
    made: list[Map] = [
        make_map(features, SHAPE, CLASSES),
        make_map(features, SHAPE, CLASSES, images),
        make_map(features_for("none", (9,)), (9,), CLASSES),
    ]
    words = ["synthetic images", "public inputs, SHA-256", "nothing"]
    assert all(each.origin.startswith(word) for each, word in zip(made, words, strict=True))
